"""The search for an operating point: how many streams, of how many threads, with how many rows together answer the most requests
a second. All of it is measured, in closed loops and interleaved; what is known of single calls only says whom to leave out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from bricolage.base.budget import DecisionBudget
from bricolage.base.deadline import Deadline
from bricolage.device import memory
from bricolage.driver.serving import Batch, ServingCandidate, of_backend, unique, usable_cores, weight_bytes
from bricolage.driver.session import Session
from bricolage.driver.stages.profiling import check_baselines
from bricolage.driver.timed_variant import NEAR
from bricolage.driver.whole_models import measure_baselines
from bricolage.errors import LatencyLimit, NoBackend
from bricolage.measure.race import race
from bricolage.measure.race_record import Race
from bricolage.measure.request_rates import ServedLoad, time_serving
from bricolage.measure.specs import TimingPolicy
from bricolage.measure.statistics import Ratio, significant
from bricolage.plan.race_outcome import other_tool
from bricolage.plan.throughput import ServingConfig, Throughput
from bricolage.search.placement.pareto import front
from bricolage.work.gain import LEAST_GAIN
from bricolage.work.implementation import Implementation

_LOG = logging.getLogger(__name__)
_SURVIVES = 1.5
"""Programs race, and are tried at larger batches, whose best rate is at most this many times lower than the best one."""
_AT_LEAST = 3
"""Programs that are tried in any case: the first measurement of one may say anything."""
_FINALISTS = 8
_POINTS = 2
"""Operating points with which one program races, at most."""
_PLACED = 2
"""Operating points for which a placement is decided, at most."""
_NEAR_BEST = 1.1
"""The second of them must come within this factor of the first."""
_POLICY = TimingPolicy(rounds=5, most_rounds=10, warm_s=0.15, probe=2, hopeless=2.0)
_LEAST_COPY_BYTES = 64 << 20
"""Memory that a copy of a program is taken to need at least."""

Place = Callable[[ServingCandidate, Deadline], "ServingCandidate | None"]
"""Divides the model among backends for the batch and the cores of one stream of a candidate; None where a single backend is
best."""


class NotBatched(Exception):
    """Requests cannot be put together; its text says why."""


@dataclass
class TriedCandidate:
    """A candidate and what came of it."""

    candidate: ServingCandidate
    served: ServedLoad
    raced: bool = False


@dataclass
class ThroughputSearch:
    """Finds out who answers the most requests a second."""

    session: Session
    batch: Callable[[int], Batch]
    """The model at a batch size. It raises NotBatched where requests cannot be put together so."""
    sizes: Sequence[int]
    """Batch sizes to try, ascending; what does not gain ends the row."""
    limit_ms: float | None = None
    """Of the p99 latency."""
    tried: dict[str, TriedCandidate] = field(default_factory=dict)
    no_batches: str = ""

    # --- single backends --------------------------------------------------------------------------------------------

    def explore(self, deadline: Deadline) -> None:
        """Every backend that may be the best, in every layout, at growing batches.

        Raises:
            NoBackend, NoPlacement, NotAccurate: nothing runs the model, or nothing is right.
            LatencyLimit: nothing answers a single request in time.
        """
        first = self.batch(self.sizes[0])
        programs = self._reachable(first, deadline.at_most(deadline.left / 3))
        self._measure([candidate for each in programs for candidate in of_backend(each, first, self.session)], deadline)
        self._check()
        best = self._best_rate(plans=False)
        for rows in self.sizes[1:]:
            programs = self._survivors(programs)
            if deadline():
                break
            try:
                batch = self.batch(rows)
            except NotBatched as reason:
                self.no_batches = str(reason)
                break
            self._measure(
                [candidate for each in programs for candidate in of_backend(each, batch, self.session)], deadline
            )
            previous, best = best, self._best_rate(plans=False)
            if best <= previous * (1 + LEAST_GAIN):
                break

    def _reachable(self, batch: Batch, deadline: Deadline) -> list[Implementation]:
        """Backends that may answer the most, by their times for one call on all cores, fastest first. On one core each, calls on
        c cores cannot become more than c times as many; so one that is that much slower is out of reach. Compilers that are
        slow have to come near."""
        variant, shares = batch.variant, self.session.budget.shares
        measure_baselines(variant, deadline.at_least(shares.baselines_s))
        check_baselines(variant)
        times, cores = variant.times, usable_cores(self.session)
        fastest = min(times.values())
        reachable = []
        for place, time in enumerate(sorted(times, key=times.__getitem__)):
            slow = self.session.backend(time.backend).compiles_slowly
            if place < _AT_LEAST or times[time] <= fastest * (NEAR if slow else max(cores, NEAR)):
                reachable.append(time)
            else:
                _LOG.info("%s is out of reach: %.3g ms a call, the best %.3g ms", time, times[time], fastest)
        return reachable

    def _survivors(self, programs: Sequence[Implementation]) -> list[Implementation]:
        best = self._best_rate(plans=False)
        rates: dict[str, float] = {}
        for trial in self._feasible():
            rates[trial.candidate.program] = max(rates.get(trial.candidate.program, 0.0), trial.served.rate or 0.0)
        return [program for program in programs if rates.get(str(program), 0.0) * _SURVIVES >= best]

    def _check(self) -> None:
        answered = [trial for trial in self.tried.values() if trial.served.p99_ms is not None]
        if not answered:
            reasons = "; ".join(f"{name}: {trial.served.cost.reason}" for name, trial in self.tried.items())
            raise NoBackend(why=f" in streams ({reasons})" if reasons else " in the time given")
        if not self._feasible():
            raise self._too_late(min(answered, key=lambda trial: trial.served.p99_ms or 0.0))

    def _too_late(self, best: TriedCandidate) -> LatencyLimit:
        limit, reached = f"{self.limit_ms or 0.0:g} ms", f"{best.served.p99_ms or 0.0:.3g} ms"
        return LatencyLimit(limit=limit, best=reached, name=best.candidate.name)

    # --- measuring --------------------------------------------------------------------------------------------------

    def _measure(self, candidates: Iterable[ServingCandidate], deadline: Deadline) -> None:
        """Times candidates of one batch, as many at a time as memory takes."""
        todo = [candidate for candidate in unique(list(candidates)) if candidate.name not in self.tried]
        progress = self.session.progress
        progress.start(f"streams, batch {todo[0].batch.rows}" if todo else "streams", len(todo))
        while todo and not (deadline() and self._best_rate(plans=False)):
            fitting = self._that_fit(todo)
            todo = todo[len(fitting) :]
            self._measure_together(fitting, deadline)
            progress.advance(len(fitting), fitting[0].program)
        progress.finish()

    def _measure_together(self, some: Sequence[ServingCandidate], deadline: Deadline) -> None:
        batch = some[0].batch
        by_name = {candidate.name: candidate for candidate in some}
        policy = replace(_POLICY, seconds=max(1.0, min(len(some) * 3.0, deadline.left)))
        served_loads = time_serving(
            self.session.measurer,
            {name: candidate.spec(self.session) for name, candidate in by_name.items()},
            batch.inputs,
            batch.expected,
            batch.bound,
            policy,
        )
        self.tried.update({name: TriedCandidate(by_name[name], served) for name, served in served_loads.items()})

    @staticmethod
    def _that_fit(todo: Sequence[ServingCandidate]) -> list[ServingCandidate]:
        """The first, and those after it for whose copies there is memory: each takes twice its weights."""
        room = max(0, memory.available_bytes() - memory.reserve_bytes()) // 2
        fitting: list[ServingCandidate] = []
        for candidate in todo:
            room -= candidate.streams * max(_LEAST_COPY_BYTES, 2 * weight_bytes(candidate.graph))
            if fitting and room < 0:
                break
            fitting.append(candidate)
        return fitting

    def _feasible(self) -> list[TriedCandidate]:
        """Those that are right and in time, the most requests a second first."""
        feasible = [trial for trial in self.tried.values() if trial.served.within(self.limit_ms)]
        return sorted(feasible, key=lambda trial: (-(trial.served.rate or 0.0), trial.candidate.name))

    def _best_rate(self, *, plans: bool = True) -> float:
        """Requests a second of the best one; without `plans`, of single backends."""
        rates = (trial.served.rate or 0.0 for trial in self._feasible() if plans or trial.candidate.kind != "plan")
        return max(rates, default=0.0)

    def enter(self, candidates: Iterable[ServingCandidate]) -> None:
        """Tries candidates from elsewhere; those that are plans race in any case."""
        for candidate in candidates:
            self._measure([candidate], Deadline(float("inf")))

    # --- placements -------------------------------------------------------------------------------------------------

    def place(self, place: Place, deadline: Deadline) -> None:
        """Decides placements for the best operating points of copies, and tries them."""
        best = self._best_rate()
        points: dict[tuple[int, int, int], ServingCandidate] = {}
        for trial in self._feasible():
            candidate = trial.candidate
            if candidate.kind == "copies" and (not points or (trial.served.rate or 0.0) * _NEAR_BEST >= best):
                points.setdefault((candidate.streams, candidate.threads, candidate.batch.rows), candidate)
        chosen = list(points.values())[:_PLACED]
        for number, candidate in enumerate(chosen):
            if deadline():
                break
            placed = place(candidate, deadline.at_most(deadline.left / (len(chosen) - number)))
            if placed is not None:
                self._measure([placed], deadline.at_most(float("inf")))

    # --- the race ---------------------------------------------------------------------------------------------------

    def finalists(self) -> list[ServingCandidate]:
        """Who races: of each single backend and queue the best operating points, where they come near the best; every plan; and
        the best other tool in any case."""
        best, program_rates, selected = (
            self._best_rate(),
            dict[tuple[str, str], list[float]](),
            list[ServingCandidate](),
        )
        for trial in self._feasible():
            rate, plan = trial.served.rate or 0.0, trial.candidate.kind == "plan"
            rates = program_rates.setdefault((trial.candidate.program, trial.candidate.kind), [])
            near = rate * _SURVIVES >= best or (not rates and len(program_rates) <= _AT_LEAST)
            open_ = not rates or (len(rates) < _POINTS and rate * _NEAR_BEST >= rates[0])
            if open_ and (plan or (near and len(selected) < _FINALISTS)):
                rates.append(rate)
                selected.append(trial.candidate)
        others = [trial.candidate for trial in self._feasible() if _other_tool(trial)]
        known_names = {candidate.name for candidate in selected}
        return selected if not others or any(other.name in known_names for other in others) else [*selected, others[0]]

    def decide(self, deadline: Deadline) -> Throughput:
        """Races the finalists, and chooses.

        Raises:
            LatencyLimit: in the race, none answers in time any more.
        """
        racing = self.finalists()
        ran = self._race(racing, deadline) if len(racing) > 1 and not deadline.interrupted else None
        if ran is not None:
            for candidate in racing:
                if candidate.name in ran.costs:
                    served = ServedLoad.of(ran.costs[candidate.name], ran.served.get(candidate.name, ()))
                    self.tried[candidate.name] = TriedCandidate(candidate, served, raced=served.rate is not None)
        self._check()
        return self._chosen(ran)

    def _race(self, racing: Sequence[ServingCandidate], deadline: Deadline) -> Race:
        effort, progress = self.session.profile, self.session.progress
        progress.start("final race", effort.race_rounds * len(racing))
        incumbent = next((candidate for candidate in racing if candidate.kind != "plan"), racing[0])
        graph = incumbent.batch.variant.graph
        budget = DecisionBudget.of(self.session.options, len(graph))  # at another batch it may have more operators
        ran = race(
            self.session.measurer,
            {candidate.name: candidate.spec(self.session) for candidate in racing},
            incumbent.batch.inputs,
            incumbent.batch.expected,
            incumbent.batch.bound,
            files={candidate.name: (candidate.batch.inputs, candidate.batch.expected) for candidate in racing},
            rounds=effort.race_rounds,
            seconds=budget.race_s,
            incumbent=incumbent.name,
            progress=lambda name, _: progress.advance(1, name),
            processes=effort.race_processes,
            left=lambda: deadline.left,
        )
        progress.finish()
        return ran

    def _chosen(self, ran: Race | None) -> Throughput:
        feasible = self._feasible()
        raced = [trial for trial in feasible if trial.raced] or feasible
        peers = [trial for trial in raced if trial.candidate.kind != "plan"]
        shippable = [trial for trial in raced if trial.candidate.kind != "queue"] or [
            trial for trial in feasible if trial.candidate.kind != "queue"
        ]
        if not shippable:
            raise self._too_late(feasible[0])
        copies = [trial for trial in shippable if trial.candidate.kind == "copies"]
        chosen = (copies or shippable)[0]
        for plan in (trial for trial in shippable if trial.candidate.kind == "plan" and copies):
            ratio = _ratio(ran, plan, chosen)
            if ratio is not None and significant(ratio):
                chosen = plan
                break
        best = (peers or [chosen])[0]
        over = Ratio(1.0, 1.0, 1.0, 0) if best is chosen else _ratio(ran, chosen, best)
        if over is None:
            value = (chosen.served.rate or 0.0) / (best.served.rate or 1.0)
            over = Ratio(value, value, value, 0)
        other = best if _other_tool(best) else next((peer for peer in (*peers, *feasible) if _other_tool(peer)), None)
        servers = [self._server(trial, ran, best, chosen) for trial in self.tried.values()]
        servers.sort(key=lambda server: (server.rate is None, -(server.rate or 0.0), server.name))
        # Figures of the race and of before it are not from the same minutes: the front is of one kind.
        shown = [
            server for server in servers if server.accepted and server.rate is not None and server.p99_ms is not None
        ]
        throughput = Throughput(
            servers=tuple(servers),
            chosen=chosen.candidate.name,
            best_peer=best.candidate.name,
            ratio=over.value,
            ratio_ci=(over.low, over.high),
            significant=chosen.candidate.kind == "plan" and significant(over),
            front=front({server.name: (server.rate or 0.0, server.p99_ms or 0.0) for server in shown}),
            latency_limit_ms=self.limit_ms,
            no_batches=self.no_batches,
        )
        return throughput if other is None else _beside_other(throughput, ran, chosen, other)

    def _server(
        self, one: TriedCandidate, ran: Race | None, best: TriedCandidate, chosen: TriedCandidate
    ) -> ServingConfig:
        reason = ""
        p99, limit = one.served.p99_ms, self.limit_ms
        ratio = None if one is best else _ratio(ran, one, best)
        if one is not chosen and one.served.cost.outcome == "ok":
            if p99 is not None and limit is not None and p99 > limit:
                reason = f"too late: 99 of 100 requests within {p99:.3g} ms, asked for were {limit:g}"
            elif one.candidate.kind == "queue" and one is best:
                reason = "a queue of the backend's own, which no plan can hold"
            elif one.candidate.kind == "plan":
                reason = "not raced" if ratio is None else f"{ratio} of {best.candidate.name}"
        server = one.candidate.server(one.served, one.raced, reason)
        if ratio is None:
            return server
        return replace(server, ratio=ratio.value, ratio_ci=(ratio.low, ratio.high))


def _other_tool(one: TriedCandidate) -> bool:
    implementation = one.candidate.implementation
    return implementation is not None and other_tool(implementation)


def _beside_other(found: Throughput, ran: Race | None, chosen: TriedCandidate, other: TriedCandidate) -> Throughput:
    """With the best other tool, and how many more requests than that the chosen one answers."""
    found = replace(found, best_other=other.candidate.name)
    if chosen is other:
        return replace(found, over_other=1.0, over_other_ci=(1.0, 1.0))
    if (ratio := _ratio(ran, chosen, other)) is not None:
        return replace(found, over_other=ratio.value, over_other_ci=(ratio.low, ratio.high))
    return replace(found, over_other=(chosen.served.rate or 0.0) / (other.served.rate or 1.0))


def _ratio(ran: Race | None, one: TriedCandidate, other: TriedCandidate) -> Ratio | None:
    """Requests a second of one over those of the other, in rounds that both took part in."""
    if ran is None or not (one.raced and other.raced) or one is other:
        return None
    return ran.ratio(one.candidate.name, other.candidate.name)
