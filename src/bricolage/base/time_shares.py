"""How the time of a decision is cut: every fraction of a budget, and every number of seconds, in one place.

`efforts.EffortProfile` holds one `Shares`; `budget.DecisionBudget` cuts a decision by it. What a single request may take before
its process is ended is no share: such limits stand where the request is made.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ThroughputShares:
    """Of a decision for throughput."""

    exploring: float = 0.4
    """At most for trying single backends, ..."""
    racing: float = 0.3
    """... and kept free for the race; placements have what is left."""
    placing_s: float = 8.0
    """With fewer seconds than that, no placement is decided."""


@dataclass(frozen=True)
class TuningShares:
    """Of a search for kernels, within a decision or by itself."""

    alone_s: float = 600.0
    """Seconds of a search by itself, for one set of shapes, unless the options say otherwise; ..."""
    least_s: float = 10.0
    """... fewer than these are refused."""
    opening: float = 0.25
    """At most for the reference and the baselines of a search by itself."""
    racing: float = 0.15
    """For racing what was found against what was there, ..."""
    race_s: float = 60.0
    """... but no more seconds than that."""
    baselines: float = 0.7
    """Part of the time for baselines where plans are to be tuned, too."""
    structures: float = 0.15
    """For measuring the whole with other structures of kernels."""
    turn_s: float = 12.0
    """Seconds of a slice below which a combination has no turn: a search compiles the whole first, and times the best again."""


@dataclass(frozen=True)
class TailoringShares:
    """Of racing variants of a graph for one backend. What the rounds of its steps leave is for compiling and for the last race."""

    opset: float = 0.1
    """For the rounds of variants raised to a newer opset, ..."""
    rules: float = 0.35
    """... without a rule or with one more, ..."""
    more_rules: float = 0.2
    """... the same once more from what was best, ..."""
    signatures: float = 0.2
    """... and with a rule at some operators alone."""
    racing: float = 0.6
    """Part of what is left of the time that is kept for racing variants while they are made."""

    def rounds(self, step: str) -> float:
        """For the rounds of a step."""
        return {"opset": self.opset, "rules": self.rules, "more rules": self.more_rules}.get(step, self.signatures)


@dataclass(frozen=True)
class ScheduleShares:
    """Of a search for schedules, within a decision or for a plan that is there."""

    exact_s: float = 2.0
    """Seconds for the exact search, where there are few regions."""
    alone_s: float = 600.0
    """Seconds of a search by itself. Its race is held whatever it took."""


@dataclass(frozen=True)
class Shares:
    """Parts of a decision's budget. Those of items of the agenda are what they are expected to take where nothing better is known,
    and may take at most."""

    rewrite_tuning: float = 0.25
    """Racing variants for a backend takes all of its part, where rules are left to try."""
    rewrite_search: float = 0.05
    regions: float = 0.2
    placement: float = 0.15
    kernel_tuning: float = 0.2
    race: float = 1 / 3
    """The largest part that the final race may take; it is kept free, whatever comes before."""
    baselines_s: float = 10.0
    """Seconds that the baselines have after the reference, however short the budget is."""
    given_back: float = 1.0
    """Times the budget, that is given back at most of the time that other processes took."""
    turns_s: float = 10.0
    """In a budget of that many seconds or more, those backends that read most models have their turn (`Backend.always_measured`),
    whatever the clock says: what ships may be none but theirs on a busy machine."""
    kept: float = 0.85
    """What stages may keep free for themselves together; where they ask for more, all are cut alike: the first have some, too."""
    bound_s: float = 1.0
    """Seconds for the exact optimum that bounds what placements could gain, by measured or by predicted costs; ..."""
    placement_s: float = 10.0
    """... and for the one that placements begin with."""
    sizes: float = 0.25
    """Of what a decision took, after which no further size of its artifact is tried, ..."""
    sizes_s: float = 5.0
    """... but these seconds in any case."""
    reducing_s: float = 300.0
    """Seconds for making a model smaller that is computed wrongly, where nothing else is asked for."""
    throughput: ThroughputShares = ThroughputShares()
    tuning: TuningShares = TuningShares()
    tailoring: TailoringShares = TailoringShares()
    schedules: ScheduleShares = ScheduleShares()
