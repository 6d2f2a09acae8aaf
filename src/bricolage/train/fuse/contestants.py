"""Ways to train the lanes of a group: one after another, as one, and both in several processes. All of them train for real, so
that what was measured of the chosen one is not lost."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from bricolage.train.fuse.alone import Alone, Judge, LaneResult
from bricolage.train.fuse.lane_groups import group
from bricolage.train.fuse.lane_program import Choice
from bricolage.train.fuse.lanes import Fused
from bricolage.train.fuse.sweep import Sweep
from bricolage.train.fuse.sweep_data import load_data
from bricolage.train.step.data import Data

if TYPE_CHECKING:
    import torch

    from bricolage.train.fuse.lane_groups import Group

Told = Callable[[int], None]
"""Told how many samples were trained since the last time."""
SLICE_S = 0.5
"""Between two reports of progress."""


@dataclass
class Outcome:
    """What became of lanes, by name."""

    results: dict[str, LaneResult] = field(default_factory=dict)
    states: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)

    def add(self, other: Outcome) -> None:
        """Takes over what another one has."""
        self.results.update(other.results)
        self.states.update(other.states)


class GroupTrainer(Protocol):
    """A way to train a group."""

    how: str
    """Its name."""

    def run(self, seconds: float) -> tuple[int, float]:
        """Trains for about so long: samples, and seconds that they took. No samples: nothing is left to train."""

    def finish(self, told: Told) -> Outcome:
        """Trains all lanes to their end."""

    def close(self) -> None:
        """Lets go of what it holds. What it trained is lost, unless it finished."""


class Serial:
    """Lanes one after another, in this process."""

    def __init__(self, data: Data, group: Group, threads: int, how: str = "serial", judge: Judge | None = None) -> None:
        self.how = how
        self._judge = judge
        self._data = data
        self._left = list(group.lanes)
        self._threads = threads
        self._now: Alone | None = None
        self._outcome = Outcome()

    def run(self, seconds: float) -> tuple[int, float]:
        """See `GroupTrainer`."""
        import torch

        torch.set_num_threads(self._threads)
        samples, spent = 0, 0.0
        while spent < seconds and (self._now is not None or self._left):
            if self._now is None:
                self._now = Alone(
                    self._data, self._left.pop(0), self._judge
                )  # outside the time, as making fused lanes ready is
                continue
            began = time.perf_counter()
            samples += self._now.run(4) * self._now.at.lane.batch_size
            spent += time.perf_counter() - began
            if self._now.at.stopped:
                name = self._now.at.lane.name
                self._outcome.results[name] = self._now.result()
                self._outcome.states[name] = copy.deepcopy(dict(self._now.module.state_dict()))
                self._now = None
        return samples, spent

    def finish(self, told: Told) -> Outcome:
        """See `GroupTrainer`."""
        while self._now is not None or self._left:
            told(self.run(SLICE_S)[0])
        return self._outcome

    def close(self) -> None:
        """See `GroupTrainer`."""


class Here:
    """Lanes as one, in this process."""

    def __init__(
        self,
        data: Data,
        group: Group,
        threads: int,
        how: str = "fused",
        known: Mapping[str, str] | None = None,
        judge: Judge | None = None,
        ahead: bool = False,
    ) -> None:
        """`ahead`: another core is free for random numbers."""
        import torch

        self.how = how
        self._threads = threads
        torch.set_num_threads(threads)
        self.fused = Fused(data, group.lanes, group.traced, known, judge, ahead)
        self._size = group.lanes[0].batch_size
        self.ways: dict[str, Choice] = {}
        """How operators are computed, by node; known after the first step."""

    def run(self, seconds: float) -> tuple[int, float]:
        """See `GroupTrainer`."""
        import torch

        torch.set_num_threads(self._threads)
        samples, began = 0, time.perf_counter()
        while self.fused.lanes and time.perf_counter() - began < seconds:
            lanes = len(self.fused.lanes)
            samples += self.fused.run(1) * lanes * self._size
            self.ways = self.ways or self.fused.choices
        return samples, time.perf_counter() - began

    def finish(self, told: Told) -> Outcome:
        """See `GroupTrainer`."""
        while self.fused.lanes:
            told(self.run(SLICE_S)[0])
        return Outcome(dict(self.fused.results), dict(self.fused.states))

    def close(self) -> None:
        """See `GroupTrainer`."""


def prepare_trainer(sweep: Sweep, names: Sequence[str], kind: str, threads: int) -> GroupTrainer:
    """The lanes of these names, one after another ("serial") or as one ("fused"), in this process.

    Raises:
        NotFusible, BadTrainingCode
    """
    import dataclasses

    wanted = set(names)
    part = dataclasses.replace(sweep, lanes=tuple(lane for lane in sweep.lanes if lane.name in wanted))
    data = load_data(part)
    if kind == "serial":
        from bricolage.train.fuse.lane_groups import Group

        return Serial(data, Group(part.lanes, ()), threads)
    (lane_group,) = group(data, part.lanes)
    return Here(data, lane_group, threads)
