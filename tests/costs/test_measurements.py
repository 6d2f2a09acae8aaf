"""What was measured of regions, as a model of costs."""

from __future__ import annotations

from bricolage.costs.entries import Cost
from bricolage.costs.latency import Latency
from bricolage.costs.measurements import Measurement, Measurements
from bricolage.costs.models.roofline import NOMINAL
from bricolage.work.cost import Estimate, Work
from bricolage.work.implementation import Implementation

A, B, C = Implementation("a"), Implementation("b"), Implementation("c")
FAST, SLOW, FAILED = Cost("ok", Latency(1.0, 0.9, 1.2, 7)), Cost("ok", Latency(2.0, 1.9, 2.2, 7)), Cost("crashed")
FOUND = Measurements([Measurement("x", A, SLOW), Measurement("x", B, FAILED), Measurement("y", B, FAST)])


def test_a_region_is_known_on_its_implementations() -> None:
    assert FOUND.of("x") == {A: SLOW, B: FAILED} and not FOUND.of("z") and len(FOUND) == 3
    assert FOUND.fastest_ms("x", [A, B]) == 2.0 and FOUND.fastest_ms("x", [B, C]) is None
    assert sorted(one.region for one in FOUND) == ["x", "x", "y"]


def test_the_last_measurement_counts() -> None:
    again = Measurements(FOUND)
    again.add([Measurement("x", A, FAST)])
    assert again.fastest_ms("x", [A]) == 1.0 and len(again) == 3


def test_estimates_are_latencies_and_failures_have_none() -> None:
    works = [Work(implementation=one, key=key) for key, one in (("x", A), ("x", B), ("y", B), ("y", C), ("z", A))]
    found = FOUND.estimate([*works, Work(key="x")], NOMINAL)
    assert found == [
        Estimate(2.0, 1.9, 2.2, "measured"),
        None,
        Estimate(1.0, 0.9, 1.2, "measured"),
        None,
        None,
        None,
    ]
