"""Inputs that never change, through plan, artifact and every way to call."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from bricolage.base.codec import DecodeError, decode, encode
from bricolage.base.options import Options
from bricolage.driver.sources import GivenModel, Source, open_source
from bricolage.errors import OtherConstant, UnknownInput, UnreadableArtifact, WrongShape, WrongType
from bricolage.plan import artifact
from bricolage.plan.constant_inputs import ConstantInput, same_value, words_of
from bricolage.plan.plan import Plan
from bricolage.plan.planned_interface import default_specs, input_specs, output_specs
from bricolage.runtime.executable import Executable
from bricolage.runtime.load import load
from bricolage.work.implementation import Implementation, KernelConfig
from tests.runtime.made_plans import made_bucket, made_plan, whole

pytestmark = pytest.mark.usefixtures("backends")
QUICK = Implementation("quick", KernelConfig("f32"))
X, S, RATE = np.float32([1, 2, 3, 4]), np.float32([5, 6, 7, 8]), np.array(16000)
TEXT = """<ir_version: 8, opset_import: ["" : 18]> voice (float[n] x, int64 sr, float[n] s) => (float[n] y) {
    rate = Constant<value: tensor = int64 {16000}>() c = Equal(sr, rate)
    y = If(c) < then_branch = a () => (float[k] r) { r = Add(x, s) }, else_branch = b () => (float[k] t) { t = Sub(x, s) } > }"""


def planned(folder: Path, text: str = TEXT, **constants: Any) -> Plan:
    """A plan for y = x + s at 16,000 Hz, and x - s at others."""
    folder.mkdir()
    options = Options(threads=1, constants=constants or {"sr": 16000})
    given = {"x": X, "sr": RATE, "s": S}
    proto = onnx.parser.parse_model(text)
    opened: Source = open_source(GivenModel(proto, inputs=given), options, folder)
    (one,) = opened.buckets
    model = (folder / artifact.MODEL).read_bytes()
    plan = made_plan(folder, made_bucket(folder, one.graph, whole(one.graph, QUICK), one.sizes))
    (folder / artifact.MODEL).write_bytes(model)
    ends = {"inputs": input_specs(opened.model), "outputs": output_specs(opened.model)}
    return replace(plan, **ends, defaults=default_specs(opened.model), constants=opened.constants)


@pytest.fixture(params=["made", "loaded"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Executable:
    plan = planned(tmp_path / "run")
    assert plan.buckets[0].program.operators == 1
    if request.param == "made":
        return Executable(plan, tmp_path / "run")
    artifact.save(plan, tmp_path / "run", tmp_path / "made.bricolage")
    return load(tmp_path / "made.bricolage")


CALLS: dict[str, Callable[[Executable, Any], Any]] = {
    "left out": lambda run, _: run(X, S),
    "by position": lambda run, sr: run(X, sr, S),
    "by position, one by name": lambda run, sr: run(X, sr, s=S),
    "by name": lambda run, sr: run(X, S, sr=sr),
    "one mapping": lambda run, sr: run({"s": S, "sr": sr, "x": X}),
    "one tuple": lambda run, sr: run((X, sr, S)),
    "run": lambda run, sr: run.run({"x": X, "s": S, "sr": sr})["y"],
    "trace": lambda run, sr: run.trace({"x": X, "s": S, "sr": sr}).outputs["y"],
    "submit": lambda run, sr: run.submit(X, sr, S).result(60),
    "map": lambda run, sr: next(run.map([{"x": X, "s": S, "sr": sr}])),
    "another size": lambda run, sr: run(np.append(X, X), sr, np.append(S, S))[:4],
}


@pytest.mark.parametrize("sr", [RATE, 16000], ids=["array", "number"])
@pytest.mark.parametrize("way", CALLS)
def test_a_call_may_give_the_value(run: Executable, way: str, sr: Any) -> None:
    for _ in range(2):  # the second call finds what the first has checked
        np.testing.assert_array_equal(CALLS[way](run, sr), X + S)
    run.close()


@pytest.mark.parametrize("way", [way for way in CALLS if way != "left out"])
def test_another_value_is_refused(run: Executable, way: str) -> None:
    CALLS[way](run, RATE)
    with pytest.raises(OtherConstant, match="'sr' is 8000, and the model was optimised for sr = 16000"):
        CALLS[way](run, np.array(8000))
    np.testing.assert_array_equal(CALLS[way](run, RATE), X + S)
    run.close()


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    run = Executable(planned(tmp_path / "run"), tmp_path / "run")
    assert [one.name for one in run.inputs] == ["x", "s"] and [one.name for one in run.defaults] == ["sr"]
    with pytest.raises(WrongType, match="'sr'"):
        run(X, S, sr=np.float32(16000))
    with pytest.raises(WrongShape, match="'sr'"):
        run(X, S, sr=np.array([16000, 16000]))
    with pytest.raises(UnknownInput):
        run(X, RATE, S, S)
    with pytest.raises(UnknownInput, match="optional: sr"):
        run(X, S, rate=16000)


def test_torch_tensors(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    run, x, s = Executable(planned(tmp_path / "run"), tmp_path / "run"), torch.tensor(X), torch.tensor(S)
    for found in (run(x, s), run(x, torch.tensor(16000), s), run(x, s, sr=torch.tensor(16000))):
        assert torch.equal(found, x + s)
    with pytest.raises(OtherConstant):
        run(x, torch.tensor(8000), s)


def test_an_artifact_that_is_planned_again_keeps_them(tmp_path: Path) -> None:
    artifact.save(planned(tmp_path / "run"), tmp_path / "run", tmp_path / "made.bricolage")
    for constants, value in (({}, "16000"), ({"sr": 8000}, "8000"), ({"sr": None}, "11025")):
        folder = tmp_path / value
        folder.mkdir()
        given = {"x": X, "s": S, **({"sr": np.array(11025)} if constants == {"sr": None} else {})}
        options = Options(threads=1, constants=constants)
        path = tmp_path / "made.bricolage"
        opened = open_source(GivenModel(path, inputs=given), options, folder)
        assert opened.constants == (ConstantInput("sr", 1, value),)
        assert [node.op_type for node in opened.buckets[0].graph.model.graph] == ["Add" if value == "16000" else "Sub"]


def test_a_plan_that_says_another_value_is_no_artifact(tmp_path: Path) -> None:
    plan = planned(tmp_path / "run")
    path = tmp_path / "made.bricolage"
    with pytest.raises(UnreadableArtifact, match="'sr'"):
        artifact.save(replace(plan, constants=(ConstantInput("sr", 1, "8000"),)), tmp_path / "run", path)
    for wrong in (ConstantInput("x", 1, "1"), ConstantInput("sr", 3, "16000")):
        with pytest.raises((ValueError, DecodeError), match="constant input"):
            decode(Plan, encode(plan) | {"constants": [encode(wrong)]})
    artifact.save(plan, tmp_path / "run", path)
    with zipfile.ZipFile(path) as file:
        assert json.loads(file.read("plan.json"))["constants"] == [{"name": "sr", "position": 1, "value": "16000"}]


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.array(16000), "16000"),
        (np.array([True, False]), "[true, false]"),
        (np.float32([[0.1, 2], [np.nan, np.inf]]), "[[0.1, 2.0], [nan, inf]]"),
        (np.empty((2, 0), np.int8), "[[], []]"),
        (np.arange(2000), f"[{', '.join(map(str, range(16)))}, ...] (2,000 elements, int64 2000)"),
    ],
)
def test_words(array: np.ndarray, words: str) -> None:
    assert words_of(array) == words
    assert same_value(array, array.copy())


def test_equal_numbers_of_another_type_or_shape_are_others() -> None:
    assert not same_value(np.int64(1), np.int32(1)) and not same_value(np.zeros(1), np.zeros((1, 1)))
    assert not same_value(np.float32([np.nan, 1]), np.float32([np.nan, 2]))
    assert same_value(np.float32([np.nan, 0.0]), np.float32([np.nan, -0.0]))
