"""The race: whole programs against each other, each in a process of its own (or several, one after another), in interleaved
rounds."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from bricolage.base.options import Pattern
from bricolage.costs.entries import Cost
from bricolage.device import memory
from bricolage.measure.call_patterns import CallPatterns
from bricolage.measure.candidate_job import Job
from bricolage.measure.measurer import Measurer, cost_of
from bricolage.measure.race_record import Race, join_race_parts, name_disturbed
from bricolage.measure.rounds import job_latency, take_turn, track_machine
from bricolage.measure.specs import CandidateSpec, RegionTask, Stop, TimingPolicy, never
from bricolage.measure.turns import take_turns
from bricolage.verify.variations import Variation

_LOG = logging.getLogger(__name__)
_PROBE = 7
_LONG_PROBE = 3
"""The same where turns are long."""
_HOPELESS = 1.25
"""After `_PROBE` rounds a contestant retires when even its best case is this much slower than the leader's worst."""
_FIRST_NEED = 512 << 20
"""Free memory, bytes, that a contestant is given before any has shown what it needs."""
_GROWTH = 1.25
_BEATEN = 1.1
"""Who was slower than the leader by more than this beyond the noise does not start again in another process: one process runs the
same program up to a few percent faster than another."""


@dataclass
class _Runner:
    name: str
    job: Job
    rounds: list[tuple[int, tuple[float, ...], bool]]
    """(number of the round, samples, whether others disturbed them)."""
    others: dict[int, tuple[float, ...]] = field(default_factory=dict)
    """By round, undisturbed samples of the pattern of calls that does not decide."""


def race(
    measurer: Measurer,
    contestants: Mapping[str, CandidateSpec],
    inputs: Path,
    expected: Path | None,
    bound: float,
    *,
    rounds: int = 25,
    seconds: float = 25.0,
    warm_s: float = 0.3,
    incumbent: str | None = None,
    progress: Callable[[str, int], None] | None = None,
    should_stop: Stop = never,
    processes: int = 1,
    left: Callable[[], float] = lambda: 0.0,
    files: Mapping[str, tuple[Path, Path]] | None = None,
    variations: Sequence[Variation] = (),
    tasks: Mapping[str, RegionTask] | None = None,
    pattern: Pattern | None = None,
) -> Race:
    """Races contestants (name → program) for `rounds` rounds or `seconds` seconds, whichever ends first; the seconds
    hold the time in which contestants get ready, but everyone has the few rounds in any case after which the hopeless
    retire.

    All are compiled and checked against `expected` first; who is wrong does not race. When memory is short they race in
    heats, the incumbent (by default the first contestant) in each of them. Who is clearly beaten retires early, the
    incumbent never. `progress` hears the name and the number of rounds of the one that has just run. With several `processes`,
    everyone starts afresh that many times, each time for its part of the rounds; but who failed (other than by being ended
    from outside), took longer to get ready than such a part lasts, or is slower than the fastest by more than a tenth beyond the
    noise, does not start again. Where that leaves one, the race is over. Where others disturbed the race so
    much that it is open who is fastest, those who may be go on, part by part, as long as `left` gives seconds for another,
    and at most for as long again. `files` are inputs and expected outputs of contestants that have others; `variations`, other
    inputs on which the rest must be right. `tasks` are what contestants are judged by that have a reference of their own. With a
    `pattern`, contestants are called as users call them (`call_patterns`): steadily and after pauses, and that pattern decides.
    Nothing is stored: see `Database.put_race`.
    """
    leader = incumbent if incumbent is not None else next(iter(contestants), None)
    part_s, each = seconds / processes, -(-rounds // processes)
    once = partial(
        _once,
        measurer,
        inputs=(inputs, expected),
        bound=bound,
        policy=TimingPolicy(each, each, warm_s, seconds=part_s, run_s=measurer.limits.run_s),
        leader=leader,
        fresh=processes > 1,
        progress=progress,
        should_stop=should_stop,
        files=files or {},
        variations=tuple(variations),
        tasks=tasks or {},
        patterns=None if pattern is None else CallPatterns(pattern),
    )
    ran = join_race_parts(_in_parts(once, contestants, leader, processes, part_s, left, should_stop))
    return replace(ran, incumbent=leader or "", pattern=pattern or "steady")


def _in_parts(
    once: Callable[[Mapping[str, CandidateSpec]], Race],
    contestants: Mapping[str, CandidateSpec],
    leader: str | None,
    processes: int,
    part_s: float,
    left: Callable[[], float],
    should_stop: Stop,
) -> list[Race]:
    """The parts of a race, `part_s` seconds each: one for each of the processes, and more where it is open who is fastest."""
    begun, again, parts = time.monotonic(), dict(contestants), list[Race]()
    while not parts or (len(parts) < processes and leader in again and len(again) > 1 and not should_stop()):
        parts.append(once(again))
        costs, beaten = parts[-1].costs, _beaten(parts, again, leader)
        again = {
            name: spec
            for name, spec in again.items()
            if (cost := costs.get(name)) is not None
            and name not in beaten
            and (cost.outcome == "lost" or (cost.outcome == "ok" and cost.compile_s <= part_s))
        }
    end = 2 * time.monotonic() - begun
    while not should_stop():
        ran = join_race_parts(parts)
        wanted = {*ran.undecided, leader} if ran.undecided else set()
        again = {name: spec for name, spec in again.items() if name in wanted}
        if len(again) < 2 or leader not in again or left() < part_s or time.monotonic() >= end:
            break
        parts.append(once(again))
    return parts


def _beaten(parts: Sequence[Race], names: Iterable[str], leader: str | None) -> set[str]:
    """Those that the fastest has left behind so far that another process cannot change it. The leader is none of them."""
    ran = join_race_parts(parts)
    best = ran.fastest
    beaten: set[str] = set()
    if best is None or ran.noisy(best):
        return beaten
    for name in names:
        ratio = ran.ratio(best, name) if name not in (best, leader) else None
        if ratio is not None and ratio.low > _BEATEN and not ran.noisy(name):
            beaten.add(name)
    return beaten


def _once(
    measurer: Measurer,
    contestants: Mapping[str, CandidateSpec],
    *,
    inputs: tuple[Path, Path | None],
    bound: float,
    policy: TimingPolicy,
    leader: str | None,
    fresh: bool,
    progress: Callable[[str, int], None] | None,
    should_stop: Stop,
    files: Mapping[str, tuple[Path, Path]],
    variations: tuple[Variation, ...],
    tasks: Mapping[str, RegionTask],
    patterns: CallPatterns | None,
) -> Race:
    """A race in which everyone has one process; with `fresh`, one whose memory lies otherwise than in the others."""
    ordered = sorted(contestants, key=lambda name: name != leader)
    runners = [
        _Runner(
            name,
            measurer.job(
                spec := contestants[name],
                *(files.get(name, inputs) if task is None else (task.inputs, task.expected)),
                bound if task is None else task.bound,
                owner=f"race {name}",
                fresh=fresh,
                variations=() if name in files or spec.serving is not None else _choose_variations(task, variations),
            ),
            [],
        )
        for name, task in ((name, tasks.get(name)) for name in ordered)
    ]
    waiting = list(runners)
    end = time.monotonic() + policy.seconds
    heat: list[_Runner] = []
    count = 0
    try:
        while waiting and not should_stop():
            heat = [runner for runner in heat if runner.job.ready]
            loaded = _fill(measurer, heat, waiting, should_stop)
            heat += [runner for runner in loaded if runner.job.ready]
            if len(heat) > 1 or any(not runner.rounds for runner in heat):
                share = max(0.0, end - time.monotonic()) * len(heat) / max(1, len(heat) + len(waiting))
                heat_policy = replace(policy, seconds=share)
                count = _run_heat(measurer, heat, heat_policy, leader, count, progress, should_stop, patterns=patterns)
            for runner in heat:
                if runner.name != leader:
                    measurer.pool.end(runner.job.regime)
            heat = [runner for runner in heat if runner.name == leader]
    finally:
        for runner in runners:
            measurer.pool.end(runner.job.regime)
    return _result(runners, count)


def _choose_variations(own: RegionTask | None, variations: tuple[Variation, ...]) -> tuple[Variation, ...]:
    return variations if own is None else own.variations() if own.variations is not None else ()


def _fill(measurer: Measurer, heat: Sequence[_Runner], waiting: list[_Runner], should_stop: Stop) -> list[_Runner]:
    """Loads contestants as long as memory lasts, some at a time; the incumbent and one
    more in any case, or the race would never end."""
    loaded: list[_Runner] = []
    together = measurer.loader.cores
    while waiting and not should_stop():
        living = [r for r in (*heat, *loaded) if r.job.ready and r.job.worker is not None]
        held = [r.job.worker.resident() for r in living if r.job.worker is not None]
        need = int(max(held) * _GROWTH) if held else _FIRST_NEED
        room = max(0, memory.available_bytes() - memory.reserve_bytes()) // need
        if room < 1 and len(living) > 1:
            _LOG.info("memory is short: %d contestants wait for the next heat", len(waiting))
            break
        batch = [waiting.pop(0) for _ in range(max(1, min(together, room, len(waiting))))]
        measurer.loader.load([runner.job for runner in batch], should_stop)
        loaded += batch
    return loaded


def _run_heat(
    measurer: Measurer,
    heat: Sequence[_Runner],
    policy: TimingPolicy,
    leader: str | None,
    count: int,
    progress: Callable[[str, int], None] | None,
    should_stop: Stop,
    patterns: CallPatterns | None,
) -> int:
    """Runs one heat and returns the number of rounds so far."""
    end = time.monotonic() + policy.seconds
    pool, log, cores = measurer.pool, measurer.log, heat[0].job.spec.device.cores
    number = count

    def remaining(done: int, running: list[_Runner]) -> Sequence[_Runner]:
        nonlocal number
        number = done
        going = [runner for runner in running if runner.job.ready] if done > count else running
        if done - count >= (_PROBE if patterns is None else _LONG_PROBE):
            going = _in_the_running(going, leader)
            if time.monotonic() > end:
                return ()
        return () if done - count >= policy.rounds or should_stop() else going

    def turn(runner: _Runner) -> None:
        if patterns is not None and runner.job.spec.serving is None:
            done, runner.others[number] = patterns.take_turn(pool, runner.job, log, policy.run_s, runner.name)
        else:
            done = take_turn(pool, runner.job, log, policy)
        if done:
            runner.rounds.append((number, tuple(runner.job.rounds[-1]), runner.job.disturbed[-1]))
            if progress is not None:
                progress(runner.name, len(runner.rounds))

    with pool.exclusive():
        return take_turns(heat, turn, remaining, first=count, around=lambda: track_machine(log.tally, cores))


def _in_the_running(running: Sequence[_Runner], leader: str | None) -> list[_Runner]:
    if not running:
        return []
    best = min((job_latency(runner.job) for runner in running), key=lambda latency: latency.median_ms)
    return [r for r in running if r.name == leader or job_latency(r.job).low_ms <= _HOPELESS * best.high_ms]


def _result(runners: Sequence[_Runner], count: int) -> Race:
    rounds: list[dict[str, tuple[float, ...]]] = [{} for _ in range(count)]
    disturbed: list[set[str]] = [set() for _ in range(count)]
    costs: dict[str, Cost] = {}
    for runner in runners:
        for number, samples, bad in runner.rounds:
            rounds[number][runner.name] = samples
            disturbed[number] |= {runner.name} if bad else set()
        if runner.job.state == "lost" and not runner.job.rounds:
            runner.job.fail("lost", "its process was ended from outside")
        if runner.job.state == "failed" or runner.job.rounds:
            costs[runner.name] = cost_of(runner.job)
    first = {runner.name: runner.job.first_ms for runner in runners if runner.job.first_ms is not None}
    served = {runner.name: runner.job.served for runner in runners if runner.job.latencies}
    others: list[dict[str, tuple[float, ...]]] = [{} for _ in range(count)]
    for runner in runners:
        for number, samples in runner.others.items():
            if samples:
                others[number][runner.name] = samples
    return Race(
        tuple(rounds), costs, first, (), name_disturbed(disturbed), served, others=tuple(others) if any(others) else ()
    )
