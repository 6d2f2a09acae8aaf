"""The seconds of a decision: read from the options once, when it begins, and cut here for every part of it.

`time_shares.Shares` says how large the parts are. A part of what another part has left is cut where that is known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from bricolage.base.deadline import Deadline
from bricolage.base.efforts import EffortProfile
from bricolage.base.options import Options
from bricolage.base.time_shares import Shares

_LEAST_LEFT = 0.5
"""Share of a budget that is left to measuring, however long the model took to read."""
_MOST_COUNTED = 4_000
"""Operators that add to the default budget: a graph of 50,000 would have hours otherwise."""
_LONG = 1 / 6
"""Share of the budget. What takes as long or longer is left out at the risk of the effort; what is shorter, at a risk that is
smaller in proportion, since it costs less to try."""
Part = Literal["regions", "placement", "rewrite_tuning", "rewrite_search"]
ServingPart = Literal["exploring", "racing"]


def choose_seconds(options: Options, default_s: float) -> float:
    """Of a command that measures without deciding: the user's, or those that such a command has by default."""
    return default_s if options.budget_s is None else options.budget_s


@dataclass(frozen=True)
class DecisionBudget:
    """Of one decision. All times in seconds, the final race included."""

    profile: EffortProfile
    whole_s: float
    """For measuring and searching a graph of its size, by the options ..."""
    total_s: float
    """... and what this decision has of them: less where it starts from another one, or the model took long to read."""
    by_user: bool = False
    """Whether the user gave the seconds; if not, the effort does."""

    @staticmethod
    def of(options: Options, operators: int, share: float = 1.0, spent_s: float = 0.0) -> DecisionBudget:
        """For a graph of that many operators.

        Args:
            options: with an effort, and seconds where the user gave some.
            operators: of the graph.
            share: what it has of the seconds.
            spent_s: what reading and preparing the model has taken of a user's seconds; half of them are left at least, so that
                there is time to measure. An effort's own budget begins behind that.
        """
        profile = options.profile
        if options.budget_s is None:
            whole_s = profile.budget_s + min(operators, _MOST_COUNTED) * profile.operator_s
            return DecisionBudget(profile, whole_s, share * whole_s)
        left_s = max(options.budget_s - spent_s, options.budget_s * _LEAST_LEFT)
        return DecisionBudget(profile, options.budget_s, share * left_s, by_user=True)

    def within(self, seconds: float) -> DecisionBudget:
        """The same with other seconds in total."""
        return replace(self, total_s=seconds)

    def start(self, taken: Callable[[], float]) -> Deadline:
        """Its end. `taken`: seconds that other processes have taken since, of which some are given back."""
        return Deadline(self.total_s, taken=taken, most=self.shares.given_back)

    @property
    def shares(self) -> Shares:
        """How it is cut, and floors in seconds."""
        return self.profile.shares

    @property
    def race_s(self) -> float:
        """For the final race: the effort's, but never more than its share."""
        return min(self.profile.race_seconds, self.whole_s * self.shares.race)

    @property
    def compile_limit_s(self) -> float:
        """That one candidate may compile."""
        return max(min(self.profile.compile_limit_s, self.whole_s), self.whole_s / 2)

    @property
    def tuning_opening_s(self) -> float:
        """For the reference and the baselines of a search for kernels by itself."""
        return self.shares.tuning.opening * self.total_s

    @property
    def gives_turns(self) -> bool:
        """Whether backends that read most models have their turn whatever the clock says."""
        return self.whole_s >= self.shares.turns_s

    def part_s(self, part: Part) -> float:
        """That a part of the agenda may take."""
        share: float = getattr(self.shares, part)
        return share * self.total_s

    def serving_s(self, part: ServingPart) -> float:
        """That a part of a decision for throughput may take."""
        share: float = getattr(self.shares.throughput, part)
        return share * self.total_s

    def tailoring_s(self, step: str) -> float:
        """For the rounds of a step of racing variants for one backend."""
        return self.shares.tailoring.rounds(step) * self.whole_s

    def kernel_tuning_s(self, opening_s: float) -> float:
        """Of a slice of a search for kernels: its share, or the least in which anything can be found. `opening_s`: until the first
        trial."""
        return max(self.shares.tuning.turn_s + opening_s, self.shares.kernel_tuning * self.total_s)

    def other_sizes_s(self, decided_s: float) -> float:
        """For trying an artifact at other sizes, after a decision that took `decided_s`."""
        return max(self.shares.sizes_s, self.shares.sizes * decided_s)

    def accepted_risk(self, seconds: float) -> float:
        """Chance of a gain up to which something that takes so long is left out."""
        return self.profile.risk * min(1.0, seconds / (_LONG * self.total_s))
