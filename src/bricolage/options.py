"""Everything a user can set, as frozen dataclasses. The command line's options are these fields."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from bricolage.errors import BadOption, UnknownPrecision

Precision = Literal["highest", "high", "medium"]
Effort = Literal["quick", "full"]

PRECISIONS: tuple[Precision, ...] = get_args(Precision)
EFFORTS: tuple[Effort, ...] = get_args(Effort)

BOUNDS: Mapping[Precision, float] = {"highest": 1e-6, "high": 1e-4, "medium": 2e-2}
"""Accepted relative error ‖y - y64‖ / ‖y64‖ per precision word."""


def available_cores() -> int:
    """Cores that this process may use (its affinity mask, not the machine's count)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


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
    """Interleaved rounds of the first measurement of a candidate."""
    race_rounds: int
    """Interleaved rounds of the final race."""
    race_seconds: float
    """Upper bound on the final race."""
    generations: int
    """Generations of the evolutionary refinement."""
    population: int
    slow_compilers_per_region: bool
    """Whether backends that compile slowly are tried on every region, or only on the whole model."""
    forms: int
    """How many variants of the graph (the original, rewritten ones) are placed region by region, the fastest first."""
    searched: int
    """How many graphs that a search over rewrites finds are timed."""
    generated_rules: bool
    """Whether that search also takes the rules that were found by enumeration."""
    tunes: bool
    """Whether backends that can search for better kernels on this machine do so, for what has done well."""


PROFILES: Mapping[Effort, EffortProfile] = {
    "quick": EffortProfile(
        budget_s=90.0,
        operator_s=0.25,
        compile_limit_s=60.0,
        rounds=7,
        race_rounds=60,
        race_seconds=25.0,
        generations=2,
        population=6,
        slow_compilers_per_region=False,
        forms=1,
        searched=2,
        generated_rules=False,
        tunes=False,
    ),
    "full": EffortProfile(
        budget_s=900.0,
        operator_s=2.0,
        compile_limit_s=300.0,
        rounds=15,
        race_rounds=150,
        race_seconds=120.0,
        generations=8,
        population=12,
        slow_compilers_per_region=True,
        forms=2,
        searched=5,
        generated_rules=True,
        tunes=True,
    ),
}


@dataclass(frozen=True)
class Options:
    """Options of `optimize`. Every field is validated when the object is made.

    Raises:
        UnknownPrecision, BadOption: a value is out of range.
    """

    precision: Precision = "highest"
    tolerance: float | None = None
    """Relative error accepted; overrides the precision word's bound."""
    effort: Effort = "quick"
    budget_s: float | None = None
    """Overrides the effort's budget, for a model of any size."""
    threads: int = field(default_factory=available_cores)
    backends: tuple[str, ...] | None = None
    """Names of the backends allowed; None means all that are installed."""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Sizes per symbolic dimension. More than one size makes shape buckets, paired by position."""
    rewrite: bool = True
    """Whether rewritten variants of the graph take part."""
    seed: int = 0
    memory_limit_mb: int | None = None
    """Resident memory of one worker process; None means 80 % of what is free now."""

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise UnknownPrecision(name=self.precision)
        if self.effort not in EFFORTS:
            raise BadOption(option="effort", value=self.effort, advice="Use quick or full")
        if self.tolerance is not None and not 0.0 < self.tolerance < 1.0:
            raise BadOption(option="tolerance", value=self.tolerance, advice="Give a number between 0 and 1")
        if self.budget_s is not None and self.budget_s <= 0:
            raise BadOption(option="budget", value=self.budget_s, advice="Give a positive time, for example 60s")
        if self.threads < 1:
            raise BadOption(option="threads", value=self.threads, advice="Give at least 1")
        for name, sizes in self.shapes.items():
            if not sizes or any(size < 1 for size in sizes):
                raise BadOption(option="shape", value=f"{name}={sizes}", advice="Give positive sizes: name=1,128")

    @property
    def profile(self) -> EffortProfile:
        return PROFILES[self.effort]

    def budget(self, operators: int) -> float:
        """Seconds for measuring and searching a graph of that many operators, the final race included."""
        return (
            self.budget_s if self.budget_s is not None else self.profile.budget_s + operators * self.profile.operator_s
        )

    def race_seconds(self, operators: int) -> float:
        """Seconds for the final race: the profile's, but never more than a third of the budget."""
        return min(self.profile.race_seconds, self.budget(operators) / 3)

    def compile_limit(self, operators: int) -> float:
        """Seconds that one candidate may compile."""
        return max(min(self.profile.compile_limit_s, self.budget(operators)), self.budget(operators) / 2)

    @property
    def bound(self) -> float:
        """Relative error that is always accepted."""
        return self.tolerance if self.tolerance is not None else BOUNDS[self.precision]


def parse_shapes(words: tuple[str, ...] | list[str]) -> dict[str, tuple[int, ...]]:
    """`["batch=1,8", "sequence=128"]` → sizes per symbolic dimension.

    Raises:
        BadOption: a word is not NAME=SIZE[,SIZE...].
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for word in words:
        name, equals, sizes = word.partition("=")
        try:
            if not (name and equals):
                raise ValueError
            shapes[name] = tuple(int(size) for size in sizes.split(","))
        except ValueError:
            raise BadOption(option="--shape", value=word, advice="Write NAME=SIZE or NAME=SIZE,SIZE") from None
    return shapes


def parse_seconds(text: str) -> float:
    """`"90"`, `"90s"`, `"2m"` or `"1h"` → seconds.

    Raises:
        BadOption: not a time.
    """
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1.0)
    try:
        return float(number) * unit
    except ValueError:
        raise BadOption(option="--budget", value=text, advice="Write for example 60s, 5m or 1h") from None
