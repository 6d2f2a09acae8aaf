"""Every method that places operators on devices, by name, over one problem: its placement, its bound, and what it refuses.

Methods look for one of three things. `sample`: when one sample is done, operators one by one on each device, each edge moved on its
own. `load`: the time for each sample when samples follow one another through all devices, so that the busiest one counts. `blocks`:
when one sample is done where each accelerator runs one block of operators between moving in and moving out. Whatever a method looks
for, its placement is judged by all three.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, TypeAlias

from bricolage.errors import BadOption, BricolageError, DevicesTooSmall
from bricolage.search.devices.baechi import m_etf, m_sct, m_topo
from bricolage.search.devices.device_problem import DevicePlacementProblem, PlacedOperators, least_load, max_load
from bricolage.search.devices.fastt import dpos
from bricolage.search.devices.fractional_load import fractional_load
from bricolage.search.devices.genetic_placement import random_keys
from bricolage.search.devices.instance_schedule import device_names, schedule_of_sample
from bricolage.search.devices.learned_placement import LEARNED
from bricolage.search.devices.list_placement import by_readiness, cpop, heft, insert, peft, upward_ranks
from bricolage.search.devices.sample_latency import latency, latency_bound, least_latency
from bricolage.search.devices.solve import SEARCHES
from bricolage.search.schedules.certificates import lower_bound
from bricolage.search.schedules.schedule import SLACK, Schedule, check
from bricolage.search.schedules.scheduling_problem import ScheduleProblem

Goal: TypeAlias = Literal["sample", "load", "blocks"]
GOALS: tuple[Goal, ...] = ("sample", "load", "blocks")
ListMethod: TypeAlias = Callable[[ScheduleProblem, float], Schedule]
"""A problem, and seconds."""

LIST_METHODS: Mapping[str, ListMethod] = {
    "heft": lambda problem, _limit: heft(problem),
    "cpop": lambda problem, _limit: cpop(problem),
    "peft": lambda problem, _limit: peft(problem),
    "dpos": lambda problem, _limit: dpos(problem),
    "m-topo": lambda problem, _limit: m_topo(problem),
    "m-etf": lambda problem, _limit: m_etf(problem),
    "m-sct": lambda problem, _limit: m_sct(problem),
    "random-keys": lambda problem, limit: random_keys(problem, limit_s=limit),
}
"""Of one sample, on devices of any kind."""
LOAD_METHODS = {**SEARCHES, "reinforce": LEARNED["reinforce"], "eagle": LEARNED["ppo"]}
"""Of the busiest device, on alike accelerators around a host. Those that look for less are first."""
BLOCKS = "blocks"
METHODS = (*LIST_METHODS, *LOAD_METHODS, BLOCKS)
"""By name, in the order in which they run."""
_NEVER_FIT = "the devices' memories do not hold the operators, however they are placed"


@dataclass(frozen=True)
class PlacementCase:
    """Operators and devices, as methods take them.

    sample: operators one by one on each device. around: the same as alike accelerators around a host, its devices in the order of
    `names`; None where the devices are no such machine, for the reason `unlike`."""

    sample: ScheduleProblem
    names: tuple[str, ...]
    around: DevicePlacementProblem | None
    unlike: str = ""

    @staticmethod
    def of_instance(problem: DevicePlacementProblem) -> PlacementCase:
        """Of an instance of Tarnawski et al."""
        names = device_names(problem)
        return PlacementCase(schedule_of_sample(problem, names), names, problem)

    @cached_property
    def load_bound(self) -> float:
        """No placement has a device that is busy for less; infinite where memory holds the operators in no way."""
        around = 0.0 if self.around is None else least_load(self.around)
        return max(fractional_load(self.sample), around)

    @cached_property
    def sample_bound(self) -> float:
        """No placement is done with one sample sooner."""
        return max(self.load_bound, lower_bound(self.sample))

    @cached_property
    def blocks_bound(self) -> float:
        """No placement in blocks is done with one sample sooner; 0 where devices are no accelerators around a host."""
        return 0.0 if self.around is None else latency_bound(self.around)


@dataclass(frozen=True)
class MethodPlacement:
    """What one method makes of a case. Milliseconds; None where there is no such placement."""

    method: str
    goal: Goal
    devices: tuple[str, ...] = field(default=(), repr=False)
    """Of each operator; empty where it refuses."""
    bound_ms: float = 0.0
    """No placement of the kind that the method looks for takes less."""
    ms: Mapping[Goal, float | None] = field(default_factory=dict)
    """By each measure; what the method looks for is that of its `goal`."""
    seconds: float = 0.0
    memory: Mapping[str, int] = field(default_factory=dict)
    """Bytes that operators take of each device."""
    note: str = ""
    refused: str = ""
    """Why it places nothing."""

    @property
    def predicted_ms(self) -> float | None:
        """What the method looks for."""
        return self.ms.get(self.goal)

    @property
    def gap(self) -> float | None:
        """Part of it that is not proven to be needed."""
        value = self.predicted_ms
        return None if value is None else max(0.0, 1.0 - self.bound_ms / value) if value else 0.0


def choose_methods(names: Sequence[str]) -> tuple[str, ...]:
    """The methods of these names, each once, in the order in which they run; "all" is every one.

    Raises:
        BadOption: there is no such method.
    """
    for name in names:
        if name not in (*METHODS, "all"):
            raise BadOption(option="--method", value=name, advice=f"Use all, or of {', '.join(METHODS)}")
    return METHODS if "all" in names else tuple(name for name in METHODS if name in names)


def place_by_methods(
    case: PlacementCase,
    names: Iterable[str] = METHODS,
    *,
    limit_s: float = 20.0,
    shown: Callable[[], None] = lambda: None,
) -> list[MethodPlacement]:
    """What each method makes of a case; a method that cannot place it says why.

    Args:
        case: operators and devices.
        names: of methods, of `METHODS`.
        limit_s: seconds for each method that can be stopped: programmes, searches and those that learn.
        shown: called after each method.
    """
    placements: list[MethodPlacement] = []
    best: PlacedOperators | None = None
    assert case.sample_bound >= 0.0  # so that no method's seconds are those of the bounds
    for name in names:
        started = time.monotonic()
        try:
            if name in LIST_METHODS:
                placement = _place_sample(case, name, limit_s)
            else:
                placement, placed = _place_around(case, name, best, limit_s)
                if placed.devices and placement.goal == "load" and (best is None or placed.max_load < best.max_load):
                    best = placed
        except DevicesTooSmall as error:
            placement = MethodPlacement(name, _goal(name), refused=_no_room(case, error))
        except BricolageError as error:
            placement = MethodPlacement(name, _goal(name), refused=error.sentence)
        placements.append(replace(placement, seconds=time.monotonic() - started))
        shown()
    return placements


def judge_given(case: PlacementCase, numbers: Sequence[int], method: str) -> MethodPlacement:
    """A placement that is given, by the numbers of its devices; its bound is that of all placements."""
    devices = tuple(case.names[number] for number in numbers)
    small, judged = _overfull(case, devices), _judge(case, devices)
    if small is not None or judged["load"] is None:
        return MethodPlacement(method, "load", refused=small or "it has operators of a colour on several devices")
    return MethodPlacement(method, "load", devices, case.load_bound, judged, memory=_memory(case, devices))


def _goal(name: str) -> Goal:
    return "sample" if name in LIST_METHODS else "blocks" if name == BLOCKS else "load"


def _place_sample(case: PlacementCase, name: str, limit_s: float) -> MethodPlacement:
    """By a method for one sample."""
    schedule = LIST_METHODS[name](case.sample, limit_s)
    check(case.sample, schedule)
    devices = tuple(interval.device for interval in schedule.intervals)
    judged = _judge(case, devices)
    again = judged["sample"]
    # The method's own order, unless a plain list schedule of the same placement ends sooner.
    sooner = again is not None and again < schedule.makespan_ms * (1.0 - SLACK)
    judged["sample"] = again if sooner else schedule.makespan_ms
    note = f"{schedule.makespan_ms:.4g} ms in its own order" if sooner else ""
    return MethodPlacement(name, "sample", devices, case.sample_bound, judged, memory=_memory(case, devices), note=note)


def _place_around(
    case: PlacementCase, name: str, best: PlacedOperators | None, limit_s: float
) -> tuple[MethodPlacement, PlacedOperators]:
    """By a method for alike accelerators around a host; `best` is the placement of the least load so far."""
    goal, problem = _goal(name), case.around
    nothing = PlacedOperators((), name, math.inf, 0.0)
    if problem is None:
        return MethodPlacement(name, goal, refused=case.unlike), nothing
    placed = least_latency(problem, limit_s=limit_s) if name == BLOCKS else LOAD_METHODS[name](problem, best, limit_s)
    if not placed.devices or math.isinf(placed.max_load):
        return MethodPlacement(name, goal, refused=_no_placement(case, name, placed), note=placed.note), nothing
    devices = tuple(case.names[device] for device in placed.devices)
    if (small := _overfull(case, devices)) is not None:
        return MethodPlacement(name, goal, refused=small, note=placed.note), nothing
    bound = max(placed.bound, min(case.load_bound, placed.max_load))
    row = MethodPlacement(
        name, goal, devices, bound, _judge(case, devices), memory=_memory(case, devices), note=placed.note
    )
    return row, placed


def _no_room(case: PlacementCase, error: DevicesTooSmall) -> str:
    """Why a method that places one operator after another ends; another method may find room."""
    if math.isinf(case.load_bound):
        return _NEVER_FIT
    return f"it leaves no device with room for operator '{error.facts['task']}', which takes {error.facts['wanted']}"


def _no_placement(case: PlacementCase, name: str, placed: PlacedOperators) -> str:
    if math.isinf(case.load_bound):
        return _NEVER_FIT
    if _goal(name) == "blocks":
        return "it finds no blocks that fit and do not wait for each other, as those of forward and backward pass do"
    return "it finds no placement whose operators fit" + (f" ({placed.note})" if placed.note else "")


def _overfull(case: PlacementCase, devices: Sequence[str]) -> str | None:
    """A device whose memory does not hold its operators, in words: the host's is no part of the methods' problem."""
    for device, taken in _memory(case, devices).items():
        most = case.sample.memory.get(device)
        if most is not None and taken > most:
            return f"it puts {taken} bytes on '{device}', which has {most}"
    return None


def _judge(case: PlacementCase, devices: tuple[str, ...]) -> dict[Goal, float | None]:
    """A placement by all measures."""
    judged: dict[Goal, float | None] = {"sample": _sample_ms(case.sample, devices)}
    if case.around is None:
        judged["load"] = busiest_ms(case.sample, devices)
    else:
        numbers = tuple(case.names.index(device) for device in devices)
        judged["load"] = _finite(max_load(case.around, numbers))
        judged["blocks"] = _finite(latency(case.around, numbers))
    return judged


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _sample_ms(problem: ScheduleProblem, devices: Sequence[str]) -> float | None:
    """The end of one sample by list scheduling on these devices; None where they have no room."""
    nothing = [dict.fromkeys(mine, 0.0) for mine in problem.times]
    try:
        order = by_readiness(problem, upward_ranks(problem))
        schedule = insert(problem, order, nothing, "as placed", dict(enumerate(devices)))
    except DevicesTooSmall:
        return None
    return (
        schedule.makespan_ms
        if all(interval.device == device for interval, device in zip(schedule.intervals, devices, strict=True))
        else None
    )


def busiest_ms(problem: ScheduleProblem, devices: Sequence[str]) -> float:
    """Milliseconds that the busiest device takes for each sample when samples follow one another: what it computes, and what it
    sends and receives, each tensor once to each device that reads it."""
    busy = dict.fromkeys(problem.cores, 0.0)
    for task, device in enumerate(devices):
        busy[device] += problem.ms(task, device, problem.cores[device])
    for tensor in problem.graph.tensors:
        if tensor.producer < 0:
            continue
        source = devices[tensor.producer]
        for target in {devices[reader] for reader in tensor.consumers} - {source}:
            moved = problem.transfer(source, target, tensor.bytes)
            busy[source] += moved
            busy[target] += moved
    return max(busy.values())


def _memory(case: PlacementCase, devices: Sequence[str]) -> dict[str, int]:
    held = dict.fromkeys(case.names, 0)
    for task, device in enumerate(devices):
        held[device] += case.sample.task_bytes[task] if case.sample.task_bytes else 0
    return held
