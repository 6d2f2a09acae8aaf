"""Runs a sweep: lanes that can be one are grouped, the ways to train a group are timed while they train, and the fastest goes on.

Training as one must win: where one after another is as fast, within the noise and 2 %, lanes stay apart and the report says
so.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Literal, TypeAlias, get_args

from bricolage.base.options import available_cores
from bricolage.base.progress import Progress, Silent
from bricolage.base.torch_library import load_torch
from bricolage.costs.latency import Latency
from bricolage.errors import BadOption, NotFusible
from bricolage.measure.statistics import Ratio, significant
from bricolage.measure.turns import Turns, time_in_turns
from bricolage.train.fuse.alone import Judge, LaneResult
from bricolage.train.fuse.capacity import within
from bricolage.train.fuse.contestants import GroupTrainer, Here, Outcome, Serial
from bricolage.train.fuse.lane_check import compare_lanes
from bricolage.train.fuse.lane_groups import Group, group
from bricolage.train.fuse.sweep import Sweep
from bricolage.train.fuse.sweep_data import count_steps, load_data
from bricolage.train.step.data import Data

if TYPE_CHECKING:
    import torch

How: TypeAlias = Literal["auto", "serial", "fused", "processes", "fused-processes"]
HOWS: tuple[How, ...] = get_args(How)
ROUNDS = 5
_LEAST_S, _MOST_S = 0.05, 0.5
"""Of one turn of a contestant."""
_SHARE = 0.02
"""Part of the predicted time that one turn takes."""
_PROCESSES_FROM_S = 20.0
"""Predicted time from which on processes, which take some seconds to start, are tried."""
_FUSING_FROM_S = 1.0
"""The same for fusing, whose graphs take about a second."""


@dataclass(frozen=True)
class Speed:
    """Samples a second of all lanes together: the median over rounds with its 95 % interval."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, found: Latency) -> Speed:
        """From milliseconds for one sample."""
        return cls(1e3 / found.median_ms, 1e3 / found.high_ms, 1e3 / found.low_ms)


@dataclass(frozen=True)
class Trained:
    """How a group was trained."""

    lanes: tuple[str, ...]
    how: str
    """ "serial", "fused", "processes" or "fused processes"."""
    reason: str
    """Why."""
    speeds: Mapping[str, Speed] = field(default_factory=dict)
    """By contestant, where they were timed."""
    ways: Mapping[str, str] = field(default_factory=dict)
    """How operators were computed for all lanes, by their place in the graph."""
    seconds: float = 0.0


@dataclass(frozen=True)
class Swept:
    """A sweep that was trained. Its weights are apart: `FusedSweep.states`."""

    lanes: tuple[LaneResult, ...]
    groups: tuple[Trained, ...]
    seconds: float


@dataclass
class FusedSweep:
    """A report and, by lane, the state of each module."""

    report: Swept
    states: dict[str, dict[str, torch.Tensor]]

    def save(self, lane: str, file: IO[bytes]) -> None:
        """Writes the state of a lane's module, for `torch.load` and `Module.load_state_dict`."""
        load_torch().save(self.states[lane], file)


def parse_how(word: str) -> How:
    """The way to train of a word.

    Raises:
        BadOption: there is none.
    """
    for how in HOWS:
        if how == word:
            return how
    raise BadOption(option="--how", value=word, advice=f"Use one of {', '.join(HOWS)}")


Make: TypeAlias = "Callable[[], GroupTrainer]"


def train_sweep(
    sweep: Sweep,
    how: How = "auto",
    threads: int | None = None,
    progress: Progress | None = None,
    *,
    memory_limit: int | None = None,
    judge: Judge | None = None,
) -> FusedSweep:
    """Trains all lanes of a sweep.

    Args:
        sweep: step, data and lanes.
        how: "auto" times the ways to do it and takes the fastest; or one of them. Lanes that cannot be one are trained apart.
        threads: cores to use; all by default.
        progress: told about samples.
        memory_limit: bytes that a process which trains lanes as one may hold; by default most of what is free. Groups that need
            more are cut, by dry runs.
        judge: asked after each epoch of a lane, which it may give up. Lanes are trained in this process then.

    Raises:
        MissingLibrary: PyTorch is not installed.
        BadTrainingCode: a function that the training step names is not there, fails, or returns something else than it should.
        TrainingWorkerFailed: a process that trains lanes ends.
    """
    torch = load_torch()
    shown = progress if progress is not None else Silent()
    cores = threads or available_cores()
    began, kept = time.perf_counter(), torch.get_num_threads()
    try:
        data = load_data(sweep)
        shown.start("comparing graphs")
        apart = how in ("serial", "processes")
        groups = [Group(sweep.lanes, (), "as asked")] if apart else group(data, sweep.lanes)
        if not apart:
            groups = [
                part for lane_group in groups for part in within(sweep, data, lane_group, memory_limit, cores, shown)
            ]
        samples = sum(count_steps(lane, data) * lane.batch_size for lane in sweep.lanes)
        shown.start("training (samples)", samples)
        outcome, trained = Outcome(), []
        for lane_group in groups:
            group_outcome, group_report = _train(sweep, data, lane_group, how, cores, shown, judge)
            outcome.add(group_outcome)
            trained.append(group_report)
        shown.finish()
    finally:
        torch.set_num_threads(kept)
    results = tuple(outcome.results[lane.name] for lane in sweep.lanes)
    return FusedSweep(Swept(results, tuple(trained), time.perf_counter() - began), outcome.states)


def _train(
    sweep: Sweep, data: Data, one: Group, how: str, cores: int, progress: Progress, judge: Judge | None
) -> tuple[Outcome, Trained]:
    began = time.perf_counter()
    names = tuple(lane.name for lane in one.lanes)
    makers = _makers(sweep, data, one, cores, judge)
    speeds: dict[str, Speed] = {}
    samples = sum(count_steps(lane, data) * lane.batch_size for lane in one.lanes)
    if how == "auto":
        chosen, speeds, reason = _fastest(makers, one, samples, cores)
    else:
        chosen, reason = _make_requested(makers, one, how.replace("-", " "))
    try:
        outcome = chosen.finish(progress.advance)
    finally:
        chosen.close()
    ways = {}
    if isinstance(chosen, Here):
        ways = {name: f"{choice.operator}: {choice.way}" for name, choice in chosen.ways.items() if choice.ms}
    label = chosen.how
    return outcome, Trained(names, label, reason, speeds, ways, time.perf_counter() - began)


def _make_requested(makers: Mapping[str, Make], one: Group, wanted: str) -> tuple[GroupTrainer, str]:
    """The contestant that was asked for, or one after another, and why."""
    if wanted.startswith("fused") and (one.reason or len(one.lanes) == 1):
        return makers["serial"](), one.reason or "it is alone in its group"
    try:
        return makers[wanted](), "as asked"
    except NotFusible as error:
        return makers["serial"](), str(error.facts["reason"])


class _Compared:
    """A group as it is compared with its lanes alone, once, before it is first trained as one."""

    def __init__(self, data: Data, one: Group, threads: int) -> None:
        self._data, self._group, self._threads = data, one, threads
        self._ways: dict[str, str] | None = None
        self._refused: NotFusible | None = None

    def ways(self) -> dict[str, str]:
        """How operators were computed, by node.

        Raises:
            NotFusible: as one, the lanes would not come out as if trained alone.
        """
        if self._ways is None and self._refused is None:
            load_torch().set_num_threads(self._threads)
            try:
                self._ways = compare_lanes(self._data, self._group)
            except NotFusible as error:
                self._refused = error
        if self._refused is not None:
            raise self._refused
        return self._ways or {}


def _makers(sweep: Sweep, data: Data, one: Group, cores: int, judge: Judge | None) -> dict[str, Make]:
    from bricolage.train.fuse.processes import InProcesses

    names = tuple(lane.name for lane in one.lanes)
    first = _Compared(data, one, cores)

    def here(threads: int, how: str) -> GroupTrainer:
        ways = first.ways()
        return Here(data, one, threads, how, ways if threads == cores else None, judge, cores > 1)

    def fused_processes() -> GroupTrainer:
        first.ways()
        return InProcesses(sweep, names, cores, "fused")

    makers: dict[str, Make] = {
        "serial": lambda: Serial(data, one, cores, judge=judge),
        "serial, 1 thread": lambda: Serial(data, one, 1, "serial, 1 thread", judge),
        "fused": lambda: here(cores, "fused"),
        "fused, 1 thread": lambda: here(1, "fused, 1 thread"),
    }
    if judge is not None:
        return makers
    return {
        **makers,
        "processes": lambda: InProcesses(sweep, names, cores, "serial"),
        "fused processes": fused_processes,
    }


def _fastest(
    makers: Mapping[str, Make], one: Group, samples: int, cores: int
) -> tuple[GroupTrainer, dict[str, Speed], str]:
    """The contestant to go on with, what was measured, and why it is this one."""
    racers: dict[str, GroupTrainer] = {}
    several = ["serial", "serial, 1 thread"] if cores > 1 else ["serial"]
    _make(racers, several, makers, _LEAST_S)
    first = _time_racers(racers, _LEAST_S, 2)
    base = min(several, key=lambda name: min(first.samples(name), default=[math.inf]))
    if not first.samples(base):
        return racers[base], {}, "it was over before anything could be timed"
    predicted = samples * min(first.samples(base))[0] / 1e3
    reason = one.reason
    if predicted < _FUSING_FROM_S and not reason:
        reason = f"one after another takes {predicted:.1f} s: too little to make anything ready for"
    racing = [base]
    if not one.reason and len(one.lanes) > 1 and predicted >= _FUSING_FROM_S:
        racing += ["fused", "fused, 1 thread"] if cores > 1 else ["fused"]
    if "processes" in makers and cores > 1 and len(one.lanes) > 1 and predicted >= _PROCESSES_FROM_S:
        racing += ["processes", "fused processes"] if not one.reason and len(one.lanes) > cores else ["processes"]
    failed: dict[str, str] = {}
    speeds: dict[str, Speed] = {}
    ratio: Ratio | None = None
    chosen = base
    if len(racing) > 1:
        turn = min(_MOST_S, max(_LEAST_S, predicted * _SHARE / len(racing)))
        failed = _make(racers, racing, makers, turn)
        turns = _time_racers({name: racers[name] for name in racing if name in racers}, turn, ROUNDS)
        whole = [name for name in racing if len(turns.samples(name)) == ROUNDS]
        speeds = {name: Speed.of(turns.latency(name)) for name in whole}
        chosen = max(speeds, key=lambda name: speeds[name].median, default=base)
        ratio = turns.ratio(chosen, base) if chosen != base and base in speeds else None
    if ratio is not None:
        if not significant(ratio):
            reason, chosen = f"{chosen} is not surely faster than one after another ({ratio})", base
        else:
            reason = reason or f"{ratio} as fast as one after another"
    elif not reason and not failed:
        reason = "nothing is faster than one after another"
    if failed:  # what cannot be trained as one, for one reason however many threads it has
        reason = "; ".join(filter(None, dict.fromkeys((reason, *failed.values()))))
    for name, racer in racers.items():
        if name != chosen:
            racer.close()
    return racers[chosen], speeds, reason


def _time_racers(racers: Mapping[str, GroupTrainer], seconds: float, rounds: int) -> Turns:
    """Milliseconds for one sample, of contestants in turns of some seconds."""

    def turn(racer: GroupTrainer) -> Sequence[float]:
        samples, spent = racer.run(seconds)
        return (spent * 1e3 / samples,) if samples else ()

    return time_in_turns({name: functools.partial(turn, racer) for name, racer in racers.items()}, rounds)


def _make(
    racers: dict[str, GroupTrainer], names: Sequence[str], makers: Mapping[str, Make], turn: float
) -> dict[str, str]:
    """Makes contestants ready that are not yet; why some cannot take part."""
    failed: dict[str, str] = {}
    for name in names:
        if name in racers:
            continue
        try:
            racers[name] = makers[name]()
            racers[name].run(0.0 if name.startswith("serial") else turn / 10)
        except NotFusible as error:
            failed[name] = str(error.facts["reason"])
            racers.pop(name, None)
    return failed
