"""`bisect` and `reduce` on models and artifacts, with backends that have a planted fault."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from typer.testing import CliRunner

from bricolage import errors
from bricolage.api import reduce as reducing
from bricolage.base.options import Options
from bricolage.cli.main import app
from bricolage.plan import artifact
from bricolage.work.implementation import Assignment, Implementation
from tests.runtime import made_plans
from tests.trust import planted

run = CliRunner()
BODY = "a = Relu(x) b = Tanh(a) c = Add(b, x) y = Relu(c)"


@pytest.fixture(autouse=True)
def backends(light_reference: None) -> Iterator[None]:
    planted.register_all()
    yield
    planted.forget_all()


@pytest.fixture
def net(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    onnx.save(ir.to_proto(made_plans.symbolic_model(BODY)), str(path))
    return path


def test_a_model_on_a_crooked_backend(net: Path, tmp_path: Path) -> None:
    words = ["bisect", str(net), "--backend", "crooked", "--backend", "sound", "--shape", "n=3", "--threads", "1"]
    found = run.invoke(app, [*words, "-o", str(tmp_path / "evidence"), "--json"])
    assert found.exit_code == errors.INACCURATE, found.output
    wrong, right = json.loads(found.stdout)["programs"]
    assert (wrong["program"], right["program"]) == ("crooked f32", "sound f32")
    (culprit,) = wrong["culprits"]
    assert culprit["kind"] == "region" and culprit["confirmed"] and culprit["operators"] == ["Tanh"]
    assert culprit["with"]["error"] > 1e-3 > culprit["without"]["error"] and "crooked 1.0" in culprit["next"]
    assert right["outcome"] == "ok" and right["culprits"] == [] and 0 <= right["error"] <= right["bound"]
    (region,) = (tmp_path / "evidence").iterdir()
    assert wrong["files"] == [str(region)] and len(onnx.load(str(region)).graph.node) == 4


def test_nothing_is_wrong(net: Path) -> None:
    found = run.invoke(app, ["bisect", str(net), "--backend", "sound", "--shape", "n=3", "--threads", "1"])
    assert found.exit_code == errors.OK, found.output
    assert "nothing is wrong" in found.stdout and "error" in found.stdout and "bound" in found.stdout


def test_an_artifact_that_ships_a_wrong_region(tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    graph = made_plans.graph_of_size(2, BODY)
    placement = (
        Assignment(0b0001, Implementation("sound")),
        Assignment(0b0110, Implementation("crooked")),
        Assignment(0b1000, Implementation("sound")),
    )
    bucket = made_plans.made_bucket(folder, graph, placement, {"n": 2})
    plan = made_plans.made_plan(folder, bucket, options=Options(threads=1), body=BODY)
    path = tmp_path / "net.bricolage"
    artifact.save(plan, folder, path)
    found = run.invoke(app, ["bisect", str(path)])
    assert found.exit_code == errors.INACCURATE, found.output
    assert "change 2 is at fault" in found.stdout, found.stdout
    assert "crooked f32" in found.stdout and "without it" in found.stdout


def test_a_repro_is_written(net: Path, tmp_path: Path) -> None:
    words = ["reduce", str(net), "--backend", "crooked", "--shape", "n=3", "--threads", "1", "--json"]
    found = run.invoke(app, [*words, "-o", str(tmp_path / "repro")])
    assert found.exit_code == errors.OK, found.output
    told = json.loads(found.stdout)
    assert told["reduced"]["operators"] == ["Tanh"] and told["reduced"]["before"] == 4
    assert sorted(path.name for path in (tmp_path / "repro").iterdir()) == sorted(
        ["model.onnx", "inputs.npz", "expected.npz", "repro.py", "README.md"]
    )
    shown = subprocess.run([sys.executable, str(tmp_path / "repro" / "repro.py")], capture_output=True, check=False)
    assert shown.returncode == 1


def test_a_fault_that_no_part_has_by_itself_is_said(net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bricolage.trust.model_reduction._suspects", lambda *_: [])
    options = Options(threads=1, backends=("crooked",), shapes={"n": (3,)})
    with pytest.raises(errors.NotReduced, match="crooked f32"):
        reducing.reduce(net, tmp_path, options)


def test_nothing_is_written_where_nothing_is_wrong(net: Path, tmp_path: Path) -> None:
    words = ["reduce", str(net), "--backend", "sound", "--shape", "n=3", "--threads", "1"]
    found = run.invoke(app, [*words, "-o", str(tmp_path / "repro")])
    assert found.exit_code == errors.NO_GAIN and "nothing is wrong" in found.stdout
    assert not (tmp_path / "repro").exists()


@pytest.mark.parametrize("command", ["bisect", "reduce"])
def test_bad_input(command: str, net: Path) -> None:
    assert run.invoke(app, [command, "absent.onnx"]).exit_code == errors.USAGE
    found = run.invoke(app, [command, str(net), "--shape", "n=3", "--trial", "soon"])
    assert found.exit_code == errors.USAGE and "--trial" in found.stderr
    assert not list(Path().iterdir())


def test_an_answer_of_another_runtime_is_shown_without_bricolage(tmp_path: Path) -> None:
    """ONNX Runtime takes the corners of a picture that it makes smaller for others, in its own way (found in the ONNX suite)."""
    pytest.importorskip("onnxruntime")
    nodes = [
        onnx.helper.make_node("Neg", ["x"], ["a"], "neg"),
        onnx.helper.make_node(
            "Resize",
            ["a", "", "s"],
            ["b"],
            "resize",
            mode="linear",
            coordinate_transformation_mode="align_corners",
        ),
        onnx.helper.make_node("Abs", ["b"], ["y"], "abs"),
    ]
    info = onnx.helper.make_tensor_value_info
    ends = [info("x", 1, [1, 1, 2, 4])], [info("y", 1, [1, 1, 1, 2])]
    scales = onnx.numpy_helper.from_array(np.array([1, 1, 0.6, 0.6], np.float32), "s")
    graph = onnx.helper.make_graph(nodes, "net", *ends, [scales])
    path = tmp_path / "resize.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 19)], ir_version=9), str(path))
    words = ["reduce", str(path), "--backend", "onnxruntime", "--unclaimed", "--no-rewrite", "--json"]
    found = run.invoke(app, [*words, "-o", str(tmp_path / "repro")])
    if found.exit_code == errors.NO_GAIN:
        pytest.skip("this version of ONNX Runtime is right about it")
    assert found.exit_code == errors.OK, found.output
    assert json.loads(found.stdout)["reduced"]["operators"] == ["Resize"]
    script = tmp_path / "repro" / "repro.py"
    assert "bricolage" not in script.read_text(encoding="utf-8").partition('"""\n\nimport')[2]
    shown = subprocess.run(
        [sys.executable, "-I", str(script)], capture_output=True, text=True, check=False, encoding="utf-8"
    )
    assert shown.returncode == 1 and "wrong" in shown.stdout, shown.stderr
