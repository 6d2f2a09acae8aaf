"""What came of a race: samples of every round, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from bricolage.base.options import Pattern
from bricolage.costs.entries import Cost
from bricolage.costs.latency import Latency, enough
from bricolage.measure.statistics import Ratio, paired_ratio
from bricolage.measure.turns import Round, Turns
from bricolage.work.gain import LEAST_GAIN


@dataclass(frozen=True)
class Race(Turns):
    """What happened: raw samples of every round, and a cost for every contestant."""

    costs: Mapping[str, Cost]
    """Latency, error, compile time or reason. A contestant that never had its turn is absent."""
    first_ms: Mapping[str, float]
    """Duration of the very first run, milliseconds."""
    processes: tuple[int, ...] = ()
    """For each round, in which of their processes the contestants were; empty where all had one."""
    disturbed: tuple[frozenset[str], ...] = ()
    """For each round, whose turn others disturbed; empty where none was."""
    served: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Of contestants that answer several requests at a time: milliseconds that single calls took."""
    incumbent: str = ""
    """Who was in every heat."""
    others: tuple[Round, ...] = ()
    """For each round, samples of the pattern of calls that does not decide; empty where one pattern alone was timed."""
    pattern: Pattern = "steady"
    """The one that decides: `rounds` are of it."""

    @property
    def other_pattern(self) -> Turns:
        """What was timed in the pattern that does not decide."""
        return Turns(tuple(round_ for round_ in self.others if round_))

    def ratio(self, challenger: str, incumbent: str, through: str | None = None, seed: int = 0) -> Ratio | None:
        """Speed-up of the challenger over the incumbent in the rounds that both took part in.

        Where they never met, because memory allowed only some at a time, they are compared by way of `through`, which
        met both. None where that is impossible, too.
        """
        shared = [i for i, round_ in enumerate(self.rounds) if challenger in round_ and incumbent in round_]
        if shared:
            before, after = ([self.rounds[i][name] for i in shared] for name in (incumbent, challenger))
            owners = [self.processes[i] for i in shared] if self.processes else None
            bad = [bool(self.disturbed[i] & {challenger, incumbent}) for i in shared] if self.disturbed else []
            return paired_ratio(before, after, seed, owners, bad)
        if through is None or through in (challenger, incumbent):
            return None
        first, second = self.ratio(challenger, through, seed=seed), self.ratio(through, incumbent, seed=seed)
        return first.through(second) if first is not None and second is not None else None

    def noisy(self, name: str) -> bool:
        """Whether others disturbed too many rounds of a contestant that those without do not suffice."""
        return (cost := self.costs.get(name)) is not None and cost.disturbed

    @property
    def undecided(self) -> tuple[str, ...]:
        """Who may be the fastest, where others disturbed the race too much for it to say: the fastest, and everyone
        whose ratio to it is open and wider than what counts as a gain. Empty where the race decides."""
        best, rivals = self.fastest, list[str]()
        for name, cost in self.costs.items():
            if best is None or name == best or cost.ms is None or not (self.noisy(name) or self.noisy(best)):
                continue
            ratio = self.ratio(best, name)
            if ratio is None or (ratio.low <= 1.0 and ratio.high - ratio.low > LEAST_GAIN):
                rivals.append(name)
        return (best, *rivals) if best is not None and rivals else ()

    @property
    def inconclusive(self) -> bool:
        """Whether others disturbed the fastest, or left open who it is: then the race should not decide alone."""
        best = self.fastest
        return best is not None and (self.noisy(best) or bool(self.undecided))

    @property
    def fastest(self) -> str | None:
        """Contestant with the lowest median; None where none arrived."""
        arrived = {name: cost.ms for name, cost in self.costs.items() if cost.ms is not None}
        return min(arrived, key=lambda name: (arrived[name], name)) if arrived else None


def join_race_parts(parts: Sequence[Race]) -> Race:
    """One race of several in which the contestants had other processes."""
    if len(parts) == 1:
        return parts[0]
    rounds = tuple(round_ for part in parts for round_ in part.rounds)
    disturbed = [names for part in parts for names in part.disturbed or [frozenset[str]()] * len(part.rounds)]
    costs: dict[str, Cost] = {}
    for name in dict.fromkeys(name for part in parts for name in part.costs):
        part_costs = [part.costs[name] for part in parts if name in part.costs]
        part_costs = [cost for cost in part_costs if cost.outcome != "lost"] or part_costs[:1]
        failed = next((cost for cost in part_costs if cost.outcome != "ok"), None)
        samples = [round_[name] for round_ in rounds if name in round_]
        bad = [name in names for round_, names in zip(rounds, disturbed, strict=True) if name in round_]
        worst = max(part_costs, key=lambda cost: cost.error if cost.error is not None else -1.0)
        shaken = any(bad) and not enough(bad.count(False), len(bad))
        costs[name] = failed or replace(worst, latency=Latency.of_rounds(samples, bad), disturbed=shaken)
    first = {name: ms for part in reversed(parts) for name, ms in part.first_ms.items()}
    owners = tuple(i for i, part in enumerate(parts) for _ in part.rounds)
    served = {name: tuple(ms for part in parts for ms in part.served.get(name, ())) for name in costs}
    served = {name: calls for name, calls in served.items() if calls}
    others = tuple(round_ for part in parts for round_ in part.others)
    return Race(rounds, costs, first, owners, name_disturbed(disturbed), served, others=others)


def name_disturbed(disturbed: Sequence[AbstractSet[str]]) -> tuple[frozenset[str], ...]:
    """By round, who was disturbed; nothing where none ever was."""
    return tuple(map(frozenset, disturbed)) if any(disturbed) else ()
