"""`bricolage quantize` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from typer.testing import CliRunner

import bricolage
from bricolage.cli.main import app
from tests.quantization.networks import PRODUCTS, data, model_of


@pytest.fixture
def source(tmp_path: Path) -> Path:
    onnx.save(ir.to_proto(model_of(*PRODUCTS)), str(tmp_path / "source.onnx"))
    np.savez(tmp_path / "data.npz", x=np.stack([one["x"] for one in data(3, 5, 16)]))
    return tmp_path / "source.onnx"


def run(*words: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["quantize", *(str(word) for word in words)])
    return result.exit_code, result.stdout, result.stderr


def test_a_table_a_page_and_a_file(source: Path, tmp_path: Path) -> None:
    out, page = tmp_path / "q.onnx", tmp_path / "q.html"
    code, told, noted = run(
        source, "--calibrate", tmp_path / "data.npz", "-o", out, "--html", page, "--keep-float", "w3"
    )
    assert code == 2 and "w3" in noted and not out.exists() and not page.exists()
    code, told, noted = run(source, "--calibrate", tmp_path / "data.npz", "-o", out, "--html", page)
    assert code == 0 and f"wrote {out}" in noted and "3 of 3 products" in told and "MatMul" in told
    assert {"QuantizeLinear", "DequantizeLinear"} <= {node.op_type for node in onnx.load(str(out)).graph.node}
    written = page.read_text(encoding="utf-8")
    assert "Error by operator" in written and "MatMul" in written and "{{" not in written
    code, _, noted = run(out, "--calibrate", tmp_path / "data.npz", "-o", tmp_path / "twice.onnx")
    assert code == 2 and "already" in noted


def test_json_and_weights_alone(source: Path, tmp_path: Path) -> None:
    code, told, _ = run(source, "-o", tmp_path / "q.onnx", "--weights", "int4", "--block-size", 16, "--json")
    found = json.loads(told)
    assert code == 0 and found["error"] is None and all(one["bits"] == 4 for one in found["operators"])
    code, _, noted = run(source, "-o", tmp_path / "r.onnx", "--weights", "int3")
    assert code == 2 and "int4, int8" in noted


def test_data_that_are_none(source: Path, tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("no archive")
    for words, reason in (
        (["--calibrate", tmp_path / "text.npz"], "--calibrate"),
        (["--calibrate", tmp_path / "missing.npz"], "no file"),
        ([], "there is none"),
    ):
        code, _, noted = run(source, "-o", tmp_path / "q.onnx", *words)
        assert code == 2 and reason in noted and not (tmp_path / "q.onnx").exists()
    assert run(source, "-o", source, "--weights", "int8")[0] == 2


def test_the_function_is_public() -> None:
    from bricolage.api.quantize import quantize

    assert bricolage.quantize is quantize
