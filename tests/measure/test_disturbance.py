"""What other processes do is seen, and nothing else. The machine may be busy while these tests run: what is compared holds then,
too."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.tools.load import busy
from bricolage.device.host import select_device
from bricolage.measure.candidate_job import Job
from bricolage.measure.disturbance import DISTURBED, DisturbanceWatch, ProcessReading, Tally, machine, waited_share
from bricolage.measure.loading import Loader
from bricolage.measure.log import MeasurementLog
from bricolage.measure.pool import Pool
from bricolage.measure.probes import relu_region, vector
from bricolage.measure.rounds import compare_jobs, is_disturbed
from bricolage.measure.specs import CandidateSpec, Limits, TimingPolicy
from tests.measure.test_measurer import step

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the counters are Linux's")
MS = 1_000_000


# --- from readings to a share ---------------------------------------------------------------------------------------


def reading(wall: float, processor: float, waited: float | None, turns: int = 0, preempted: int = 0) -> ProcessReading:
    """From milliseconds."""
    return ProcessReading(
        round(wall * MS), round(processor * MS), None if waited is None else round(waited * MS), turns, preempted
    )


START = reading(5.0, 3.0, 1.0)


def later(wall: float, processor: float, waited: float | None, turns: int = 0, preempted: int = 0) -> ProcessReading:
    start = reading(5.0, 3.0, 1.0) if waited is not None else reading(5.0, 3.0, None)
    end = reading(5.0 + wall, 3.0 + processor, None if waited is None else 1.0 + waited, turns, preempted)
    return replace(end, wall_ns=start.wall_ns + round(wall * MS))


def test_waiting_for_others_is_a_share_of_the_time() -> None:
    assert waited_share(START, later(10, 8, 2), 1) == pytest.approx(0.2)
    assert waited_share(START, later(10, 10, 0), 1) == 0.0
    assert waited_share(START, later(10, 6, 12), 2) == pytest.approx(1.2), "two threads waited"


def test_threads_that_wait_for_each_other_wait_for_nobody_else() -> None:
    """Four threads of one process on two processors that nobody else uses."""
    assert waited_share(START, later(10, 20, 20), 2) == 0.0
    assert waited_share(START, later(10, 15, 20), 2) == pytest.approx(0.5), "others had a quarter of both processors"


def test_what_waking_takes_does_not_count() -> None:
    assert waited_share(START, later(10, 10, 3, turns=20), 2) == 0.0
    assert waited_share(START, later(10, 10, 5, turns=20), 2) == pytest.approx(0.2)


def test_where_run_queues_are_not_counted_preemptions_are() -> None:
    before = reading(5.0, 3.0, None)
    assert waited_share(before, later(10, 4, None, preempted=1), 1) == pytest.approx(0.3)
    assert waited_share(before, later(10, 10, None, preempted=9), 1) == 0.0, "it missed nothing"
    assert waited_share(before, later(10, 5, None), 1) == 0.0, "it slept"


@given(
    st.floats(0.001, 1e4), st.floats(0, 1e4), st.none() | st.floats(0, 1e5), st.integers(0, 1000), st.integers(1, 64)
)
def test_a_share_is_never_negative_nor_more_than_what_was_missed(
    wall: float, processor: float, waited: float | None, turns: int, cores: int
) -> None:
    before = START if waited is not None else reading(5.0, 3.0, None)
    share = waited_share(before, later(wall, processor, waited, turns, turns), cores)
    assert 0.0 <= share <= cores


# --- the counters of this machine -----------------------------------------------------------------------------------

_BURNER = """
import os, sys, time
sys.path[:0] = {path!r}
os.sched_setaffinity(0, {{{core}}})
from bricolage.measure.disturbance import DisturbanceWatch, waited_share
watch = DisturbanceWatch()
before, end = watch.read(), time.process_time() + 0.15
while time.process_time() < end:
    pass
burnt, middle = watch.read(), watch.read()
time.sleep(0.3)
slept = watch.read()
print(waited_share(before, burnt, 1), waited_share(middle, slept, 1), (burnt.wall_ns - before.wall_ns) / 1e9)
"""


def _burn(core: int) -> tuple[float, float, float]:
    """Shares of a process of its own that computes, then sleeps, on one processor; and seconds that computing took."""
    code = _BURNER.format(path=sys.path, core=core)
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, encoding="utf-8"
    ).stdout
    first, second, seconds = map(float, printed.split())
    return first, second, seconds


@linux
def test_who_computes_beside_a_busy_process_waits_and_who_sleeps_does_not() -> None:
    core = min(os.sched_getaffinity(0))
    with busy("1-nice0") as (neighbour,):
        os.sched_setaffinity(neighbour, {core})
        computed, slept, seconds = _burn(core)
    assert computed > 10 * DISTURBED, "two compute on one processor"
    assert computed == pytest.approx(1 - 0.15 / seconds, abs=0.15), "what it waited is what it did not compute"
    assert slept < 0.5, "it may wait when it wakes, but it wants no processor before"


@linux
def test_a_watch_follows_threads_and_survives_their_end() -> None:
    watch, stop = DisturbanceWatch(), threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    watch.follow()
    with_thread = watch.read()
    assert with_thread.waited_ns is not None and with_thread.turns > 0
    stop.set()
    thread.join()
    assert watch.read().waited_ns is not None
    watch.follow()
    assert len(watch._files) == len(os.listdir("/proc/self/task"))
    watch.close()
    assert watch.read().waited_ns is None


def test_absent_counters_are_said_to_be_absent(tmp_path: Path) -> None:
    found = DisturbanceWatch(tmp_path / "nothing").read()
    assert found.waited_ns is None and found.wall_ns > 0 and found.preempted >= 0
    nothing = machine((0,), tmp_path)
    assert nothing.busy_s is None and nothing.pressure_s is None and nothing.stolen_s == 0.0
    tally = Tally()
    tally.add_interval(nothing, replace(nothing, wall_s=nothing.wall_s + 1.0), 0.5, 1)
    assert tally.found.others == tally.found.stolen == tally.found.pressure == 0.0


def test_the_machine_is_counted_by_processor(tmp_path: Path) -> None:
    (tmp_path / "pressure").mkdir()
    (tmp_path / "pressure" / "cpu").write_text(
        "some avg10=1.0 avg60=1.0 avg300=1.0 total=2500000\nfull total=0\n", encoding="utf-8"
    )
    (tmp_path / "stat").write_text(
        "cpu  300 30 60 1000 5 3 6 40 0 0\ncpu0 100 10 20 500 5 1 2 30 0 0\ncpu1 200 20 40 500 0 2 4 10 0 0\nintr 1\n",
        encoding="utf-8",
    )
    tick = 1.0 / os.sysconf("SC_CLK_TCK")
    first, both, whole = (machine(cores, tmp_path) for cores in ((0,), (0, 1), ()))
    assert first.busy_s == pytest.approx(133 * tick) and first.stolen_s == pytest.approx(30 * tick)
    assert both.busy_s == pytest.approx(399 * tick) == whole.busy_s and both.pressure_s == 2.5
    end = replace(
        both, wall_s=both.wall_s + 10.0, busy_s=(both.busy_s or 0) + 15.0, stolen_s=both.stolen_s + 2.0, pressure_s=7.5
    )
    tally = Tally()
    tally.add_interval(both, end, 5.0, 2)
    tally.add_turn([0.0, 0.5, 0.01], 1, 0.2)
    found = tally.found
    assert (found.others, found.stolen, found.pressure) == (0.5, 0.1, 0.5)
    assert (found.samples, found.disturbed, found.repeated) == (3, 1, 1)


def test_a_machine_is_calm_until_others_take_their_share() -> None:
    still = machine((0,))
    start = replace(still, wall_s=0.0, busy_s=0.0, stolen_s=0.0)
    tally = Tally()
    assert tally.calm, "nothing speaks against it"
    tally.add_interval(start, replace(start, wall_s=1.0, busy_s=1.51), 1.5, 2)
    assert tally.calm, "a tick is no neighbour"
    tally.add_interval(start, replace(start, wall_s=1.0, busy_s=1.7), 1.5, 2)
    assert not tally.calm
    stolen = Tally()
    stolen.add_interval(start, replace(start, wall_s=1.0, busy_s=1.0, stolen_s=0.2), 1.0, 2)
    assert not stolen.calm
    unknown = Tally()
    unknown.add_interval(replace(start, busy_s=None), replace(start, wall_s=1.0, busy_s=None), 0.0, 2)
    assert not unknown.calm, "where it cannot be known, what waited counts"


# --- in a worker ----------------------------------------------------------------------------------------------------


@linux
def test_a_busy_neighbour_disturbs_what_a_worker_times(pool: Pool, tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    device = select_device("", (core,))
    region, inputs = relu_region(tmp_path, "x", "y", 1024), vector(tmp_path, ("x",), 1024)
    specs = [CandidateSpec("relu", (step("computes", ms, region),), ("y",), 1, True, device) for ms in ("20", "21")]
    jobs = [Job(spec, inputs, None, 1e-6, replace(spec.regime, owner=str(n))) for n, spec in enumerate(specs)]
    Loader(pool, tmp_path, 1, Limits(30, 30)).load(jobs)
    with busy("1-nice0") as (neighbour,):
        os.sched_setaffinity(neighbour, {core})
        log = MeasurementLog()
        compare_jobs(pool, jobs, log, TimingPolicy(rounds=6, most_rounds=9, seconds=300.0))
    assert all(job.ready and is_disturbed(job) for job in jobs), "20 ms are more than one slice of the scheduler"
    assert all(len(job.rounds) == len(job.disturbed) for job in jobs)
    assert max(len(job.rounds) for job in jobs) > 6, "who may be fastest and was disturbed has more rounds"
    found = log.tally.found
    assert found.disturbed > found.samples / 2 and found.others > 0.2
