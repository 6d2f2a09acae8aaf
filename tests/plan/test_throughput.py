"""What a plan says of throughput: through JSON and back, and what is refused of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bricolage.base.codec import DecodeError, decode, encode
from bricolage.plan.throughput import ServingConfig, Throughput
from bricolage.work.implementation import Implementation

FAST = ServingConfig(
    "openvino f32, 2 streams of 1 thread", "openvino f32", "copies", 2, 1, 1, 100.0, (90.0, 110.0), 15.0, 21.0, 1e-7, True,
    raced=True, implementation=Implementation("openvino"),
)  # fmt: skip
SOON = ServingConfig(
    "native f32, 1 stream of 2 threads", "native f32", "copies", 1, 2, 1, 80.0, (70.0, 90.0), 10.0, 12.0, 0.0, True
)
LOST = ServingConfig("torch f32 queue", "torch f32", "queue", 0, 2, 1, reason="failed: it has no queue")
FOUND = Throughput(
    (FAST, SOON, LOST), FAST.name, FAST.name, 1.0, (1.0, 1.0), False, (FAST.name, SOON.name), 50.0, "batch"
)


@given(rate=st.floats(0, 1e15), late=st.floats(0, 1e18), streams=st.integers(0, 1024), batch=st.integers(1, 1 << 20))
def test_through_json_and_back(rate: float, late: float, streams: int, batch: int) -> None:
    server = ServingConfig("a", "b", "plan", streams, 1, batch, rate, (0.0, rate), late / 2, late, None, True)
    found = Throughput(
        (server, LOST), "a", LOST.name, 1.25, (1.1, 1.3), True, ("a",), no_batches="a row depends on others"
    )
    assert decode(Throughput, encode(found)) == found
    assert found.winner == server


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("chosen",), "nobody"),
        (("best_peer",), "nobody"),
        (("front",), ["nobody"]),
        (("ratio",), -1.0),
        (("ratio",), float("nan")),
        (("ratio_ci",), [1.0]),
        (("latency_limit_ms",), "50"),
        (("servers",), []),
        (("servers", 0, "rate"), -5.0),
        (("servers", 0, "rate"), None),
        (("servers", 0, "p99_ms"), None),
        (("servers", 0, "batch"), 0),
        (("servers", 0, "threads"), 0),
        (("servers", 0, "streams"), -1),
        (("servers", 0, "kind"), "magic"),
        (("servers", 0, "error"), -1e-3),
        (("servers", 0, "implementation"), "openvino"),
        (("servers", 1, "name"), FAST.name),
        (("servers", 1, "unknown"), 1),
    ],
)
def test_damaged_fields_are_refused(path: tuple[Any, ...], value: Any) -> None:
    damaged: Any = encode(FOUND)
    inner = damaged
    for word in path[:-1]:
        inner = inner[word]
    inner[path[-1]] = value
    with pytest.raises(DecodeError):
        decode(Throughput, damaged)
