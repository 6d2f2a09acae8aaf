"""What a call costs: both calls are made, their answers compared, and a model that a tool does not take has a reason."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import call_overhead
from benchmarks.call_overhead import measured, signatures

SIGNATURES = {one.name: one for one in signatures()}


@pytest.mark.parametrize(
    ("backend", "kind"), [("onnxruntime", "strings"), ("openvino", "scalars"), ("torch", "open-outputs")]
)
def test_both_calls_give_the_same_answer(backend: str, kind: str) -> None:
    pytest.importorskip(backend)
    found = measured(backend, SIGNATURES[kind], 1, rounds=3)
    assert found.equal and not found.refused
    assert found.own_us > 0 and found.ours_us > 0
    low, high = found.interval_us
    assert low <= high


def test_what_a_tool_does_not_take_has_its_reason() -> None:
    pytest.importorskip("openvino")
    found = measured("openvino", SIGNATURES["strings"], 1, rounds=3)
    assert "STRING" in found.refused and not found.equal


def test_a_wrong_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    real = call_overhead.OWN["onnxruntime"]

    def wrong(*given: object) -> call_overhead.OwnCall:
        call = real(*given)  # type: ignore[arg-type]
        return lambda: [np.asarray(one) + 1 for one in call()]

    monkeypatch.setattr(call_overhead, "OWN", {"onnxruntime": wrong})
    assert not measured("onnxruntime", SIGNATURES["one-input"], 1, rounds=3).equal
