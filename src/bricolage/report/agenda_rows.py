"""What a decision measured in addition to the baselines and what it left out: rows of a table, and sentences."""

from __future__ import annotations

from collections.abc import Sequence

from bricolage.plan.agenda_record import UNKNOWN_CHANCE, WHOLE, AgendaItem, ItemOutcome
from bricolage.plan.plan import Bucket
from bricolage.report import words

HEADS = ("Item", "Outcome", "Bound", "Chance", "Would save", "Saved", "Expected", "Took", "Known from")


_SHOWN_GAINS = 3
_LEFT_OUT: tuple[ItemOutcome, ...] = ("bounded", "unlikely", "no time", "interrupted")


def agenda_rows(bucket: Bucket) -> list[Sequence[str]]:
    """One for each item, those that were measured first, in their order."""
    return [
        (
            item.name,
            item.outcome,
            words.MISSING if item.bound is None else words.percent(item.bound),
            "unknown" if item.chance is None else words.percent(item.chance),
            words.percent(item.gain),
            words.percent(item.gained) if item.candidate else words.MISSING,
            words.seconds(item.expected_s),
            words.seconds(item.seconds) if item.seconds else words.MISSING,
            f"{item.because}; {describe_gain(item)}" if item.interval is not None else item.because,
        )
        for item in bucket.record.agenda
    ]


def describe_gain(item: AgendaItem) -> str:
    """What the best candidate of an item saved, with its interval, or how much longer it took."""
    if not item.candidate:
        return "found nothing"
    sign = 1.0 if item.gained >= 0.0 else -1.0
    ends = () if item.interval is None else sorted(sign * end for end in item.interval)
    interval = f" [{', '.join(map(words.percent, ends))}]" if ends else ""
    share = f"{words.percent(sign * item.gained)}{interval}"
    return f"saved {share}" if sign > 0.0 else f"took {share} longer"


def sentences(bucket: Bucket) -> list[str]:
    """What was measured in addition to the baselines; what was not, a sentence for each reason; and what is expected to be lost by
    that. Empty where everything had been measured before."""
    lines: list[str] = []
    measured = [item for item in bucket.record.agenda if item.outcome == "measured"]
    if measured:
        gains = ", ".join(f"{item.name} ({describe_gain(item)})" if item.candidate else item.name for item in measured)
        lines.append(f"also measured: {gains}")
    if bounded := _with_outcome(bucket, "bounded"):
        most = max(item.bound or 0.0 for item in bounded)
        lines.append(f"bounded, no more than {words.percent(most)} to save: {name_items(bounded)}")
    if unlikely := _with_outcome(bucket, "unlikely"):
        chance = max(UNKNOWN_CHANCE if item.chance is None else item.chance for item in unlikely)
        gain = max(item.gain for item in unlikely)
        odds = f"chances of {words.percent(chance)} or less to save {words.percent(gain)} or less"
        lines.append(f"unlikely, {odds}: {name_items(unlikely)}")
    words_alone: tuple[ItemOutcome, ...] = ("no time", "interrupted")
    lines += [f"{outcome}: {name_items(late)}" for outcome in words_alone if (late := _with_outcome(bucket, outcome))]
    lines += [f"{reason}: {', '.join(skipped)}" for reason, skipped in _list_untried(bucket).items()]
    left_out = [item for item in bucket.record.agenda if item.left_out]
    if left_out:
        loss = sum(item.expected_loss for item in left_out if item.outcome != "bounded")
        lines.append(f"expected to be lost by all that was left out: {words.percent(loss)}")
    return lines


def short_sentences(bucket: Bucket) -> list[str]:
    """`sentences` in two lines: what was measured in addition and saved most; how much was left out for each reason, with its
    expected loss."""
    lines: list[str] = []
    measured = [item for item in bucket.record.agenda if item.outcome == "measured"]
    gainful = sorted((item for item in measured if item.candidate and item.gained > 0.0), key=lambda item: -item.gained)
    if gainful:
        gains = ", ".join(f"{item.name} ({describe_gain(item)})" for item in gainful[:_SHOWN_GAINS])
        rest = len(measured) - len(gainful[:_SHOWN_GAINS])
        lines.append(f"also measured: {gains}{f', and {rest} more' if rest else ''}")
    elif measured:
        lines.append(f"also measured: {words.count(len(measured), 'item')}, none of which saved time")
    left_out = [item for item in bucket.record.agenda if item.left_out]
    counts: dict[str, int] = {outcome: len(_with_outcome(bucket, outcome)) for outcome in _LEFT_OUT}
    counts["not tried"] = sum(map(len, _list_untried(bucket).values()))
    reasons = [f"{number} {reason}" for reason, number in counts.items() if number]
    if reasons:
        loss = sum(item.expected_loss for item in left_out if item.outcome != "bounded")
        lines.append(f"left out: {', '.join(reasons)}; expected loss {words.percent(loss)} (-v lists them)")
    return lines


def _list_untried(bucket: Bucket) -> dict[str, list[str]]:
    """Contestants of which nothing was compiled and the agenda says nothing, by the reason."""
    items = {item.name for item in bucket.record.agenda}
    names: dict[str, list[str]] = {}
    for contestant in bucket.race.contestants:
        if not words.is_tried(contestant) and f"{WHOLE}{contestant.name}" not in items:
            names.setdefault(contestant.reason, []).append(contestant.name)
    return names


def _with_outcome(bucket: Bucket, outcome: ItemOutcome) -> list[AgendaItem]:
    return [item for item in bucket.record.agenda if item.outcome == outcome]


def name_items(items: Sequence[AgendaItem]) -> str:
    """Whole models by their implementations alone."""
    wholes = [item.name.removeprefix(WHOLE) for item in items if item.name.startswith(WHOLE)]
    others = [item.name for item in items if not item.name.startswith(WHOLE)]
    return "; ".join([*([WHOLE + ", ".join(wholes)] if wholes else []), *others])
