from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.serving import neighbours


def test_ratios_are_those_of_the_peers_to_ours() -> None:
    ours, slow = [[1.0, 1.0, 3.0], [1.0, 1.0, 1.0]], [[2.0, 2.0, 2.0], [3.0, 2.0, 9.0]]
    row = neighbours.compared({"bricolage": ours, "onnxruntime": slow, "openvino": ours})
    assert row["median_ms"] == {"bricolage": 1.0, "onnxruntime": 2.0, "openvino": 1.0}
    assert row["median_ratio"] == {"onnxruntime": 2.0, "openvino": 1.0}
    assert row["p99_ms"]["bricolage"] == pytest.approx(2.9)
    assert row["p99_ratio"]["onnxruntime"] == pytest.approx(8.7 / 2.9, rel=1e-2)
    assert row["median_ratio_of_rounds"]["onnxruntime"][0] == 2.5, "of 2 and 3"
    assert row["calls"] == {"bricolage": 6, "onnxruntime": 6, "openvino": 6}
    words = neighbours.words_of({"workload": "w", "neighbours": "quiet", "ships": "native", **row})
    assert "onnxruntime 2, p99 8.7: 2.00 times" in words


def test_a_runner_answers_when_it_is_asked_and_is_stopped_otherwise() -> None:
    with neighbours.running([], ["numpy"]) as runner:
        for _ in range(2):
            (times,) = runner.ask("turn", 0.0, "numpy")
            assert len(times) >= 5 and min(times) > 0
            state = Path(f"/proc/{runner._process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
            assert state in "TR", "stopped, or about to be"
    assert runner._process.returncode is not None


def test_a_runner_that_ends_says_so(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="a runner ended with 1"), neighbours.running([(tmp_path, tmp_path)]):
        pass


def test_unknown_neighbours_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        neighbours.main(["--neighbours", "3-nice7"])
    assert "there are no neighbours '3-nice7'" in capsys.readouterr().err
