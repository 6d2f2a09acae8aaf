"""`--constant`, from the decision to calls, reports and rewritten files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from bricolage import errors
from bricolage.cli.main import app
from tests.needed import needs

needs("onnxruntime")
run = CliRunner()
TEXT = """<ir_version: 8, opset_import: ["" : 18]> voice (float[2,8] x, int64 sr) => (float[2,8] y) {
    rate = Constant<value: tensor = int64 {16000}>() c = Equal(sr, rate) t = Tanh(x)
    y = If(c) < then_branch = a () => (float[2,8] r) { r = Exp(t) }, else_branch = e () => (float[2,8] s) { s = Neg(t) } > }"""
X = np.float32(np.linspace(-1, 1, 16).reshape(2, 8))
QUICK = ["--backend", "onnxruntime", "--threads", "1", "--effort", "instant"]


@pytest.fixture
def voice(tmp_path: Path) -> Path:
    path = tmp_path / "voice.onnx"
    onnx.save(onnx.parser.parse_model(TEXT), str(path))
    np.savez("both.npz", x=X, sr=np.array(16000))
    np.savez("other.npz", x=X, sr=np.array(8000))
    np.savez("rest.npz", x=X)
    return path


@pytest.mark.usefixtures("light_reference")
def test_optimize_run_explain_and_report(voice: Path) -> None:
    made = run.invoke(app, ["optimize", str(voice), "--constant", "sr", "--input", "both.npz", *QUICK])
    assert made.exit_code in (errors.OK, errors.NO_GAIN), made.output
    assert "sr = 16000" in made.output
    for file in ("both.npz", "rest.npz"):
        assert run.invoke(app, ["run", "voice.bricolage", "--input", file, "-o", "y.npz"]).exit_code == errors.OK
        np.testing.assert_allclose(np.load("y.npz")["y"], np.exp(np.tanh(X)), rtol=1e-5)
    refused = run.invoke(app, ["run", "voice.bricolage", "--input", "other.npz"])
    assert refused.exit_code == errors.USAGE and "optimised for sr = 16000" in refused.output
    served = run.invoke(app, ["run", "voice.bricolage", "--input", "both.npz", "--requests", "3"])
    assert served.exit_code == errors.OK, served.output
    assert "constant inputs: sr = 16000" in run.invoke(app, ["explain", "voice.bricolage"]).output
    assert run.invoke(app, ["report", "voice.bricolage", "-o", "page.html"]).exit_code == errors.OK
    page = Path("page.html").read_text(encoding="utf-8")
    assert "<dt>Constant</dt><dd>sr = 16000</dd>" in page and "--constant sr=16000" in page


def test_rewrite_gives_a_model_without_the_input(voice: Path) -> None:
    made = run.invoke(app, ["rewrite", str(voice), "-o", "less.onnx", "--constant", "sr=8000"])
    assert made.exit_code == errors.OK, made.output
    graph = onnx.load("less.onnx").graph
    assert [one.name for one in graph.input] == ["x"] and [one.op_type for one in graph.node] == ["Tanh", "Neg"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--constant", "rate=1"], "no input 'rate'"),
        (["--constant", "sr=fast"], "int64 scalar"),
        (["--constant", "sr"], "--constant sr=VALUE"),
        (["--constant", "sr=1", "--constant", "sr=2"], "twice"),
        (["--constant", "sr=8000", "--input", "both.npz"], "sr = 16000"),
    ],
)
def test_bad_words_write_nothing(voice: Path, words: list[str], told: str) -> None:
    found = run.invoke(app, ["optimize", str(voice), *words, *QUICK])
    assert found.exit_code == errors.USAGE and told in " ".join(found.output.split())
    assert not Path("voice.bricolage").exists()
