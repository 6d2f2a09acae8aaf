"""Who raced to ship, who won, and on which evidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bricolage.base.options import Pattern
from bricolage.plan.disturbance_record import Disturbance
from bricolage.plan.field_types import Count, DecidedBy, Duration, ErrorNumber, Interval, Ratio
from bricolage.plan.other_pattern import PatternLoss
from bricolage.work.implementation import OWN_ENGINE, Implementation


def other_tool(one: Implementation) -> bool:
    """Whether this, on the whole original, is what a user has without bricolage: a backend that is not our own engine, as it sets
    itself up. Neither our engine is an other tool, nor a plan of ours, whatever backends that uses, nor kernels that we tuned."""
    return one.backend != OWN_ENGINE and not one.tuned


@dataclass(frozen=True)
class Contestant:
    """One entry of the final race: a baseline (one implementation, as its backend sets it up, runs the whole original), or a plan
    (everything else: several regions, a graph that was rewritten, kernels that were tuned). Times in milliseconds."""

    name: str
    """For people: "openvino f32", or the plan's name."""
    kind: Literal["baseline", "plan"]
    median_ms: Duration | None
    ci_ms: Interval | None
    error: ErrorNumber | None
    accepted: bool
    reason: str = ""
    """Why it was dropped or lost; empty for the winner."""
    dropped_ms: Duration | None = None
    """Time of a baseline that was dropped for its accuracy alone."""
    compile_s: Duration | None = None
    first_run_ms: Duration | None = None
    regions: Count = 1
    implementation: Implementation | None = None
    """Of a baseline, and of tuned kernels for the whole original."""
    speedup: Ratio | None = None
    """Over the best single configuration, from the evidence that decided: paired rounds of the race, where others disturbed it
    together with what was known before. None where the two never met."""
    speedup_ci: tuple[Ratio, Ratio] | None = None
    over_other: Ratio | None = None
    """Over the best other tool (`RaceOutcome.best_other`), likewise; from what was known before where no race was held. None where
    there is no other tool, or nothing compares the two."""
    over_other_ci: tuple[Ratio, Ratio] | None = None

    other_pattern_ms: Duration | None = None
    """Median in the pattern of calls that did not decide (`RaceOutcome.pattern`); None where it was not timed so ..."""
    other_pattern_ci_ms: Interval | None = None
    """... with its interval."""
    reached: Ratio | None = None
    """What it reached of the accuracy asked for (`Verification.accuracy`), on samples that are held back; None where it did not
    answer them ..."""
    held_back_error: ErrorNumber | None = None
    """... and the largest relative error that it had on any of them. `error` is that of the inputs on which it was measured, and of
    a quantised graph against exact integers."""
    predicted_ms: Duration | None = None
    """What a call is predicted to take on a described device, where nothing was timed ..."""
    predicted_ci_ms: Interval | None = None
    """... and between what, if every operator is bound by computing, or every one by moving."""

    @property
    def as_it_comes(self) -> bool:
        """Whether it is the user's own file, untouched, in a tool with the tool's own defaults."""
        return self.implementation is not None and self.implementation.config.as_it_comes

    @property
    def other_tool(self) -> bool:
        """Whether it is what a user has without bricolage (`other_tool`)."""
        return self.kind == "baseline" and self.implementation is not None and other_tool(self.implementation)


@dataclass(frozen=True)
class Quality:
    """Collage's own measures (TVM RFC 0062), as signed ratios minus one: 0.05 means five per cent.

    `additive_error` = predicted / measured - 1 of the best plan found: below zero, the additive model promised more than
    it kept; None when no plan was predicted. `apparent_loss` = chosen / best single backend - 1: below zero, the plan
    gains. `optimality_loss` = chosen / best of everything measured end to end - 1: at least zero.
    """

    additive_error: Ratio | None
    apparent_loss: Ratio | None
    optimality_loss: Ratio


@dataclass(frozen=True)
class RaceOutcome:
    """The contestants, and what the winner is faster than."""

    chosen: str
    """Name of the contestant that ships."""
    contestants: tuple[Contestant, ...]
    best_baseline: str
    speedup_vs_baseline: Ratio
    speedup_ci: tuple[Ratio, Ratio]
    significant: bool
    quality: Quality
    decided_by: DecidedBy = "race"
    """The race alone, where it was quiet enough; under load, the race together with what was known of the
    contestants before; that alone where no race was held."""
    disturbance: Disturbance = Disturbance()
    """What other processes did meanwhile."""
    best_other: str = ""
    """Name of the contestant that is the best other tool (`Contestant.other_tool`); empty where none was timed, and in plans
    of before this was asked."""
    pattern: Pattern | None = None
    """The pattern of calls that decided; the times of contestants are of it. None where both were not timed."""
    other_pattern: PatternLoss | None = None
    """How what ships stands in the other pattern against the best other tool there; None where that was not timed."""

    def __post_init__(self) -> None:
        names = {contestant.name for contestant in self.contestants}
        for name in (self.chosen, self.best_baseline, *filter(None, [self.best_other])):
            if names and name not in names:
                raise ValueError(f"'{name[:60]}' is none of its contestants")

    @staticmethod
    def unraced(name: str, contestants: tuple[Contestant, ...] = ()) -> RaceOutcome:
        """Of what runs without a race: nothing is said of how fast that is."""
        return RaceOutcome(name, contestants, name, 1.0, (1.0, 1.0), False, Quality(None, None, 0.0))

    @property
    def under_load(self) -> bool:
        """Whether other processes had a say in it: they were seen, or left the race inconclusive."""
        return self.disturbance.busy or self.decided_by == "race and prior evidence"

    @property
    def winner(self) -> Contestant:
        """The contestant that ships."""
        return next(c for c in self.contestants if c.name == self.chosen)

    @property
    def other(self) -> Contestant | None:
        """The best other tool; None where no other was timed and right."""
        others = [c for c in self.contestants if c.other_tool and c.accepted and c.median_ms is not None]
        named = next((c for c in others if c.name == self.best_other), None)
        return named or min(others, key=lambda c: (c.median_ms or 0.0, c.name), default=None)
