"""Ways to answer requests: layouts of streams, and what a search makes of figures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bricolage.costs.entries import Cost
from bricolage.costs.latency import Latency
from bricolage.driver.serving import layouts
from bricolage.errors import NotBatchable
from bricolage.measure.request_rates import ServedLoad
from bricolage.plan.plan import TensorSpec
from bricolage.plan.planned_interface import batch_dimension


@given(st.integers(1, 300))
def test_layouts_use_no_more_cores_than_there_are(cores: int) -> None:
    found = layouts(cores)
    assert found[0] == (cores, 1) and found[-1] == (1, cores) and len(set(found)) == len(found)
    for streams, threads in found:
        assert streams * threads <= cores < (streams + 1) * threads, "no further stream would have room"
        assert threads == cores or threads.bit_count() == 1


def test_rates_are_of_requests_and_latencies_of_calls() -> None:
    served = ServedLoad.of(Cost("ok", Latency(0.5, 0.4, 0.8, 9)), [float(ms) for ms in range(1, 101)])
    assert served.rate == 2000 and served.rate_ci == (1250, 2500)
    assert served.p50_ms == pytest.approx(50.5) and served.p99_ms == pytest.approx(99.01)
    assert served.within(None) and served.within(99.1) and not served.within(99.0)


def test_who_failed_is_within_no_limit() -> None:
    served = ServedLoad.of(Cost("crashed", reason="SIGSEGV"), [])
    assert served.rate is None and served.rate_ci is None and not served.within(None)


@pytest.mark.parametrize(
    ("inputs", "outputs", "found"),
    [
        ([("n", 3)], [("n", 2)], "n"),
        ([("n", 3), ("n",)], [("n", 2), ("other", 4)], "n"),
        ([(1, 3)], [(1, 2)], None),
        ([("n", 3), ("m", 3)], [("n",)], None),
        ([("n", "n")], [("n",)], None),
        ([("n", 3)], [("m", "n")], None),
        ([("n", 3)], [(3,)], None),
        ([("n", 3), ()], [("n",)], None),
        ([("n", 3)], [None], None),
        ([None], [("n",)], None),
    ],
)
def test_the_batch_dimension(inputs: list[object], outputs: list[object], found: str | None) -> None:
    specs = [
        [TensorSpec(f"t{i}", "float32", shape) for i, shape in enumerate(shapes)]  # type: ignore[arg-type]
        for shapes in (inputs, outputs)
    ]
    if found is not None:
        assert batch_dimension("m", *specs) == found
        return
    with pytest.raises(NotBatchable):
        batch_dimension("m", *specs)
