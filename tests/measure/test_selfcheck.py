"""Self-checks on real backends whose table is made to be of another version."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from bricolage.backends import capabilities, registry
from bricolage.backends.capabilities import CapabilityTable, committed_table, engine_claims
from bricolage.backends.claim_matching import Matcher
from bricolage.backends.interface import Backend
from bricolage.cli.main import app
from bricolage.graph.graph import Graph
from bricolage.measure import selfcheck
from bricolage.measure.selfcheck import known_findings, self_checked
from tests.graph.models import graph


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Callable[[CapabilityTable], None]:
    """Puts a table in the place of the committed one."""

    def put(found: CapabilityTable) -> None:
        real = committed_table
        for module in (capabilities, selfcheck):
            monkeypatch.setattr(module, "committed_table", lambda name: found if name == found.backend else real(name))
        monkeypatch.setattr(capabilities, "table_digest", lambda name: f"made up for {name}")

    return put


def of_record(name: str) -> CapabilityTable:
    found = committed_table(name)
    assert found is not None
    return found


def dense() -> Graph:
    w = np.eye(4, dtype=np.float32)
    return graph("a = MatMul (x, w) \n y = Relu (a)", "float[2, 4] x", "float[2, 4] y", w=w)


def accepted(backend: Backend, made: Graph) -> int:
    return Matcher(made).accepted(backend.claims())


@pytest.mark.parametrize("name", ["onnxruntime", "openvino", pytest.param("torch", marks=pytest.mark.slow)])
def test_another_version_is_used_only_for_what_passes_its_self_check(
    name: str, tables: Callable[[CapabilityTable], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, backend = dense(), registry.get(name)
    assert accepted(backend, made) == 0b11
    assert self_checked([backend], [made]) == (backend,)  # nothing to do where the table holds
    tables(replace(of_record(name), version="0.0.1"))
    assert accepted(backend, made) == 0
    reason = engine_claims(backend)[0].constraint(made, made.operators)
    assert reason == f"its capability table is of 0.0.1, {backend.table_version()} is installed and was not checked"
    (checked,) = self_checked([backend], [made])
    assert accepted(checked, made) == 0b11
    assert (
        checked.self_check
        == {("MatMul", "13", "float32"): "", ("Relu", "14", "float32"): ""}
        == known_findings(backend)
    )
    assert backend.self_check is None
    monkeypatch.setattr(selfcheck, "run_trials", lambda *_, **__: pytest.fail("it was run again"))
    (again,) = self_checked([backend], [made])
    assert again.self_check == checked.self_check


def test_a_wrong_claim_is_caught(tables: Callable[[CapabilityTable], None], caplog: pytest.LogCaptureFixture) -> None:
    """OpenVINO computes Cast from float32 to float64 in float32; a table that vouches for it is not believed."""
    found = of_record("openvino")
    assert found.outcomes["Cast"]["13"]["float32>float64"].startswith("wrong")
    outcomes = {**found.outcomes, "Cast": {"13": {"float32>float64": "passes 9"}}}
    tables(replace(found, version="0.0.1", outcomes=outcomes, avoid={}))
    made = graph("a = Relu (x) \n y = Cast <to = 11> (a)", "float[4] x", "double[4] y")
    (checked,) = self_checked([registry.get("openvino")], [made])
    assert checked.self_check is not None
    assert checked.self_check["Relu", "14", "float32"] == ""
    assert checked.self_check["Cast", "13", "float32>float64"].startswith("wrong in test_cast")
    assert accepted(checked, made) == 0b01
    assert "openvino does not take Cast-13 at float32>float64" in caplog.text


def test_a_case_that_brings_the_worker_down_is_a_reason(
    tables: Callable[[CapabilityTable], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that checks dies of its first case and of every other: nothing is claimed, and the caller lives."""
    tables(replace(of_record("onnxruntime"), version="0.0.1"))
    monkeypatch.setattr(
        "bricolage.measure.conformance_trials.pickle.dumps", lambda _: b"cposix\nabort\n(tR."
    )  # what a crashing framework does
    made = dense()
    (checked,) = self_checked([registry.get("onnxruntime")], [made])
    assert checked.self_check is not None
    assert {reason.partition(" ")[0] for reason in checked.self_check.values()} == {"crashes"}
    assert accepted(checked, made) == 0


def test_bodies_are_checked_too(tables: Callable[[CapabilityTable], None]) -> None:
    import onnx_ir as ir

    text = """<ir_version: 10, opset_import: ["" : 18]> g (bool c, float[4] x) => (float[4] y) {
        y = If (c) <then_branch = t () => (float[4] p) { p = Tanh (x) },
                   else_branch = e () => (float[4] q) { q = Neg (x) }> }"""
    made = Graph(ir.from_onnx_text(text))
    tables(replace(of_record("onnxruntime"), version="0.0.1"))
    (checked,) = self_checked([registry.get("onnxruntime")], [made])
    assert checked.self_check is not None
    assert {name for name, _, _ in checked.self_check} == {"If", "Tanh", "Neg"}
    assert accepted(checked, made) == 1


def test_backends_says_what_the_table_is_worth(tables: Callable[[CapabilityTable], None]) -> None:
    run = CliRunner()
    assert "self-check" not in run.invoke(app, ["backends"]).stdout
    tables(replace(of_record("onnxruntime"), version="0.0.1"))
    self_checked([registry.get("onnxruntime")], [dense()])
    told = json.loads(run.invoke(app, ["backends", "--json"]).stdout)
    facts = next(one for one in told["backends"] if one["name"] == "onnxruntime")
    assert facts["self_check"] == {"passed": 2, "failed": {}} and not facts["capabilities"]["holds"]
    text = " ".join(run.invoke(app, ["backends"]).stdout.split())
    assert "a self-check of the model's operators decides" in text and "--backend onnxruntime --docs" in text


def test_what_is_kept_is_there_whole_and_what_a_killed_run_was_writing_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRICOLAGE_CACHE", str(tmp_path))
    left = tmp_path / "selfchecks" / ".making-left"
    left.mkdir(parents=True)
    (left / "native.json").write_text("{", encoding="utf-8")
    backend, found = registry.get("native"), {("Relu", "14", "float32"): ""}
    selfcheck._keep(backend, found)
    assert known_findings(backend) == found
    assert list((tmp_path / "selfchecks").iterdir()) == [selfcheck._file(backend)]
