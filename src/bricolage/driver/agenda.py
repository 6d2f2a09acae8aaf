"""The agenda of a decision: what could be measured next, the most promising for its seconds first, until nothing that is left
could gain enough.

An *item* says what it would gain, with which chance, within which bound, how long it takes, and why; it is asked again whenever
something has been measured. The incumbent is the fastest that was measured so far. Three reasons leave an item out. It is
*bounded*: it cannot save more than a share that is too small. It is *unlikely*: its chance is not above the risk that the effort
accepts for as many seconds. There is *no time* for it. What was measured, what was left out, and why become part of the plan.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from bricolage.base.deadline import Deadline
from bricolage.driver.stage import Stage
from bricolage.driver.state import DecisionState
from bricolage.plan.agenda_record import UNKNOWN_CHANCE, AgendaItem, ItemOutcome, expected_share
from bricolage.work.gain import LEAST_GAIN

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Promise:
    """What an item could bring. Shares are of the incumbent's time."""

    gain: float
    """Share that it saves where it gains."""
    seconds: float
    """That it takes."""
    because: str
    """A clause that says where this is known from."""
    chance: float | None = None
    """That it gains more than what counts as a gain; None where that is unknown, which counts as a half."""
    bound: float | None = None
    """Share that it cannot save more than; None where nothing bounds it."""

    @property
    def expected_gain(self) -> float:
        """Its chance times its gain, within its bound."""
        return expected_share(self.gain, self.chance, self.bound)

    def reason_to_leave_out(self, risk: float) -> ItemOutcome | None:
        """Why it is not worth its time, where `risk` is the chance that is too small; None where it may be."""
        if self.bound is not None and self.bound <= LEAST_GAIN:
            return "bounded"
        return "unlikely" if (UNKNOWN_CHANCE if self.chance is None else self.chance) <= risk else None


def promise_known(share: float, seconds: float, because: str) -> Promise:
    """Of what is known to save a share, and no more."""
    return Promise(share, seconds, because, chance=1.0 if share > LEAST_GAIN else 0.0, bound=share)


class Item(ABC):
    """Something that could be measured."""

    name: str
    asked: ClassVar[bool] = False
    """Whether the user asked for it by an option of its own: it has its turn before all others, and under an effort's own budget
    time of its own on top."""
    searches: ClassVar[bool] = False
    """Whether it tries things that no database knows, so that it takes all of its time whenever it runs."""
    informs: ClassVar[bool] = False
    """Whether it makes no plan and says what others may gain: it is never unlikely."""
    makes: ClassVar[str] = ""
    """With what the names of the variants of the graph begin that it makes."""
    way: ClassVar[str] = ""
    """As what the log of decisions counts it; empty where it does not."""

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
    """Takes what the user asked for, then the item with the highest expected gain for its seconds, until all that is left is
    bounded or unlikely, or the time does not reach for any other."""

    name: ClassVar[str] = "agenda"
    reads: ClassVar[frozenset[str]] = frozenset({"timed_variants", "whole_s"})
    adds: ClassVar[frozenset[str]] = frozenset(
        {
            "agenda",
            "attempts",
            "calibration_error",
            "challengers",
            "divided",
            "looks",
            "mixtures",
            "timed_variants",
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
            state.agenda += [
                entry for item in waiting if (entry := _record_left_out_item(item, state, late)) is not None
            ]

    @staticmethod
    def _run(item: Item, promise: Promise, state: DecisionState, deadline: Deadline) -> None:
        before = dict(state.standings)
        if _on_top(item, state) and not deadline.interrupted:
            deadline.grant(promise.seconds)
        began = deadline.clock()
        outcome: ItemOutcome = "interrupted"
        try:
            item.run(state, deadline)
            outcome = "measured"
        finally:
            seconds = deadline.clock() - began
            entry = replace(_entry(item, outcome, promise), seconds=round(seconds, 3))
            entry = _compare_with_incumbent(entry, before, state.standings)
            state.agenda.append(entry)
            _LOG.debug("%s: %.1f s, gained %.3f", item.name, seconds, entry.gained)


def _compare_with_incumbent(entry: AgendaItem, before: Mapping[str, float], after: Mapping[str, float]) -> AgendaItem:
    """With what the best candidate of an item saved over the fastest until then; times in ms by the name of the plan."""
    if not before:
        return entry
    incumbent = min(before, key=before.__getitem__)
    candidates = {name: ms for name, ms in after.items() if ms < before.get(name, math.inf)}
    candidate = min(candidates, key=candidates.__getitem__, default="")
    gained = 1.0 - candidates[candidate] / before[incumbent] if candidate else 0.0
    return replace(entry, incumbent=incumbent, candidate=candidate, gained=gained)


def _entry(item: Item, outcome: ItemOutcome, promise: Promise) -> AgendaItem:
    return AgendaItem(
        item.name,
        outcome,
        promise.because,
        promise.seconds,
        None if promise.bound is None else _share(promise.bound),
        None if promise.chance is None else _share(promise.chance),
        _share(promise.gain),
        way=item.way,
    )


def _share(value: float) -> float:
    return min(1.0, max(0.0, value))


def _next(waiting: Sequence[Item], state: DecisionState, deadline: Deadline) -> tuple[Item, Promise] | None:
    """The item to take, with its promise."""
    left = deadline.left
    if deadline.interrupted or (left <= 0.0 and not any(_on_top(item, state) for item in waiting)):
        return None
    promises = [(item, promise) for item in waiting if (promise := item.promise(state)) is not None]
    able = [
        (item, promise)
        for item, promise in promises
        if _reason_to_leave_out(item, promise, state) is None
        and (_on_top(item, state) or promise.seconds <= left > 0.0)
    ]
    return max(able, key=lambda pair: (pair[0].asked, pair[1].expected_gain / max(pair[1].seconds, 0.1)), default=None)


def _reason_to_leave_out(item: Item, promise: Promise, state: DecisionState) -> ItemOutcome | None:
    """As `Promise.reason_to_leave_out`, at the risk of the effort; what was asked for, or informs, is tried however unlikely it
    is."""
    never = item.asked or item.informs
    return promise.reason_to_leave_out(-1.0 if never else state.budget.accepted_risk(promise.seconds))


def _on_top(item: Item, state: DecisionState) -> bool:
    """Whether an item's time is no part of the budget: it was asked for, and no budget was."""
    return item.asked and not state.budget.by_user


def _record_left_out_item(item: Item, state: DecisionState, late: ItemOutcome) -> AgendaItem | None:
    """What is said of an item that was not taken, `late` where it could have gained; None where there was nothing of its kind."""
    promise = item.promise(state)
    if promise is None:
        return None
    outcome = _reason_to_leave_out(item, promise, state) or late
    standings = state.standings
    return replace(_entry(item, outcome, promise), incumbent=min(standings, key=standings.__getitem__, default=""))
