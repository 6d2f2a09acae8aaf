"""How long a contestant is called untimed before its turn counts, and what a race keeps of both patterns of calls."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bricolage.base.options import Pattern
from bricolage.costs.database import Database
from bricolage.device.host import host
from bricolage.measure.call_patterns import settling_s
from bricolage.measure.measurer import Measurer
from bricolage.measure.pool import Pool
from bricolage.measure.probes import relu_region, vector
from bricolage.measure.race import race
from bricolage.measure.race_record import Race
from bricolage.measure.sample_timing import LoadedProgram, Sampler
from bricolage.measure.specs import CandidateSpec, Limits
from tests.measure.test_measurer import step


def course(times: list[float]) -> list[tuple[float, float]]:
    """Calls one after another: when each ended, and how long it took, ms."""
    ends = [sum(times[: index + 1]) for index in range(len(times))]
    return list(zip(ends, times, strict=True))


def test_a_program_that_is_steady_at_once_needs_one_call() -> None:
    assert settling_s(course([2.0] * 20)) == pytest.approx(2e-3)


def test_cold_calls_are_passed_over() -> None:
    found = settling_s(course([9.0, 7.0, 5.0, 4.0, *[2.0] * 30]))
    assert 16e-3 <= found <= 27e-3, "the median of three calls in a row is steady from the third or fourth on"


def test_one_lucky_call_is_not_steady() -> None:
    assert settling_s(course([9.0, 2.0, 9.0, 9.0, 9.0, *[2.0] * 30])) > 9e-3


def test_few_calls_say_nothing() -> None:
    assert settling_s([]) == 0.0
    assert settling_s(course([100.0, 90.0])) == pytest.approx(0.1)


@given(st.lists(st.floats(0.01, 100.0), max_size=60))
def test_it_is_a_time_of_the_course_and_bounded(times: list[float]) -> None:
    found = settling_s(course(times))
    assert 0.0 <= found <= max(0.25, times[0] / 1e3 if times else 0.0)


def test_a_long_turn_has_its_least_number_of_samples() -> None:
    calls: list[int] = []
    loaded = LoadedProgram(lambda: calls.append(1), None)
    sampler = Sampler()
    sampler.time(loaded, 1, 0.0)
    (samples,) = sampler.time(loaded, 1, 0.0, 0.0, 3)["rounds"]  # type: ignore[misc]
    assert len(samples) == 3
    (samples,) = sampler.time(loaded, 1, 0.0)["rounds"]  # type: ignore[misc]
    assert 1 <= len(samples) <= 10


def test_calls_after_pauses_are_single_ones() -> None:
    calls: list[int] = []
    loaded = LoadedProgram(lambda: calls.append(1), None)
    answer = Sampler().time_after_pauses(loaded, 4, 1e-3, 1 << 12)
    assert len(calls) == 4 == len(answer["rounds"][0]) == len(answer["waited"][0])  # type: ignore[index]


def run(pool: Pool, directory: Path, pattern: Pattern) -> Race:
    """Races two sleepers on a Relu, in two processes each."""
    region = relu_region(directory, "x", "y", 1024)
    specs = {
        name: CandidateSpec("relu", (step(backend, config, region),), ("y",), 1, True, host())
        for name, (backend, config) in {"slow": ("honest", "12"), "fast": ("twin", "6")}.items()
    }
    with Database() as database:
        measurer = Measurer(database, pool, directory, limits=Limits(10, 10), cores=2)
        inputs, expected = vector(directory, ("x",), 1024), vector(directory, ("y",), 1024, rectified=True)
        return race(measurer, specs, inputs, expected, 1e-6, rounds=4, seconds=60, processes=2, pattern=pattern)


@pytest.mark.parametrize("pattern", ["steady", "sparse"])
def test_both_patterns_are_kept_and_one_decides(pool: Pool, tmp_path: Path, pattern: Pattern) -> None:
    ran = run(pool, tmp_path, pattern)
    assert ran.pattern == pattern and ran.fastest == "fast" and set(ran.processes) == {0, 1}
    assert len(ran.others) == len(ran.rounds), "round by round"
    single, several = (ran.others, ran.rounds) if pattern == "steady" else (ran.rounds, ran.others)
    assert all(len(samples) == 1 for round_ in single for samples in round_.values()), "after each pause one call"
    assert all(len(samples) >= 3 for round_ in several for samples in round_.values())
    if ran.other_pattern.rounds:  # others may have disturbed all of them
        assert set(ran.other_pattern.rounds[0]) <= {"slow", "fast"}


def test_what_a_course_takes_is_not_taken_for_other_processes() -> None:
    """All that a race's workers compute while a round is watched is told, or a quiet machine looks busy."""
    sampler, loaded = Sampler(), LoadedProgram(lambda: sum(range(2000)), None)
    begun = time.process_time()
    told = [
        sampler.time(loaded, 1, 0.0),
        sampler.follow_course(loaded, 0.02),
        sampler.time_after_pauses(loaded, 2, 1e-3, 64),
    ]
    spent = time.process_time() - begun
    assert sum(float(str(answer["processor_s"])) for answer in told) == pytest.approx(spent, rel=0.2)
