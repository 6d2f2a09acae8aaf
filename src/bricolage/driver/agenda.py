"""The agenda of a decision: what could be measured next, the most promising for its seconds first, until nothing that is left
could gain enough.

An *item* says how much of the incumbent's time it could save at most, how long it takes, and why; it is asked again whenever
something has been measured. The incumbent is the fastest that was measured so far. How optimistic "at most" is follows from the
risk that the effort accepts: that something is left out which would have gained. What was measured, what was left out, and the most
that it could have gained become part of the plan.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from bricolage.deadline import Deadline
from bricolage.driver.stage import Stage
from bricolage.driver.state import DecisionState
from bricolage.measure.statistics import THRESHOLD
from bricolage.plan.agenda import AgendaItem, ItemOutcome

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Promise:
    """What an item could bring."""

    gain: float
    """Share of the incumbent's time that it saves at most."""
    seconds: float
    """That it takes."""
    because: str
    """A clause that says where the gain is known from."""
    chance: float = 1.0
    """That it gains anything, as far as that is known: what is most likely comes first. It leaves nothing out."""


class Item(ABC):
    """Something that could be measured."""

    name: str
    asked: ClassVar[bool] = False
    """Whether the user asked for it by an option of its own: it has its turn before all others, and under an effort's own budget
    time of its own on top."""
    searches: ClassVar[bool] = False
    """Whether it tries things that no database knows, so that it takes all of its time whenever it runs."""
    makes: ClassVar[str] = ""
    """With what the names of the variants of the graph begin that it makes."""

    @abstractmethod
    def promise(self, state: DecisionState) -> Promise | None:
        """What it could bring by what is known now; None where something is missing that it needs, or there is nothing of its
        kind."""

    @abstractmethod
    def run(self, state: DecisionState, deadline: Deadline) -> None:
        """Measures, and adds to the state; when its deadline says so it ends, and what it has found counts."""

    @property
    def again(self) -> bool:
        """Whether it goes on where it ended, once it has run."""
        return False


class Agenda(Stage[DecisionState]):
    """Takes what the user asked for, then the item with the highest gain for its seconds, weighed by its chance, until none can
    gain more than what counts as a gain, or the time does not reach for any that could."""

    name: ClassVar[str] = "agenda"
    reads: ClassVar[frozenset[str]] = frozenset({"profiles", "whole_s"})
    adds: ClassVar[frozenset[str]] = frozenset(
        {
            "agenda",
            "attempts",
            "calibration_error",
            "challengers",
            "divided",
            "mixtures_ms",
            "profiles",
            "quantised",
            "searches",
            "tuned",
        }
    )

    def __init__(self, items: Callable[[DecisionState], Sequence[Item]]) -> None:
        """`items`: made once the baselines are known. Where two promise the same, the first is taken."""
        self._items = items

    def run(self, state: DecisionState, deadline: Deadline) -> None:
        """Works through it. What is left is recorded with the reason."""
        waiting = list(self._items(state))
        interrupted = False
        try:
            while (taken := _next(waiting, state, deadline)) is not None:
                item, promise = taken
                waiting.remove(item)
                self._run(item, promise, state, deadline)
                if item.again:
                    waiting.append(item)
        except KeyboardInterrupt:
            interrupted = True
            raise
        finally:
            late: ItemOutcome = "interrupted" if interrupted or deadline.interrupted else "no time"
            state.agenda += [entry for item in waiting if (entry := _left(item, state, late)) is not None]

    @staticmethod
    def _run(item: Item, promise: Promise, state: DecisionState, deadline: Deadline) -> None:
        before = state.incumbent_ms
        if _on_top(item, state) and not deadline.interrupted:
            deadline.grant(promise.seconds)
        began = deadline.clock()
        outcome: ItemOutcome = "interrupted"
        try:
            item.run(state, deadline)
            outcome = "measured"
        finally:
            after, seconds = state.incumbent_ms, deadline.clock() - began
            state.agenda.append(
                AgendaItem(
                    item.name,
                    outcome,
                    max(0.0, promise.gain),
                    promise.because,
                    promise.seconds,
                    round(seconds, 3),
                    max(0.0, 1.0 - after / before) if before and after else 0.0,
                )
            )
            _LOG.debug("%s: %.1f s, from %s to %s ms", item.name, seconds, before, after)


def _next(waiting: Sequence[Item], state: DecisionState, deadline: Deadline) -> tuple[Item, Promise] | None:
    """The item to take, with its promise."""
    left = deadline.left
    if deadline.interrupted or (left <= 0.0 and not any(_on_top(item, state) for item in waiting)):
        return None
    promises = [(item, found) for item in waiting if (found := item.promise(state)) is not None]
    able = [
        (item, found)
        for item, found in promises
        if found.gain > THRESHOLD and (_on_top(item, state) or found.seconds <= left > 0.0)
    ]
    return max(
        able, key=lambda one: (one[0].asked, one[1].chance * one[1].gain / max(one[1].seconds, 0.1)), default=None
    )


def _on_top(item: Item, state: DecisionState) -> bool:
    """Whether an item's time is no part of the budget: it was asked for, and no budget was."""
    return item.asked and state.session.options.budget_s is None


def _left(item: Item, state: DecisionState, late: ItemOutcome) -> AgendaItem | None:
    """What is said of an item that was not taken, `late` where it could have gained; None where there was nothing of its kind."""
    promise = item.promise(state)
    if promise is None:
        return None
    outcome = late if promise.gain > THRESHOLD else "left out"
    return AgendaItem(item.name, outcome, max(0.0, promise.gain), promise.because, promise.seconds)
