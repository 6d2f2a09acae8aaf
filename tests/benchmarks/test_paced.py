"""What the benchmark of paced calls makes of times."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from benchmarks.serving import paced

_NET = (
    '<ir_version: 8, opset_import: ["" : 18]> net (float[64,64] x) => (float[64,64] y) { z = MatMul(x, x) y = Relu(z) }'
)


def test_a_row_counts_slow_calls_and_how_many_come_in_a_row() -> None:
    who = paced.Contestant("net", "bricolage", Path("a"), Path("b"), "native f32")
    times, queued = [2.0] * 6 + [3.1, 3.2, 2.9, 4.0], [0.0] * 6 + [1.0, 2.0, 0.0, 3.0]
    row = paced.summarise(who, "bursty", 20.0, 2.0, times, queued, 0.25)
    assert row.median_ratio == 1.0 and row.p99_ratio == pytest.approx(2.0, rel=0.05)
    assert row.slow == 0.3 and row.slow_in_a_row == 2
    assert row.queued_ms == 0.0 and row.queued_slow_ms == 2.0
    words = paced.words_of(row)
    assert "net, bricolage (native f32), bursty, every 20 ms: steady 2 ms, median 1.00 times" in words
    assert "30.0% slow, 2 in a row, queued 0.00 ms (2.00 ms in slow calls); others took 25% of the processors" in words


def test_a_kernel_that_counts_nothing_says_nothing() -> None:
    who = paced.Contestant("net", "openvino", Path("a"), Path("b"), "openvino")
    row = paced.summarise(who, "quiet", 2.0, 1.0, [1.0, 1.0], [None, None], None)
    assert row.queued_ms is None and row.queued_slow_ms is None and row.slow_in_a_row == 0
    assert "queued" not in paced.words_of(row) and "others" not in paced.words_of(row)


def test_a_file_that_is_there_is_called_at_each_pace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, inputs, kept = tmp_path / "net.onnx", tmp_path / "net.npz", tmp_path / "rows.json"
    onnx.save(onnx.parser.parse_model(_NET), model)
    np.savez(inputs, x=np.ones((64, 64), np.float32))
    words = ["--model", str(model), "--inputs", str(inputs), "--json", "--calls", "3", "--output", str(kept)]
    assert (
        paced.main([*words, "--pauses", "0,1", "--neighbours", "quiet", "--contestants", "bricolage,onnxruntime"]) == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads(kept.read_text(encoding="utf-8"))
    assert [(row["contestant"], row["pause_ms"]) for row in found["rows"]] == [
        ("onnxruntime", 0.0),
        ("onnxruntime", 1.0),
    ]
    assert all(row["calls"] == 3 and row["steady_ms"] > 0 and row["network"] == "net" for row in found["rows"])


def test_a_contestant_that_cannot_load_its_file_is_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, inputs = tmp_path / "net.onnx", tmp_path / "net.npz"
    model.write_bytes(b"no model")
    np.savez(inputs, x=np.ones(1, np.float32))
    words = ["--model", str(model), "--inputs", str(inputs), "--json", "--calls", "1", "--contestants", "onnxruntime"]
    assert paced.main(words) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == [] and found["failed"] == {"net, onnxruntime": "a runner ended with 1"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--contestants", "tvm"], "there is no 'tvm'"),
        (["--neighbours", "3-nice7"], "there is no '3-nice7'"),
        (["--pauses", "soon"], "and not 'soon'"),
        (["--calls", "0"], "one call at least"),
        (["--model", "net.onnx"], "need --inputs"),
    ],
)
def test_what_it_cannot_do_is_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        paced.main(words)
    assert said in capsys.readouterr().err
