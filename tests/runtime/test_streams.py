"""Calls side by side: order, failures, interruption, the end of the threads, and what a trace says."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable

import pytest

from bricolage.runtime.streams import Placed, RegionStreams

HAVE = tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else (0, 1)
FIRST, LAST = HAVE[0], HAVE[-1]
two_cores = pytest.mark.skipif(FIRST == LAST, reason="one core")


def noting(seen: list[int], number: int) -> Callable[[], None]:
    return lambda: seen.append(number)


@two_cores
def test_calls_on_disjoint_cores_run_at_the_same_time() -> None:
    meeting = threading.Barrier(2, timeout=20)  # passed only if both are there together
    streams = RegionStreams(
        [Placed(lambda: void(meeting.wait()), (FIRST,), ()), Placed(lambda: void(meeting.wait()), (LAST,), ())]
    )
    for _ in range(3):
        streams()


def void(_value: object) -> None:
    return None


@two_cores
def test_a_call_waits_for_what_it_is_told_and_for_its_thread() -> None:
    seen: list[int] = []
    placed = [
        Placed(noting(seen, 0), (FIRST,), ()),
        Placed(noting(seen, 1), (LAST,), (0,)),
        Placed(noting(seen, 2), (FIRST, LAST), (0, 1)),
        Placed(noting(seen, 3), (LAST,), (2,)),
        Placed(noting(seen, 4), (FIRST,), (2, 3)),
    ]
    streams = RegionStreams(placed)
    for _ in range(50):
        seen.clear()
        streams()
        assert seen == [0, 1, 2, 3, 4]


@two_cores
def test_a_failure_leaves_out_what_has_not_begun_and_the_next_run_is_whole() -> None:
    seen: list[int] = []
    broken = [True]

    def fails() -> None:
        if broken[0]:
            raise RuntimeError("the call failed")
        seen.append(0)

    streams = RegionStreams(
        [Placed(fails, (FIRST,), ()), Placed(noting(seen, 1), (LAST,), (0,)), Placed(noting(seen, 2), (FIRST,), ())]
    )
    with pytest.raises(RuntimeError, match="the call failed"):
        streams()
    assert not seen
    broken[0] = False
    streams()
    assert sorted(seen) == [0, 1, 2]


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system binds no threads")
def test_every_call_runs_on_its_cores_and_the_caller_stays_where_it_is() -> None:
    where: list[set[int]] = []
    placed = [Placed(lambda: where.append(os.sched_getaffinity(0)), cores, ()) for cores in ((FIRST,), HAVE, (FIRST,))]
    before = os.sched_getaffinity(0)
    RegionStreams(placed)()
    assert where == [{FIRST}, set(HAVE), {FIRST}] and os.sched_getaffinity(0) == before


@two_cores
def test_a_trace_says_what_ran_when_and_where() -> None:
    streams = RegionStreams([Placed(lambda: None, (FIRST,), ()), Placed(lambda: None, (LAST,), (0,))])
    spans = streams.traced()
    assert [span.step for span in spans] == [0, 1]
    assert spans[0].end_ns <= spans[1].start_ns and spans[0].thread != spans[1].thread
    if spans[0].core is not None:
        assert [span.core for span in spans] == [FIRST, LAST]
    streams()
    assert len(spans) == 2, "only one run is traced"


def test_the_threads_end_with_their_program() -> None:
    before = set(threading.enumerate())
    streams = RegionStreams([Placed(lambda: None, (core,), ()) for core in HAVE])
    streams()
    started = set(threading.enumerate()) - before
    assert len(started) == len(HAVE)
    del streams
    gc.collect()
    for thread in started:
        thread.join(20)
        assert not thread.is_alive()
