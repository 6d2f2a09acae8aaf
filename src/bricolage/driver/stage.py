"""Stages and their runner: who owns the clock, the deadline, interrupts and progress.

A stage says how large a share of the budget is kept free for it, whatever comes before, and which fields of the state it reads
and adds to.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from bricolage.base.deadline import Deadline
from bricolage.base.time_shares import Shares

_LOG = logging.getLogger(__name__)

S = TypeVar("S")


class Stage(ABC, Generic[S]):
    """One step of a decision. It reads and adds to the state; when its deadline says so it ends, and what it has found counts."""

    name: ClassVar[str]
    essential: ClassVar[bool] = False
    """Without it there is nothing to decide: an interruption during it ends everything."""
    reads: ClassVar[frozenset[str]] = frozenset()
    """Fields of the state that stages before it may have filled. Fields that are given when the state is made need not be named."""
    adds: ClassVar[frozenset[str]] = frozenset()
    """Fields of the state that it fills or changes."""

    def share(self, state: S) -> float:
        """Seconds kept free for it, whatever comes before; 0 where it does not apply, or comes first."""
        del state
        return 0.0

    @abstractmethod
    def run(self, state: S, deadline: Deadline) -> None:
        """Does it."""


@dataclass(frozen=True)
class StageTime:
    """What a stage took, and what was kept free for it; seconds."""

    name: str
    seconds: float
    share: float


class Runner(Generic[S]):
    """Runs stages one after another."""

    def __init__(self, stages: Sequence[Stage[S]], kept: float = Shares.kept) -> None:
        """`kept`: the part of the whole time that stages may keep free for themselves together."""
        self._stages, self._kept = tuple(stages), kept

    def run(self, state: S, deadline: Deadline) -> tuple[StageTime, ...]:
        """Runs every stage, each with a deadline that leaves later ones their shares. A Ctrl-C ends the stage that it
        meets and lets the others see that the time is over; the second one is raised.

        Raises:
            ValueError: a stage reads what is filled only after it, or never.
        """
        _check_order(self._stages, state)
        times: list[StageTime] = []
        total, left = sum(stage.share(state) for stage in self._stages), deadline.left
        scale = min(1.0, self._kept * left / total) if total else 1.0
        for number, stage in enumerate(self._stages):
            kept = scale * sum(later.share(state) for later in self._stages[number + 1 :])
            share, began = scale * stage.share(state), deadline.clock()
            stage_deadline = deadline.reserve(kept)
            if stage.essential:
                stage.run(state, stage_deadline)
            else:
                with deadline.catching_interrupts():
                    stage.run(state, stage_deadline)
            times.append(StageTime(stage.name, deadline.clock() - began, share))
            _LOG.debug("%s: %.1f s of a share of %.1f s", stage.name, times[-1].seconds, share)
        return tuple(times)


def _check_order(stages: Sequence[Stage[S]], state: S) -> None:
    """Whether each stage finds what it reads: filled when the row begins or by a stage before it. A collection that no stage fills
    stays empty, which is right."""
    filled: set[str] = set()
    for place, stage in enumerate(stages):
        later = frozenset[str]().union(*(following.adds for following in stages[place + 1 :]))
        for name in sorted(stage.reads - filled):
            value = getattr(state, name)
            if value is None or (not value and name in later - stage.adds):
                raise ValueError(f"the stage '{stage.name}' reads '{name}' before anything has filled it")
        filled |= stage.adds
