"""What an effort word means: budgets, repeats and the risk of leaving something out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from bricolage.base.option_words import SearchMethod
from bricolage.base.time_shares import Shares

Effort = Literal["instant", "quick", "full"]


@dataclass(frozen=True)
class EffortProfile:
    """What an effort word means: the single place where budgets and repeats are set. Seconds of wall clock."""

    budget_s: float
    """Time for measuring and searching, compiling and the final race included ..."""
    operator_s: float
    """... and what each operator of the model adds to it: larger models compile longer and have more regions."""
    compile_limit_s: float
    """Longest compilation of one candidate before it counts as a time-out (for long budgets half the budget)."""
    rounds: int
    """Interleaved rounds of the first measurement of a candidate ..."""
    most_rounds: int
    """... and at most of those that nearly tie."""
    race_rounds: int
    """Interleaved rounds of a race ..."""
    pattern_rounds: int
    """... and of the final one, whose turns are long, since everybody is called as a user calls him."""
    race_seconds: float
    """Upper bound on the final race, getting ready included."""
    race_processes: int
    """Of each contestant in the final race: one process runs the same program up to a few percent faster than another."""
    generations: int
    """Generations of the evolutionary refinement."""
    population: int
    slow_compilers_per_region: bool
    """Whether backends that compile slowly are tried on every region, or only on the whole model."""
    variants: int
    """How many variants of the graph (the original, rewritten ones) are placed region by region, the fastest first."""
    searched: int
    """How many graphs that a search over rewrites finds are timed."""
    generated_rules: bool
    """Whether that search also takes the rules that were found by enumeration."""
    search_methods: tuple[SearchMethod, ...]
    """By which methods it looks, one after another, in equal parts of its time."""
    risk: float
    """Of leaving out something that would have gained, for each thing that is left out: what gains with this probability or a
    smaller one is not measured, where it takes a sixth of the budget or longer, and at a smaller one in proportion where it is
    shorter. At 0 nothing is left out but what is bounded."""
    forgone: float | None = None
    """No race is held where the fastest so far surely loses no more than this share to any other; None where one is held always."""
    baselines: int | None = None
    """How many implementations of the whole model are measured before all else, those that are expected to be fastest; None for one
    of each backend that compiles quickly."""
    teams: bool = True
    """Whether small models are also measured on one thread, and on threads that do not spin."""
    continued: int = 4
    """How often a decision that is provisional is gone on with; 0 where every decision is final."""
    shares: Shares = Shares()


PROFILES: Mapping[Effort, EffortProfile] = {
    "instant": EffortProfile(
        budget_s=10.0,
        operator_s=0.02,
        compile_limit_s=15.0,
        rounds=5,
        most_rounds=5,
        race_rounds=15,
        pattern_rounds=6,
        race_seconds=4.0,
        race_processes=1,
        generations=0,
        population=0,
        slow_compilers_per_region=False,
        variants=1,
        searched=0,
        generated_rules=False,
        search_methods=("backtrack",),
        risk=0.5,
        baselines=2,
        forgone=0.05,
        teams=False,
    ),
    "quick": EffortProfile(
        budget_s=60.0,
        operator_s=0.05,
        compile_limit_s=60.0,
        rounds=7,
        most_rounds=28,
        race_rounds=60,
        pattern_rounds=18,
        race_seconds=35.0,
        race_processes=3,
        generations=2,
        population=6,
        slow_compilers_per_region=False,
        variants=1,
        searched=2,
        generated_rules=False,
        search_methods=("backtrack",),
        risk=0.1,
    ),
    "full": EffortProfile(
        budget_s=900.0,
        operator_s=2.0,
        compile_limit_s=300.0,
        rounds=15,
        most_rounds=28,
        race_rounds=150,
        pattern_rounds=60,
        race_seconds=150.0,
        race_processes=3,
        generations=8,
        population=12,
        slow_compilers_per_region=True,
        variants=2,
        searched=5,
        generated_rules=True,
        search_methods=("saturate", "backtrack"),
        risk=0.0,
    ),
}
