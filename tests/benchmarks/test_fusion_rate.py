"""Kernels and the figures that DNNFusion published."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from benchmarks.fusion import fusion_rate
from benchmarks.fusion.full_exports import FULL_EXPORTS
from benchmarks.fusion.peer_kernels import PEERS


def test_each_published_network_has_an_export() -> None:
    assert set(fusion_rate.PUBLISHED) == set(FULL_EXPORTS) and len(FULL_EXPORTS) == 15
    assert all(row.dnnfusion < row.layers for row in fusion_rate.PUBLISHED.values())


def test_unknown_networks_are_refused() -> None:
    with pytest.raises(SystemExit):
        fusion_rate.main(["--network", "tinybert,nowhere"])
    with pytest.raises(SystemExit):
        fusion_rate.main(["--network", "tinybert", "--peers", "nothing"])


def test_layers_are_what_depends_on_inputs(tmp_path: Path) -> None:
    """Constants and what they alone decide are none; bodies count."""
    text = """
        <ir_version: 8, opset_import: ["" : 11]>
        g (float[4] x, bool c) => (float[4] y) <float[4] w = {1, 2, 3, 4}> {
            k = Constant <value_float = 2.0> ()
            v = Mul (w, k)
            u = Add (x, v)
            y = If (c) <then_branch = one () => (float[4] a) { a = Neg (u) },
                        else_branch = two () => (float[4] b) { d = Abs (u) b = Neg (d) }>
        }
    """
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    assert fusion_rate.count_layers(tmp_path / "model.onnx") == 1 + 1 + 1 + 2


def test_rows_are_kept_and_read_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = fusion_rate.RateRow("vgg16", 51, 51, 37, 17, {"conv": 13}, {"never": 4}, peers=dict.fromkeys(PEERS, 20))
    kept = tmp_path / "rows.jsonl"
    kept.write_text(json.dumps(fusion_rate.asdict(row)), encoding="utf-8")
    assert fusion_rate.main(["--network", "vgg16", "--rows", str(kept)]) == 0
    assert "| VGG-16 | 51 | 51 | 37 | 17 | 3.00 | 3.00 | 51 | 17 | 3.00 | 22 | 20 |" in capsys.readouterr().out
    assert fusion_rate.main(["--network", "vgg16", "--rows", str(kept), "--apart"]) == 0
    assert "| VGG-16 | 17 | 13 | 0 | 0 | 4 |" in capsys.readouterr().out


@pytest.mark.slow
def test_a_small_encoder(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    peers = ["--peers", "onnxruntime,openvino"]
    assert fusion_rate.main(["--network", "tinybert", *peers, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    paper = fusion_rate.PUBLISHED["tinybert"]
    assert row["native"] < paper.dnnfusion and row["native"] < min(row["peers"].values())
    assert row["layers"] / row["native"] > paper.layers / paper.dnnfusion
