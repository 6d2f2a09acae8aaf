"""What a decision measured in addition to the baselines and what it left out: rows of a table, and sentences."""

from __future__ import annotations

from collections.abc import Sequence

from bricolage.plan.agenda import AgendaItem
from bricolage.plan.plan import Bucket
from bricolage.report import words

HEADS = ("Item", "Could save", "Saved", "Expected", "Took", "Outcome")


def rows(bucket: Bucket) -> list[Sequence[str]]:
    """One for each item, those that were measured first, in their order."""
    return [
        (
            one.name,
            words.percent(one.most),
            words.percent(one.gained) if one.outcome == "measured" else words.MISSING,
            words.seconds(one.expected_s),
            words.seconds(one.seconds) if one.seconds else words.MISSING,
            f"{_OUTCOMES[one.outcome]}: {one.because}",
        )
        for one in bucket.agenda
    ]


_OUTCOMES = {
    "measured": "measured",
    "left out": "left out",
    "no time": "no time for it",
    "interrupted": "interrupted",
}


def sentences(bucket: Bucket) -> list[str]:
    """What was measured in addition to the baselines, and what was not, with the most that it could have gained. Empty where
    everything had been measured before."""
    told: list[str] = []
    measured = [one for one in bucket.agenda if one.outcome == "measured"]
    if measured:
        gains = ", ".join(f"{one.name} (saved {words.percent(one.gained)})" for one in measured)
        told.append(f"also measured: {gains}")
    out = [one for one in bucket.agenda if one.outcome == "left out"]
    if out:
        most = max(one.most for one in out)
        told.append(f"left out, since it could save {words.percent(most)} at most: {_names(out)}")
    late = [one for one in bucket.agenda if one.outcome in ("no time", "interrupted")]
    if late:
        most = max(one.most for one in late)
        told.append(f"no time for what could save {words.percent(most)} at most: {_names(late)}")
    return told


def _names(items: Sequence[AgendaItem]) -> str:
    """Whole models by their implementations alone."""
    prefix = "whole model on "
    wholes = [one.name.removeprefix(prefix) for one in items if one.name.startswith(prefix)]
    others = [one.name for one in items if not one.name.startswith(prefix)]
    return "; ".join([*([prefix + ", ".join(wholes)] if wholes else []), *others])
