"""`optimize` and `bench` on a tiny model with one real backend."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

from bricolage import errors
from bricolage.base.codec import decode
from bricolage.cli.main import app
from bricolage.plan.plan import Plan

run = CliRunner()
ROOT = Path(__file__).parents[2]
QUICK = ["--backend", "onnxruntime", "--threads", "1", "--budget", "40s"]


def optimize(*words: str) -> subprocess.CompletedProcess[str]:
    """As users call it, with the few rounds that decisions of tests have."""
    code = "import tests.brief; tests.brief.decide_briefly(); from bricolage.cli.main import main; main()"
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run(
        [sys.executable, "-c", code, "optimize", *words],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        encoding="utf-8",
    )


@pytest.mark.usefixtures("light_reference")
def test_optimize_then_run_explain_report_and_bench(model: Path) -> None:
    found = optimize(str(model), "-o", "out.bricolage", "--report", "out.html", "--require-gain", "--json", *QUICK)
    assert found.returncode in (errors.OK, errors.NO_GAIN), found.stderr
    result = json.loads(found.stdout)
    assert {"model", "precision", "chosen", "speedup_vs_baseline", "speedup_ci", "significant", "seconds"} <= set(
        result
    )
    assert (found.returncode == errors.OK) == (result["significant"] and result["chosen"] != result["best_baseline"])
    plan = decode(Plan, result["plan"])
    assert plan.buckets[0].race.chosen == result["chosen"] and plan.provenance.options.threads == 1
    assert sorted(path.name for path in Path().iterdir()) == ["out.bricolage", "out.html"]
    assert "wrote out.bricolage and out.html" in found.stderr
    assert ("(exit code 3)" in found.stderr) == (found.returncode == errors.NO_GAIN)
    assert result["best_other"].startswith("onnxruntime") and result["headline"].startswith(result["chosen"])

    far = optimize(str(model), "--require-gain", "9000", *QUICK)
    assert far.returncode == errors.NO_GAIN and "by 9000 % (exit code 3)" in far.stderr, far.stderr
    again = optimize(str(model), *QUICK)
    assert again.returncode == errors.OK and "exit code" not in again.stderr, again.stderr
    assert "Contestant" in again.stdout and "tiny: highest, quick, 1 thread; " in again.stdout
    assert "\x1b" not in again.stdout
    assert Path("tiny.bricolage").exists()

    x = np.array([[-1, 2, -3], [4, -5, 6]], np.float32)
    np.savez("x.npz", x=x)
    assert run.invoke(app, ["run", "out.bricolage", "--input", "x.npz", "-o", "y.npz"]).exit_code == 0
    with np.load("y.npz") as y:
        np.testing.assert_allclose(y["y"], np.maximum(x, 0) + x)
    assert run.invoke(app, ["explain", "out.bricolage", "--op", "relu"]).exit_code == 0
    assert run.invoke(app, ["explain", "out.bricolage", "--rules"]).exit_code == 0
    assert run.invoke(app, ["report", "out.bricolage", "-o", "again.html"]).exit_code == 0

    shown = run.invoke(app, ["explain", "out.bricolage", "--kernels"])
    assert shown.exit_code == 0 and "none of these regions is on a backend that shows its kernels" in shown.stderr
    moved = run.invoke(app, ["explain", "out.bricolage", "--traffic"])
    assert moved.exit_code == 0 and "none of these regions is on a backend that shows its kernels" in moved.stderr

    raced = run.invoke(app, ["bench", "out.bricolage", "--json", *QUICK])
    assert raced.exit_code == 0, raced.stderr
    assert any(c["name"].startswith("onnxruntime") for c in json.loads(raced.stdout)["contestants"])


@pytest.mark.usefixtures("light_reference")
def test_kernels_of_the_native_engine_are_shown_and_written(model: Path) -> None:
    words = ["--backend", "native", "--threads", "1", "--budget", "40s"]
    found = run.invoke(app, ["optimize", str(model), "-o", "out.bricolage", *words])
    assert found.exit_code == errors.OK, found.stderr
    shown = run.invoke(app, ["explain", "out.bricolage", "--kernels", "--dump-kernels", "kernels/c"])
    assert shown.exit_code == 0, shown.stderr
    assert "1 fused kernel" in shown.stdout and "relu" in shown.stdout
    assert "/* kernel_0 */" in Path("kernels/c/region-1.c").read_text(encoding="utf-8")
    found_json = run.invoke(app, ["explain", "out.bricolage", "--kernels", "--json"])
    (region,) = json.loads(found_json.stdout)["regions"]
    (kernel,) = region["kernels"]
    assert kernel["kind"] == "elementwise" and kernel["ms"] > 0 and region["peaks"]["gflops"] > 0
    moved = run.invoke(app, ["explain", "out.bricolage", "--traffic"])
    assert moved.exit_code == 0 and "by the model of Optimus" in moved.stdout and "1 kernel" in moved.stdout
    moved_json = json.loads(run.invoke(app, ["explain", "out.bricolage", "--traffic", "--json"]).stdout)
    (traffic,) = moved_json["traffic"].values()
    assert [kernel["kind"] for kernel in traffic["kernels"]] == ["elementwise"] and traffic["groupings"]
    shown = run.invoke(app, ["explain", "out.bricolage", "--on-threads", "4,8"])
    assert shown.exit_code == 0 and "No order below" in shown.stdout and "on 4 threads" in shown.stdout
    orders = json.loads(run.invoke(app, ["explain", "out.bricolage", "--on-threads", "4", "--json"]).stdout)
    assert [order["threads"] for order in orders["regions"][0]["orders"]] == [4, 4]
    for text in ("1", "4,many", "2000", ""):
        refused = run.invoke(app, ["explain", "out.bricolage", "--on-threads", text])
        assert refused.exit_code == 2 and "such as 4,8,16" in refused.stderr, text
    assert run.invoke(app, ["report", "out.bricolage", "-o", "kernels.html", "--kernels"]).exit_code == 0
    assert "Fused kernels" in Path("kernels.html").read_text(encoding="utf-8")
    Path("file").touch()
    refused = run.invoke(app, ["explain", "out.bricolage", "--dump-kernels", "file/c"])
    assert refused.exit_code == errors.USAGE and "cannot be written" in refused.stderr


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["-o", "absent/out.bricolage"], "cannot be written: there is no folder 'absent'"),
        (["-o", "."], "cannot be written"),
        (["--report", "absent/out.html"], "cannot be written"),
        (["--backend", "nothing"], "there is no backend 'nothing'"),
        (["--shape", "batch=2"], "the model has no symbolic dimension 'batch'"),
        (["--input", "absent.npz"], "there is no file 'absent.npz'"),
        (["--report", "tiny.bricolage"], "--report cannot be 'tiny.bricolage'"),
        (["--replan", "--provisional"], "--provisional cannot be 'with --replan'"),
    ],
)
def test_bad_input_writes_nothing(model: Path, words: list[str], what: str) -> None:
    found = run.invoke(app, ["optimize", str(model), *words])
    assert found.exit_code == errors.USAGE and what in found.stderr, found.stderr
    assert found.stdout == "" and not list(Path().iterdir())


def test_model_is_never_overwritten(model: Path) -> None:
    before = model.read_bytes()
    for option in ("-o", "--report"):
        found = run.invoke(app, ["optimize", str(model), option, str(model)])
        assert found.exit_code == errors.USAGE and "overwrite" in found.stderr
    assert model.read_bytes() == before


def test_files_that_are_no_models() -> None:
    Path("text.onnx").write_text("hello", encoding="utf-8")
    found = run.invoke(app, ["optimize", "text.onnx"])
    assert found.exit_code == errors.USAGE and "is not a readable ONNX model" in found.stderr


def test_unbound_dimension_names_the_option(tmp_path: Path) -> None:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, "width"]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "free", ends[:1], ends[1:])
    opsets = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), str(tmp_path / "free.onnx"))
    found = run.invoke(app, ["optimize", str(tmp_path / "free.onnx")])
    assert found.exit_code == errors.USAGE and "--shape width=" in found.stderr
