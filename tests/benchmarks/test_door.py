"""What `benchmarks.door` keeps, and how it goes on."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks.door import __main__ as door
from benchmarks.door import pairs, processes, valid
from bricolage.conformance.trial_cases import OperatorTrial
from bricolage.testing.validity import INFERENCE, NO_KERNEL, ONNX_RUNTIME

CHILD = """
import json, sys
for name in json.loads(open(sys.argv[sys.argv.index("--names") + 1]).read()):
    if name == "dies":
        sys.exit("of hunger")
    print(json.dumps([name, "right", ""]), flush=True)
"""


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, str, str]]:
    """What is reported of children that are right about every name but one, at which they die."""
    script = tmp_path / "child.py"
    script.write_text(CHILD, encoding="utf-8")
    real = processes._listen
    monkeypatch.setattr(
        processes, "_listen", lambda command, *others: real([sys.executable, str(script), *command[3:]], *others)
    )
    return []


def test_a_child_that_dies_costs_one_row(told: list[tuple[str, str, str]]) -> None:
    processes.apart("pairs", ["a", "dies", "b"], [], 30.0, lambda *row: told.append(row))
    assert [row[:2] for row in told] == [("a", "right"), ("dies", "broken"), ("b", "right")]
    assert "of hunger" in told[1][2]


def test_no_other_name_is_begun_when_time_is_over(told: list[tuple[str, str, str]]) -> None:
    names = [str(i) for i in range(100)]
    processes.apart("pairs", names, [], 30.0, lambda *row: told.append(row), time.monotonic())
    assert len(told) == 1


def test_a_run_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    first = door.Found(path=path)
    first.note("Add(float)", "right", "")
    first.note("Sub(float)", "wrong", "by one")
    path.write_text(path.read_text(encoding="utf-8") + json.dumps(["Mul(float)", "ri"])[:-1], encoding="utf-8")
    second = door.Found(path=path)
    assert second.outcomes == {"Add(float)": "right", "Sub(float)": "wrong"} and second.reasons == {
        "Sub(float)": "by one"
    }


def test_casts_of_what_is_no_number_are_left_out() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[3] x) => (int32[3] y) { y = Cast <to = 6> (x) }"""
    x, y = np.float32([np.nan, -np.inf, 2.5]), np.int32([0, 0, 2])
    model = onnx.parser.parse_model(text)
    trial = OperatorTrial("t", "::Cast", "21", "float32", frozenset(), model, (x,), (y,), 0.0, 0.0, False)
    defined = pairs._defined(trial)
    (read,), (made,) = np.asarray(defined.inputs), np.asarray(defined.outputs)
    assert (
        read.tolist() == [1, 1, 2.5] and made.tolist() == [1, 1, 2] and (read.dtype, made.dtype) == (x.dtype, y.dtype)
    )
    assert pairs._defined(defined) is defined


CASES = """
from types import SimpleNamespace
import onnx
HEAD = '<ir_version: 10, opset_import: ["": 21]> g (float[n,4] x, bool c) => (float[m,4] y) '
def choice():
    text = "{ y = If (c) <then_branch = a () => (u) { t = Neg (x) u = Neg (t) }, else_branch = b () => (v) { v = Abs (x) }> }"
    return onnx.parser.parse_model(HEAD + text), {}, {"shapes": ["n=2"]}
def unknown():
    return onnx.parser.parse_model(HEAD + "{ y = Conv (x) }"), {}
CASES = {"choice": SimpleNamespace(make=choice), "unknown": SimpleNamespace(make=unknown)}
"""


def test_of_a_model_all_that_is_written_is_shown_to_onnx_and_onnx_runtime(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    path = tmp_path / "cases.py"
    path.write_text(CASES, encoding="utf-8")
    valid.validated(["case choice", "case unknown"], path, None)
    rows = {name: outcome for name, outcome, _ in map(json.loads, capsys.readouterr().out.splitlines())}
    of_choice = {name.partition(": ")[2]: outcome for name, outcome in rows.items() if name.startswith("case choice")}
    assert set(of_choice.values()) == {"right"}
    assert {"", "as it came", "in the artifact", "rewritten at open sizes", "prepared", "rewritten"} <= of_choice.keys()
    assert any(name.startswith("prepared, If ") for name in of_choice)
    assert rows["case unknown"] == "refused"


def test_a_graph_is_to_blame_for_what_its_model_had_not() -> None:
    broken, missing = {INFERENCE: "sizes differ"}, {ONNX_RUNTIME: NO_KERNEL}
    assert valid.verdict({}, {})[0] == "right"
    assert valid.verdict({}, broken) == ("wrong", "shape inference: sizes differ")
    assert valid.verdict(broken, broken)[0] == valid.verdict({}, missing)[0] == "refused"
    assert valid.verdict(missing, broken)[0] == "wrong"
