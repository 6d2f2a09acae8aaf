"""Decisions that are provisional: which are, when one is gone on with, and what the next one takes over from it.

A decision is provisional that had no time for something which could have gained, or that other processes disturbed. The next one
for the same question goes on with it. What was measured in quiet is known from the database of costs; what other processes
disturbed is measured again; and the plan that shipped races against what is found. So each has its whole time for what is left.
It ends: a decision that goes on in quiet and brings nothing new is final, and so is one that was gone on with as often as the
effort says (`EffortProfile.continued`). One that load disturbed is gone on with after that, too, but only when the machine is
quiet.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from bricolage.driver.agenda import Item
from bricolage.plan.agenda_record import AgendaItem
from bricolage.plan.disturbance_record import QUIET
from bricolage.plan.field_types import ProvisionalReason
from bricolage.plan.plan import Bucket
from bricolage.rewrite.variants import GraphVariant


@dataclass(frozen=True)
class Continuation:
    """What a decision goes on with."""

    before: Bucket
    """The decision that is provisional."""
    variant: GraphVariant
    """Of the graph, that it ships."""

    def settles(self, item: Item) -> bool:
        """Whether it left nothing to do for an item that would take all of its time again: a search that came to an end in quiet,
        or that made the variant which ships, and so races again. What only measures costs is never settled: they are known, and
        others rest on them."""
        last = next((entry for entry in reversed(self.before.record.agenda) if entry.name == item.name), None)
        if not item.searches or last is None or last.outcome != "measured":
            return False
        return not self.before.race.under_load or (bool(item.makes) and self.variant.name.startswith(item.makes))

    def settled(self, names: Collection[str]) -> tuple[AgendaItem, ...]:
        """What it measured of items with these names: the next decision says so, too."""
        return tuple(
            entry for entry in self.before.record.agenda if entry.name in names and entry.outcome == "measured"
        )


def open_items(decision: Bucket) -> frozenset[str]:
    """Names of the items of its agenda that could have gained and had no time. What was left out for any other reason is none."""
    return frozenset(entry.name for entry in decision.record.agenda if entry.outcome == "no time")


def provisional_reasons(decision: Bucket, before: Bucket | None, most: int) -> tuple[ProvisionalReason, ...]:
    """Why a decision is provisional; nothing where it is final. `before`: the one that it went on with. `most`: how often one is
    gone on with; 0 where every decision is final."""
    late, continued = open_items(decision), 0 if before is None else before.record.continued + 1
    calm = before is not None and not before.race.under_load and not decision.race.under_load
    fruitless = calm and before is not None and not _progress(decision, open_items(before))
    reasons: list[ProvisionalReason] = []
    if late and continued < most and not fruitless:
        reasons.append("no time")
    if decision.race.under_load and most > 0:
        reasons.append("load")
    return tuple(reasons)


def _progress(decision: Bucket, late: frozenset[str]) -> bool:
    """Whether it settled anything for which there was no time before, or gained by it."""
    gained = {entry.name for entry in decision.record.agenda if entry.outcome == "measured" and entry.gained > 0.0}
    return bool(late - open_items(decision) or late & gained)


def is_continued(decision: Bucket, most: int, share_taken: Callable[[], float]) -> bool:
    """Whether the next decision goes on with this one. `share_taken`: of the processors, what others take now."""
    if not decision.record.provisional or most <= 0:
        return False
    return decision.record.continued < most or ("load" in decision.record.provisional and share_taken() <= QUIET)
