"""Which operators may run in low precision: the search by structure beside a greedy choice by segments' own errors.

    python -m benchmarks.placement.precision_search --json
    python -m benchmarks.placement.precision_search resnet-50 --precision high --backend native,openvino

For each network and accuracy word (`--precision`, repeatable): the fastest that is right as a whole, then what both ways find,
each of them with a database of its own, so that neither knows what the other measured: the time of its fastest mixture, its error,
the seconds it took, and how many placements were right. The product has the search; the greedy choice
(`benchmarks.placement.greedy_precisions`) takes its turn with each low precision. The fastest mixtures of both are timed once more,
side by side; these are the times. `lows` are the implementations that are too inaccurate for the whole: without any there is
nothing to mix, and the row says so.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace

from benchmarks.placement.greedy_precisions import greedy_precisions
from benchmarks.tools.opening import state_of
from benchmarks.workloads import workloads
from benchmarks.workloads.fragile import fragile
from bricolage.backends import registry
from bricolage.base.deadline import Deadline
from bricolage.base.options import PRECISIONS, Options, Precision
from bricolage.costs.database import Database
from bricolage.costs.entries import Cost
from bricolage.costs.measurements import Measurements
from bricolage.driver.placement_problem import Timed
from bricolage.driver.stage import Runner
from bricolage.driver.stages.placing import place_precisions
from bricolage.driver.stages.profiling import Baselines, Reference
from bricolage.driver.state import DecisionState
from bricolage.driver.whole_models import looser_precisions, measure_dropped
from bricolage.work.implementation import Placement

NETWORKS = ("sharp-attention", "far-from-zero", "long-chain", "bert-base", "nasrnn", "resnet-50")
"""Three of which a part does not bear bfloat16 (`workloads.fragile`), one that is off by a little more than `medium` takes, and two
that bear it."""


@dataclass(frozen=True)
class Way:
    """What one way found: the time of its fastest mixture in ms, its relative error, the share of operators in low precision by
    implementation, seconds, and how many placements were right."""

    ms: float | None
    error: float | None
    low: dict[str, float]
    seconds: float
    right: int


@dataclass(frozen=True)
class Row:
    """One network at one word."""

    network: str
    precision: str
    bound: float
    full: str
    full_ms: float
    lows: tuple[str, ...]
    greedy: Way | None = None
    structure: Way | None = None


def run(network: str, options: Options) -> Row:
    """Both ways on one network.

    Raises:
        BricolageError: nothing runs it.
    """
    with state_of({**workloads(), **fragile()}[network], options, registry.available(options.backends)) as state:
        Runner([Reference(), Baselines(every=True)]).run(state, Deadline(state.budget.total_s))
        variant = state.original
        variant.measure_whole(looser_precisions(variant), lambda: False)
        measure_dropped(variant, lambda: False)
        assert variant.fastest is not None
        full, ms = variant.fastest
        dropped = {one: cost.ms for one, cost in variant.dropped.items() if cost.ms is not None and cost.ms < ms}
        lows = sorted(dropped, key=dropped.__getitem__)
        row = Row(network, options.precision, options.bound, str(full), ms, tuple(map(str, lows)))
        if not lows:
            return row

        ways: dict[str, Callable[[Deadline], list[Timed]]] = {
            "greedy": lambda deadline: greedy_precisions(variant, lows, deadline),
            "structure": lambda deadline: place_precisions(state, variant, lows, deadline).passed,
        }
        found = {name: _found(state, way) for name, way in ways.items()}
        best = {name: min(timed, key=lambda one: one[1])[0] for name, (timed, _) in found.items() if timed}
        specs = {name: variant.placement_spec(placement) for name, placement in best.items()}
        with Database(variant.session.measurer.scratch / "again.sqlite") as fresh:
            measurer = copy(variant.session.measurer)
            measurer.database = fresh
            costs = measurer.measure([variant.task(list(specs.values()))]) if specs else {}
        told = {
            name: _way(best[name], costs[specs[name]], *found[name]) if name in best else _nothing(*found[name])
            for name in ways
        }
        return replace(row, greedy=told["greedy"], structure=told["structure"])


def _found(state: DecisionState, way: Callable[[Deadline], list[Timed]]) -> tuple[list[Timed], float]:
    measurer, variant = state.session.measurer, state.original
    variant.regions = Measurements()
    known = measurer.database
    with Database(measurer.scratch / f"{time.monotonic_ns()}.sqlite") as measurer.database:
        try:
            began = time.monotonic()
            return way(Deadline(state.budget.total_s)), time.monotonic() - began
        finally:
            measurer.database = known


def _nothing(found: list[Timed], seconds: float) -> Way:
    return Way(None, None, {}, seconds, len(found))


def _way(placement: Placement, cost: Cost, found: list[Timed], seconds: float) -> Way:
    total = sum(one.region.bit_count() for one in placement)
    shares: dict[str, float] = {}
    for one in placement:
        name = str(one.implementation)
        shares[name] = shares.get(name, 0.0) + one.region.bit_count() / total
    return Way(cost.ms, cost.error, shares, seconds, len(found))


def main() -> None:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=NETWORKS, metavar="NAME", help="workloads")
    parser.add_argument(
        "--precision", action="append", choices=PRECISIONS, help="repeatable; highest, high and medium by default"
    )
    parser.add_argument("--backend", default="native", help="that may take part, comma-separated")
    parser.add_argument("--budget", type=float, help="seconds of each way on each network, at most")
    parser.add_argument("--json", action="store_true", help="one object a line")
    given = parser.parse_args()
    words: Sequence[Precision] = given.precision or ("highest", "high", "medium")
    if not given.json:
        print("| network | precision | full | ms | greedy | by structure |\n|---|---|---|---:|---|---|")
    for network in given.networks:
        for word in words:
            row = run(
                network,
                Options(precision=word, budget_s=given.budget, backends=tuple(given.backend.split(",")), effort="full"),
            )
            print(json.dumps(asdict(row)) if given.json else _line(row))
            sys.stdout.flush()


def _line(row: Row) -> str:
    cells = [row.network, row.precision, row.full, f"{row.full_ms:.4g}", _told(row.greedy), _told(row.structure)]
    return f"| {' | '.join(cells)} |"


def _told(way: Way | None) -> str:
    if way is None:
        return "no lower precision is faster"
    if way.ms is None:
        return f"nothing in {way.seconds:.0f} s"
    error = "" if way.error is None else f", error {way.error:.1e}"
    return f"{way.ms:.4g} ms{error}, {way.right} placements right, {way.seconds:.0f} s"


if __name__ == "__main__":
    main()
