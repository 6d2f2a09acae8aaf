"""The result in two figures: how much faster than the best other tool, and than the best single configuration."""

from __future__ import annotations

from dataclasses import dataclass

from bricolage.base.codec import JsonObject
from bricolage.plan.plan import Bucket, Plan
from bricolage.plan.race_outcome import Contestant
from bricolage.report.words import format_shape, milliseconds, shown_interval, shown_time

_OTHER = "the best other tool here"
_SINGLE = "the best single configuration"


@dataclass(frozen=True)
class Speedup:
    """How many times as fast as another contestant one is."""

    name: str
    """Of the other."""
    value: float
    interval: tuple[float, float] | None = None
    """95 %, by the evidence that decided; None where the value is the ratio of medians from separate measurements."""

    def __str__(self) -> str:
        if self.interval is None:
            return f"about {self.value:.2f} times as fast as {self.name}"
        low, high = self.interval
        return f"{self.value:.2f} [{low:.2f}, {high:.2f}] times as fast as {self.name}"

    @property
    def short(self) -> str:
        """For a cell of a table: "1.73x", with a tilde where it is of separate measurements."""
        return f"{'' if self.interval is not None else '~'}{self.value:.2f}x"

    @property
    def sure(self) -> bool:
        """Whether the interval lies on one side of 1."""
        return self.interval is not None and not self.interval[0] <= 1.0 <= self.interval[1]


def over_other(bucket: Bucket, one: Contestant) -> Speedup | None:
    """Over the best other tool (`plan.other_tool`); None where no other tool, or not this one, has a time."""
    other = bucket.race.other
    if other is None or not one.median_ms or not other.median_ms:
        return None
    if one.name == other.name:
        return Speedup(other.name, 1.0, (1.0, 1.0))
    if other.name == bucket.race.best_other and one.over_other is not None and one.over_other_ci is not None:
        return Speedup(other.name, one.over_other, one.over_other_ci)
    return Speedup(other.name, other.median_ms / one.median_ms)


def over_single(bucket: Bucket, one: Contestant) -> Speedup | None:
    """Over the best single configuration; None where one of the two has no time."""
    base = next((c for c in bucket.race.contestants if c.name == bucket.race.best_baseline), None)
    if base is None or not one.median_ms or not base.median_ms:
        return None
    if one.name == base.name:
        return Speedup(base.name, 1.0, (1.0, 1.0))
    if one.name == bucket.race.chosen:
        return Speedup(base.name, bucket.race.speedup_vs_baseline, bucket.race.speedup_ci)
    if one.speedup is not None and one.speedup_ci is not None:
        return Speedup(base.name, one.speedup, one.speedup_ci)
    return Speedup(base.name, base.median_ms / one.median_ms)


def gains(bucket: Bucket, percent: float = 0.0) -> bool:
    """Whether a plan ships that is surely faster than the best single configuration, by at least a percentage: what
    `--require-gain` asks for."""
    far = bucket.race.speedup_vs_baseline >= 1.0 + percent / 100.0
    return bucket.race.significant and bucket.race.chosen != bucket.race.best_baseline and far


def good_news(bucket: Bucket) -> bool:
    """Whether the user surely gained something, by a plan or by our engine."""
    other = _winner_over_other(bucket)
    return gains(bucket) or (other is not None and other.sure and other.value > 1.0)


def verdict(bucket: Bucket) -> str:
    """The result, what the user gains over the tool that he had first."""
    winner = next((c for c in bucket.race.contestants if c.name == bucket.race.chosen), None)
    if winner is not None and winner.predicted_ms is not None:
        interval = shown_interval(winner)
        return (
            f"{winner.name} is predicted to take {shown_time(winner)} ({interval}) on a device that is not here. Nothing was timed "
            "there. Its answers were compared with float64 here, by the same C without that device's instructions."
        )
    if winner is None or winner.median_ms is None:
        return f"shipping {bucket.race.chosen}, which was not timed"
    sentence = _describe_gain(bucket, winner)
    if bucket.race.decided_by == "prior evidence":
        return f"{sentence} No race was held: earlier measurements decided."
    if bucket.race.chosen == bucket.race.best_baseline:
        return sentence if winner.other_tool else f"{sentence} No plan beats it, so it ships alone."
    return (
        sentence if bucket.race.significant else f"{sentence} That is not significant; all evidence together decided."
    )


def race_standing(bucket: Bucket) -> str:
    """`verdict` for a race in which nothing ships: how the best plan stands, or who is fastest where there is no plan."""
    plans = [c for c in bucket.race.contestants if c.kind == "plan" and c.accepted and c.median_ms]
    if plans:
        return _describe_gain(bucket, min(plans, key=lambda c: c.median_ms or 0.0))
    return f"fastest: {_describe_gain(bucket, bucket.race.winner)}"


def no_gain_sentence(plan: Plan, percent: float = 0.0) -> str:
    """That no plan gains what `--require-gain` asks for: what was gained nevertheless, first."""
    gains = [(over, bucket) for bucket in plan.buckets if (over := _winner_over_other(bucket)) is not None]
    best, bucket = max(gains, key=lambda pair: pair[0].value, default=(None, plan.buckets[0]))
    several = len(plan.buckets) > 1
    where = f" ({format_shape(bucket.program.sizes)})" if several else ""
    lead = (
        "" if best is None or best.value <= 1.0 else f"{bucket.race.chosen} is {best}, {_OTHER}{_doubt(best)}{where}; "
    )
    return f"{lead}no plan beats {_SINGLE}{by_percent(percent)}{' for any of these shapes' if several else ''}"


def by_percent(percent: float) -> str:
    """Behind a verb: by how much at least; empty for any gain."""
    return f" by {percent:g} %" if percent else ""


def headline_json(bucket: Bucket) -> JsonObject:
    """Both figures as JSON; null where there is nothing to compare with."""
    other = _winner_over_other(bucket)
    return {
        "headline": verdict(bucket),
        "best_other": None if other is None else other.name,
        "speedup_vs_other": None if other is None else other.value,
        "speedup_vs_other_ci": None if other is None or other.interval is None else list(other.interval),
    }


def hero(bucket: Bucket) -> str:
    """The figure that stands over a report: the gain over the best other tool, else that over the best single configuration, where
    it is sure; else the time."""
    winner = next((c for c in bucket.race.contestants if c.name == bucket.race.chosen), None)
    if winner is None:
        return "–"
    other, single = over_other(bucket, winner), over_single(bucket, winner)
    for gain in (other, single):
        if gain is not None and gain.sure and gain.value > 1.0:
            return gain.short.replace("x", "×")
    return shown_time(winner)


def _winner_over_other(bucket: Bucket) -> Speedup | None:
    winner = next((c for c in bucket.race.contestants if c.name == bucket.race.chosen), None)
    return None if winner is None else over_other(bucket, winner)


def _describe_gain(bucket: Bucket, one: Contestant) -> str:
    """Both figures of a contestant in a sentence or two."""
    other, single = over_other(bucket, one), over_single(bucket, one)
    timed = f"{one.name} ({milliseconds(one.median_ms)})"
    if single is not None and one.name != bucket.race.best_baseline:
        second = f"{single}, {_SINGLE}{_doubt(single)}"
    else:
        second = ""
    if other is None:
        return f"{timed}{f' is {second}' if second else ' is the fastest here'}. No other tool was timed on this model."
    if other.name == one.name:
        return f"{timed} is {_OTHER}, and neither our engine nor a plan beats it."
    if other.name == bucket.race.best_baseline and second:
        return f"{timed} is {other}, {_OTHER} and {_SINGLE}{_doubt(other)}."
    return f"{timed} is {other}, {_OTHER}{_doubt(other)}.{f' It is {second}.' if second else ''}"


def _doubt(one: Speedup) -> str:
    """That a ratio may be chance."""
    return "" if one.sure or one.interval is None else ", which is within the noise"
