"""What each part of the search for placements is worth, and by how much the best mixture wins or loses.

    python -m benchmarks.ablation --workload collage --json
    python -m benchmarks.ablation --workload collage --without native
    python -m benchmarks.ablation --workload collage-resnext --batch 1,4,8,16

For each workload all costs are measured first, as `optimize` does: the whole on every backend, then regions. Every variant of the
search gets the same costs, and what it finds runs in one race, interleaved with every backend alone, all checked against float64:

* `priority`: each operator goes to the first backend in a fixed order that takes it, neighbours together (as ONNX Runtime
  assigns its execution providers). The order is that of their times on the whole model, so this is the rule at its best.
* `per operator`: each operator goes to whoever runs it fastest alone.
* `collage op`, `collage`: Collage's own two levels (`benchmarks.placement.collage_search`).
* `exact`: the exact optimum of regions' costs and measured transfers. `two-level`: refined end to end; what `optimize` does.
* `+ NAME`: `exact` with the backends up to NAME, the slowest on the whole model first.

Each comes with its predicted time, the proven bound on what any placement costs by the same model, and its search time. `mix` is
the proof: the cheapest placement by that model that does not leave everything to whoever is the fastest alone, and how much it
loses.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from benchmarks.latency import select, without
from benchmarks.placement import collage_search
from benchmarks.tools.opening import state_of
from benchmarks.tools.output import keep
from benchmarks.workloads import Workload, workloads
from bricolage.backends import registry
from bricolage.base.deadline import Deadline
from bricolage.base.options import PRECISIONS, Options, Precision
from bricolage.device.host import host
from bricolage.driver.final_race import FinalRace, RaceResult, race_result
from bricolage.driver.placement_problem import PlacementProblem
from bricolage.driver.stage import Runner
from bricolage.driver.stages.profiling import Baselines, Reference, Regions
from bricolage.driver.state import Challenger, DecisionState
from bricolage.driver.timed_variant import TimedVariant
from bricolage.errors import BricolageError, NoCover, NoPlacement
from bricolage.search.placement.exact import solve
from bricolage.search.placement.merge import merge_regions
from bricolage.work.implementation import Placement
from bricolage.work.placement import Candidate, PlacementResult

_TRANSFERS_S, _REFINING_S = 60.0, 40.0
"""Longest measuring of transfers, and refining end to end."""
_MIX_S = 30.0
"""Longest search for the cheapest mixture."""


@dataclass(frozen=True)
class Row:
    """One way of searching on one workload. Milliseconds."""

    variant: str
    search_s: float
    regions: int = 0
    backends: tuple[str, ...] = ()
    predicted_ms: float | None = None
    bound_ms: float | None = None
    """Proven: no placement of regions that were measured, with the same backends, costs less by their sum. A prediction of regions
    that were not measured alone, merged by the model of their engine, may lie below."""
    ms: float | None = None
    """In the race; that of an equal plan where there is one."""
    ci_ms: tuple[float, float] | None = None
    speedup: float | None = None
    """Over the best backend alone, paired, in the race."""
    speedup_ci: tuple[float, float] | None = None
    note: str = ""

    @property
    def gap(self) -> float | None:
        """How far the prediction is above the bound, as a part of it."""
        if self.predicted_ms is None or not self.bound_ms:
            return None
        return self.predicted_ms / self.bound_ms - 1.0


@dataclass(frozen=True)
class Mix:
    """The cheapest placement by the model that is not the best single backend alone."""

    ms: float
    """By the model."""
    alone_ms: float
    """The best single backend, by the same model."""
    proven: bool
    """Whether it is the optimum: all searches ended in time."""
    backends: tuple[str, ...]

    @property
    def loss(self) -> float:
        """By which it is slower, as a part; below zero it is faster."""
        return self.ms / self.alone_ms - 1.0


@dataclass(frozen=True)
class Result:
    """All of one workload."""

    workload: str
    batch: int
    precision: str
    threads: int
    without: tuple[str, ...]
    best_single: str
    best_single_ms: float
    costs_s: float
    """That measuring took, of the whole and of regions."""
    rows: tuple[Row, ...]
    mix: Mix | None
    dropped: Mapping[str, str] = field(default_factory=dict)
    """Backends that could not run the whole, and why."""


def batched(workload: Workload, batch: int) -> Workload:
    """The workload with so many inputs at a time.

    Raises:
        BricolageError: its file is not exported from the network.
    """
    if batch == 1:
        return workload
    if workload.write is not None or workload.symbolic:
        raise BricolageError(message=f"{workload.name} is written by hand, for one batch")

    def inputs(seed: int) -> dict[str, np.ndarray]:
        several = [workload.example_inputs(seed + number) for number in range(batch)]
        return {name: np.concatenate([one[name] for one in several]) for name in several[0]}

    return replace(
        workload, name=f"{workload.name}-batch{batch}", example_inputs=inputs, gflops=workload.gflops * batch
    )


def run(name: str, batch: int, options: Options, genetic_s: float) -> Result:
    """Searches in every way and races what was found.

    Raises:
        BricolageError: nothing runs the workload.
    """
    workload = batched(workloads()[name], batch)
    with state_of(workload, options, registry.available(options.backends)) as state:
        start = time.monotonic()
        Runner([Reference(), Baselines(every=True), Regions()]).run(state, Deadline(state.budget.total_s))
        costs_s = time.monotonic() - start
        searches = _Searches(state, genetic_s)
        found = searches.all()
        state.challenge(*(Challenger(row.variant, placement, None) for row, placement in found if placement))
        FinalRace().run(state, Deadline(state.budget.race_s * 3))
        result = race_result(state)
        assert result is not None
        mix = _mix(state.original, searches.problem)
    return _told(workload, batch, options, state.original, result, found, mix, costs_s)


class _Searches:
    """All ways of searching, on the same costs."""

    def __init__(self, state: DecisionState, genetic_s: float) -> None:
        self._variant, self._genetic_s = state.original, genetic_s
        fastest: dict[str, float] = {}
        for one, ms in self._variant.times.items():
            fastest[one.backend] = min(ms, fastest.get(one.backend, ms))
        self.problem = PlacementProblem(self._variant, Deadline(_TRANSFERS_S))
        taking_part = {one.implementation.backend for one in self.problem.candidates}
        self._order = sorted(taking_part, key=lambda name: fastest.get(name, float("inf")))
        """Backends that could be part of a winning mixture, as `optimize` chooses them, the fastest on the whole model first."""

    def all(self) -> list[tuple[Row, Placement]]:
        """What each found; an empty placement where it found none."""
        problem = self.problem
        exact = problem.solve()
        bound = min(exact.lower_bound_ms, *self._variant.times.values())  # the whole on one is no part of the problem
        found = [
            self._one("priority", problem, lambda: self._priority(problem), bound),
            self._one("per operator", problem, lambda: self._per_operator(problem), bound),
            *self._collage(problem, bound),
            self._row("exact", problem, _placement(exact), exact.statistics.seconds, bound, predicted=exact.total_ms),
            self._one("two-level", problem, lambda: self._refined(problem, exact), bound),
        ]
        slowest_first = [name for name in reversed(self._order) if name in {one.backend for one in self._variant.times}]
        return [*found, *(self._among(slowest_first[:count]) for count in range(1, len(slowest_first)))]

    def _one(
        self, variant: str, problem: PlacementProblem, search: Callable[[], Placement], bound: float
    ) -> tuple[Row, Placement]:
        start = time.monotonic()
        try:
            placement = search()
        except (NoPlacement, NoCover) as error:
            return Row(variant, time.monotonic() - start, note=error.sentence), ()
        return self._row(variant, problem, placement, time.monotonic() - start, bound)

    def _row(
        self,
        variant: str,
        problem: PlacementProblem,
        placement: Placement,
        seconds: float,
        bound: float,
        note: str = "",
        predicted: float | None = None,
    ) -> tuple[Row, Placement]:
        """`predicted`: by the search itself; otherwise the whole on one backend costs what was measured, and the predictor is
        asked for the rest."""
        alone = {self._variant.placement_of(one): ms for one, ms in self._variant.times.items()}
        if predicted is None:
            predicted = alone.get(placement, problem.predictor.placement(placement))
        backends = tuple(dict.fromkeys(one.implementation.backend for one in placement))
        known = predicted if np.isfinite(predicted) else None
        return Row(variant, seconds, len(placement), backends, known, bound, note=note), placement

    def _priority(self, problem: PlacementProblem) -> Placement:
        best = {one.backend: one for one in sorted(self._variant.times, key=lambda o: -self._variant.times[o])}
        chosen: list[Candidate] = []
        for number in range(len(self._variant.graph)):
            takes = [b for b in self._order if b in best and self._variant.candidates.claimed[b] >> number & 1]
            if not takes:
                operator = self._variant.graph.operators[number]
                raise NoPlacement(name=operator.name, op_type=operator.op_type)
            chosen.append(Candidate(1 << number, best[takes[0]], 0.0))
        return merge_regions(problem.graph, chosen)

    @staticmethod
    def _per_operator(problem: PlacementProblem) -> Placement:
        best: dict[int, Candidate] = {}
        for one in problem.candidates:
            known = best.get(one.region)
            if one.region.bit_count() == 1 and (known is None or one.cost_ms < known.cost_ms):
                best[one.region] = one
        for number in range(len(problem.graph)):
            if 1 << number not in best:
                operator = problem.graph.operators[number]
                raise NoPlacement(name=operator.name, op_type=operator.op_type)
        return merge_regions(problem.graph, [replace(best[region], merges=True) for region in sorted(best)])

    def _collage(self, problem: PlacementProblem, bound: float) -> list[tuple[Row, Placement]]:
        small = {
            region
            for group in self._variant.candidates.groups
            if group.level in ("operator", "prefix")
            for region in group.regions
        }
        start = time.monotonic()
        try:
            first = collage_search.op_level(
                problem.graph, [one for one in problem.candidates if one.region in small or one.region.bit_count() == 1]
            )
        except (NoPlacement, NoCover) as error:
            return [(Row("collage op", time.monotonic() - start, note=error.sentence), ())]
        rows = [self._row("collage op", problem, _placement(first), time.monotonic() - start, bound)]
        engines = {b.name for b in self._variant.session.backends if b.kind == "engine"}
        engine = min(
            (one for one in self._variant.times if one.backend in engines),
            key=self._variant.times.__getitem__,
            default=None,
        )
        if engine is None:
            return rows
        deadline = Deadline(self._genetic_s)
        found = collage_search.graph_level(
            problem.graph,
            first.choices,
            engine,
            self._variant.candidates.claimed[engine.backend],
            lambda placements: self._variant.measure_placements(placements, lambda: False),
            deadline,
        )
        note = f"engine {engine}, {found.bits} bits, {found.evaluations} evaluations"
        return [*rows, self._row("collage", problem, found.placement, time.monotonic() - start, bound, note)]

    @staticmethod
    def _refined(problem: PlacementProblem, exact: PlacementResult) -> Placement:
        timed = problem.refine(exact, Deadline(_REFINING_S))
        return min(timed, key=lambda one: one[1])[0] if timed else _placement(exact)

    def _among(self, backends: Sequence[str]) -> tuple[Row, Placement]:
        variant = f"+ {backends[-1]}"
        start = time.monotonic()
        try:
            problem = PlacementProblem(self._variant, Deadline(_TRANSFERS_S), set(backends))
            found = problem.solve()
        except (NoPlacement, NoCover) as error:
            return Row(variant, time.monotonic() - start, note=error.sentence), ()
        seconds, bound = found.statistics.seconds, found.lower_bound_ms
        return self._row(variant, problem, _placement(found), seconds, bound, predicted=found.total_ms)


def _placement(found: PlacementResult) -> Placement:
    return tuple(one.assignment for one in found.choices)


def _mix(variant: TimedVariant, problem: PlacementProblem) -> Mix | None:
    """The cheapest placement in which somebody else than the best single backend has an operator: of each operator, the
    optimum in which that backend does not have it."""
    best, ms = min(variant.times.items(), key=lambda one: one[1])
    deadline, found, proven = Deadline(_MIX_S), list[PlacementResult](), True
    for number in range(len(problem.graph)):
        others = [
            one
            for one in problem.candidates
            if one.implementation.backend != best.backend or not one.region >> number & 1
        ]
        if found and deadline():
            proven = False
            break
        try:
            found.append(solve(problem.graph, others, problem.transfers, max(1.0, deadline.left)))
        except (NoPlacement, NoCover):
            continue
    if not found:
        return None
    mixes = [one for one in found if len({c.implementation.backend for c in one.choices}) > 1]
    cheapest = min(mixes, key=lambda one: one.total_ms, default=None)
    if cheapest is None:
        return None
    proven = proven and all(one.proven_optimal for one in found)
    names = tuple(dict.fromkeys(one.implementation.backend for one in cheapest.choices))
    return Mix(cheapest.total_ms, ms, proven, names)


def _told(
    workload: Workload,
    batch: int,
    options: Options,
    variant: TimedVariant,
    race: RaceResult,
    found: Sequence[tuple[Row, Placement]],
    mix: Mix | None,
    costs_s: float,
) -> Result:
    contestants = {one.name: one for one in race.contestants}
    alone = {variant.placement_of(one): str(one) for one in variant.times}
    first: dict[Placement, str] = {}
    rows: list[Row] = []
    for row, placement in found:
        name = alone.get(placement, first.setdefault(placement, row.variant)) if placement else ""
        raced = contestants.get(name)
        if raced is None:
            rows.append(row)
            continue
        itself = name == race.best_baseline
        rows.append(
            replace(
                row,
                ms=raced.median_ms,
                ci_ms=raced.ci_ms,
                speedup=1.0 if itself else raced.speedup,
                speedup_ci=(1.0, 1.0) if itself else raced.speedup_ci,
                note=row.note or ("" if raced.median_ms is not None else raced.reason),
            )
        )
    best = contestants[race.best_baseline]
    assert best.median_ms is not None
    dropped = {c.name: c.reason for c in race.contestants if c.kind == "baseline" and c.median_ms is None}
    return Result(
        workload.name,
        batch,
        options.precision,
        options.threads,
        tuple(sorted({b.name for b in registry.available(None)} - set(options.backends or ())))
        if options.backends
        else (),
        best.name,
        best.median_ms,
        costs_s,
        tuple(rows),
        mix,
        dropped,
    )


def table(result: Result) -> str:
    """One workload as a Markdown table, with the proof below."""
    without = f" without {', '.join(result.without)}" if result.without else ""
    lines = [
        f"**{result.workload}**, {result.precision}, {result.threads} threads{without}: {result.best_single} alone "
        f"{result.best_single_ms:.3g} ms; costs measured in {result.costs_s:.0f} s",
        "",
        "| search | regions | backends | predicted ms | bound ms | gap | ms | over the best alone | search s |",
        "|---|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in result.rows:
        speedup = "" if row.speedup is None else f"{row.speedup:.3f}"
        if row.speedup_ci is not None and row.speedup_ci != (1.0, 1.0):
            speedup += f" [{row.speedup_ci[0]:.3f}, {row.speedup_ci[1]:.3f}]"
        cells = [
            row.variant,
            str(row.regions or ""),
            " + ".join(row.backends) or row.note,
            _number(row.predicted_ms),
            _number(row.bound_ms),
            "" if row.gap is None else f"{100 * row.gap:.1f} %",
            _number(row.ms),
            speedup,
            f"{row.search_s:.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    if result.mix is not None:
        mix, word = result.mix, "loses" if result.mix.loss >= 0 else "wins"
        how = "proven" if mix.proven else "found, not proven"
        lines += [
            "",
            f"The best mixture by the model ({how}: {' + '.join(mix.backends)}): {mix.ms:.3g} ms, {word} "
            f"{100 * abs(mix.loss):.1f} % to the best alone ({mix.alone_ms:.3g} ms).",
        ]
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def summary(results: Sequence[Result]) -> str:
    """The geometric mean of each search over the best single backend, where it has a time on every workload."""
    names = dict.fromkeys(row.variant for result in results for row in result.rows if not row.variant.startswith("+"))
    lines = ["| search | geometric mean over the best alone | workloads |", "|---|---:|---:|"]
    for name in names:
        found = [row.speedup for one in results for row in one.rows if row.variant == name and row.speedup]
        if found:
            lines.append(f"| {name} | {statistics.geometric_mean(found):.3f} | {len(found)} of {len(results)} |")
    return "\n".join(lines)


def main() -> int:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ablation", description=__doc__.partition("\n")[0])
    parser.add_argument("--workload", default="collage", help="names or families, separated by commas")
    parser.add_argument("--batch", default="1", help="inputs at a time, separated by commas")
    parser.add_argument("--precision", default="highest", choices=PRECISIONS)
    parser.add_argument("--without", action="append", default=[], help="leave this backend out; repeatable")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--budget", type=float, help="seconds for measuring costs")
    parser.add_argument("--genetic", type=float, default=60.0, help="seconds for Collage's genetic algorithm")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--output", type=Path, help="also write the JSON here, after each workload")
    given = parser.parse_args()
    precision: Precision = given.precision
    extra = {"threads": given.threads} if given.threads else {}
    options = Options(precision=precision, budget_s=given.budget, backends=without(given.without), **extra)
    results, failures = list[Result](), list[str]()
    for name in select(given.workload.split(",")):
        for batch in map(int, given.batch.split(",")):
            try:
                results.append(run(name, batch, options, given.genetic))
                print(table(results[-1]) + "\n", file=sys.stderr, flush=True)
            except BricolageError as error:
                failures.append(f"{name}, batch {batch}: {error}")
                print(failures[-1], file=sys.stderr, flush=True)
            document = {
                "hardware": str(host()),
                "results": [
                    {**asdict(one), "rows": [{**asdict(row), "gap": row.gap} for row in one.rows]} for one in results
                ],
                "failures": failures,
            }
            keep(document, given.output)
    if given.json:
        print(json.dumps(document, indent=1))
    else:
        print(str(host()), "", *(table(one) + "\n" for one in results), summary(results), *failures, sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
