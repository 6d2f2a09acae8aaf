"""Which operators may run in low precision: the greedy choice by segments' errors against CRAFT's search by structure.

    python -m benchmarks.precision_search --json
    python -m benchmarks.precision_search resnet-50 --precision high --backend native,openvino

For each network and accuracy word (`--precision`, repeatable): the fastest that is right as a whole, then what both ways find
from the same costs, each timed end to end and checked against float64: the time of its fastest mixture, its error, the seconds
and the placements it took. Greedy's seconds hold the segments' own measurements, which the other does without. `lows` are the
implementations that are too inaccurate for the whole: there is nothing to mix without any, and the row says so.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from benchmarks.opening import state_of
from benchmarks.workloads import workloads
from benchmarks.workloads.fragile import fragile
from bricolage.backends import registry
from bricolage.deadline import Deadline
from bricolage.driver.stage import Runner
from bricolage.driver.stages.placing import measure_precisions, mixed_precisions, place_by_structure
from bricolage.driver.stages.profiling import Baselines, Reference
from bricolage.driver.state import DecisionState
from bricolage.driver.whole_models import looser_precisions, measure_dropped
from bricolage.options import PRECISIONS, Options, Precision
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
        Runner([Reference(), Baselines(every=True)]).run(state, Deadline(state.budget_s))
        profile = state.original
        profile.measure_whole(looser_precisions(profile), lambda: False)
        measure_dropped(profile, lambda: False)
        assert profile.fastest is not None
        full, ms = profile.fastest
        dropped = {one: cost.ms for one, cost in profile.dropped.items() if cost.ms is not None and cost.ms < ms}
        lows = sorted(dropped, key=dropped.__getitem__)
        row = Row(network, options.precision, options.bound, str(full), ms, tuple(map(str, lows)))
        if not lows:
            return row

        def greedy(deadline: Deadline) -> list[tuple[Placement, float]]:
            found: list[tuple[Placement, float]] = []
            for low in lows:
                measure_precisions(profile, low, deadline)
                found += mixed_precisions(profile, deadline, low)
            return found

        def structure(deadline: Deadline) -> list[tuple[Placement, float]]:
            return place_by_structure(state, profile, lows, deadline).passed

        return replace(row, greedy=_timed(state, greedy), structure=_timed(state, structure))


def _timed(state: DecisionState, way: Callable[[Deadline], list[tuple[Placement, float]]]) -> Way:
    began = time.monotonic()
    found = way(Deadline(state.budget_s))
    seconds = time.monotonic() - began
    if not found:
        return Way(None, None, {}, seconds, 0)
    placement, ms = min(found, key=lambda one: one[1])
    profile = state.original
    (cost,) = profile.session.measurer.measure([profile.task([profile.placement_spec(placement)])]).values()
    total = sum(one.region.bit_count() for one in placement)
    shares: dict[str, float] = {}
    for one in placement:
        name = str(one.implementation)
        shares[name] = shares.get(name, 0.0) + one.region.bit_count() / total
    return Way(ms, cost.error, shares, seconds, len(found))


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
