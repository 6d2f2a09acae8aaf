"""How the time of the op-level search grows with the graph: `python -m benchmarks.placement.search_scaling`.

The graphs are synthetic NASNet-A-like networks (cells of ten parallel branches that end in a concatenation, each cell
reading the two before it) with known costs: about 15 candidates for each operator over six backends, among them each
engine's whole cells and whole graph. Only the search is timed, on one core; the median of some repeats is reported.
The exponent is the slope of log(time) over log(operators): 1 is linear.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bricolage.costs.models.measured_transfer import MeasuredTransferCosts, Pair
from bricolage.search.placement.exact import solve
from bricolage.work.implementation import Endpoint, Implementation
from bricolage.work.placement import Candidate, PlacementResult
from bricolage.work.transfer import NoTransferCosts, TransferCosts
from bricolage.work.work_graph import WorkGraph, WorkOperator, WorkTensor

LIBRARIES = ("library0", "library1")
ENGINES = ("engine0", "engine1", "engine2", "engine3")
SIZES = (100, 300, 900, 3_000, 10_000)
LONGEST_CHAIN = 4
_FIXED_MS = 0.008
_TYPICAL_MS = {"relu": 0.02, "depthwise": 0.15, "pointwise": 0.4, "pool": 0.08, "add": 0.03, "concat": 0.05}


@dataclass(frozen=True)
class Problem:
    """A graph and its candidates, all costs known."""

    graph: WorkGraph
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True)
class Timing:
    """Median seconds of the search on one graph, and what it found."""

    operators: int
    candidates: int
    transfers: bool
    seconds: float
    total_ms: float
    method: str
    cuts: int
    proven_optimal: bool


class _Builder:
    """Numbers operators as they are added: a branch is finished before the next one begins."""

    def __init__(self, seed: int) -> None:
        self.kinds: list[str] = []
        self.readers: list[list[int]] = []
        self.random = random.Random(seed)

    def add(self, kind: str, *sources: int) -> int:
        number = len(self.kinds)
        self.kinds.append(kind)
        self.readers.append([])
        for source in dict.fromkeys(sources):
            if source >= 0:
                self.readers[source].append(number)
        return number

    def separable(self, source: int) -> int:
        for _ in range(2):
            source = self.add("pointwise", self.add("depthwise", self.add("relu", source)))
        return source

    def cell(self, previous: int, current: int) -> int:
        """A normal cell of NASNet-A: ten branches, added in pairs and concatenated."""
        p = self.add("pointwise", self.add("relu", previous))
        h = self.add("pointwise", self.add("relu", current))
        blocks = [
            self.add("add", self.separable(h), h),
            self.add("add", self.separable(p), self.separable(h)),
            self.add("add", self.add("pool", h), p),
            self.add("add", self.add("pool", p), self.add("pool", p)),
            self.add("add", self.separable(p), self.separable(p)),
        ]
        return self.add("concat", p, *blocks)


def nasnet_like(operators: int, seed: int = 0) -> Problem:
    """A problem of at least `operators` operators, a function of the arguments."""
    builder = _Builder(seed)
    previous = current = -1
    cells: list[tuple[int, int]] = []
    while len(builder.kinds) < operators:
        start = len(builder.kinds)
        previous, current = current, builder.cell(previous, current)
        cells.append((start, len(builder.kinds)))
    sizes = [builder.random.choice((1 << 16, 1 << 18, 1 << 20)) for _ in builder.kinds]
    tensors = [
        WorkTensor(f"t{number}", number, tuple(readers), sizes[number], is_output=not readers)
        for number, readers in enumerate(builder.readers)
    ]
    graph = WorkGraph(
        tuple(WorkOperator(f"{kind}{number}", op_type=kind) for number, kind in enumerate(builder.kinds)),
        tuple(tensors),
    )
    return Problem(graph, _candidates(builder, graph, cells))


def _candidates(builder: _Builder, graph: WorkGraph, cells: Sequence[tuple[int, int]]) -> tuple[Candidate, ...]:
    rng = builder.random
    base = [_TYPICAL_MS[kind] * rng.uniform(0.3, 3.0) for kind in builder.kinds]
    speed = {backend: [cost * rng.lognormvariate(0.0, 0.25) for cost in base] for backend in (*LIBRARIES, *ENGINES)}

    def engine_cost(engine: str, numbers: Sequence[int]) -> float:
        marginal = sum(speed[engine][number] for number in numbers)
        # What fusion saves varies from region to region, as it does in measurements.
        return _FIXED_MS + marginal * (rng.uniform(0.75, 1.05) if len(numbers) > 1 else 1.0)

    found = [
        Candidate(1 << number, Implementation(library), speed[library][number], merges=False)
        for number in range(len(graph))
        for library in LIBRARIES
        if builder.kinds[number] != "concat"
    ]
    for engine in ENGINES:
        implementation = Implementation(engine)
        for number in range(len(graph)):
            chain = [number]
            found.append(Candidate(1 << number, implementation, engine_cost(engine, chain)))
            while len(chain) < LONGEST_CHAIN and len(graph.successors[chain[-1]]) == 1:
                chain.append(graph.successors[chain[-1]][0])
                region = sum(1 << member for member in chain)
                # A chain is convex unless another path joins it, as at the sum of two branches.
                if graph.is_convex(region):
                    found.append(Candidate(region, implementation, engine_cost(engine, chain)))
        spans = [*cells, (0, len(graph))] if len(cells) > 1 else cells
        for start, stop in spans:
            region = (1 << stop) - (1 << start)
            found.append(Candidate(region, implementation, engine_cost(engine, range(start, stop)) * 1.05))
    return tuple(found)


def transfer_costs(seed: int = 0) -> MeasuredTransferCosts:
    """Costs of a few microseconds plus a copy for some pairs."""
    rng = random.Random(seed)
    table: dict[Pair, list[tuple[int, float]]] = {}
    for producer in (*LIBRARIES, *ENGINES):
        for consumer in (*LIBRARIES, *ENGINES):
            if producer != consumer:
                fixed, slope = rng.uniform(0.001, 0.01), rng.choice((0.0, 0.0, 1e-7))
                pair = (Endpoint(producer), Endpoint(consumer))
                table[pair] = [(size, fixed + slope * size) for size in (1 << 10, 1 << 16, 1 << 20)]
    return MeasuredTransferCosts(table)


def measure(problem: Problem, transfers: TransferCosts, repeats: int) -> Timing:
    """The median time of `repeats` searches."""
    seconds: list[float] = []
    found: PlacementResult | None = None
    for _ in range(repeats):
        started = time.perf_counter()
        found = solve(problem.graph, problem.candidates, transfers)
        seconds.append(time.perf_counter() - started)
    assert found is not None
    return Timing(
        operators=len(problem.graph),
        candidates=len(problem.candidates),
        transfers=not isinstance(transfers, NoTransferCosts),
        seconds=statistics.median(seconds),
        total_ms=found.total_ms,
        method=found.statistics.method,
        cuts=found.statistics.cuts,
        proven_optimal=found.proven_optimal,
    )


def exponent(timings: Sequence[Timing]) -> float:
    """Slope of the least-squares line through log(seconds) over log(operators)."""
    xs = [math.log(timing.operators) for timing in timings]
    ys = [math.log(timing.seconds) for timing in timings]
    x, y = statistics.fmean(xs), statistics.fmean(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)


def run(sizes: Sequence[int], repeats: int, report: Callable[[Timing], None]) -> list[Timing]:
    """All sizes, without and with transfer costs; `report` is called after each."""
    timings = []
    for size in sizes:
        problem = nasnet_like(size)
        for transfers in (NoTransferCosts(), transfer_costs()):
            timings.append(measure(problem, transfers, repeats))
            report(timings[-1])
    return timings


def plot(timings: Sequence[Timing], path: Path) -> None:
    """Both curves on logarithmic axes. Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4.2), constrained_layout=True)
    for transfers, marker in ((False, "o"), (True, "s")):
        mine = [timing for timing in timings if timing.transfers == transfers]
        label = f"{'with' if transfers else 'without'} transfer costs (exponent {exponent(mine):.2f})"
        axes.loglog([t.operators for t in mine], [t.seconds for t in mine], marker=marker, label=label)
    first = min(timings, key=lambda timing: (timing.operators, timing.seconds))
    last = max(timing.operators for timing in timings)
    linear = [first.seconds, first.seconds * last / first.operators]
    axes.loglog([first.operators, last], linear, "--", color="grey", label="linear")
    axes.set_xlabel("operators")
    axes.set_ylabel("search time (s)")
    axes.set_title("Exact op-level placement, NASNet-like graphs, one core")
    axes.grid(True, which="both", alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)


def _line(timing: Timing) -> str:
    return (
        f"{timing.operators:>9}  {timing.candidates:>10}  {'yes' if timing.transfers else 'no':>10}  "
        f"{timing.seconds:>8.3f}  {timing.total_ms:>10.3f}  {timing.cuts:>4}  "
        f"{'yes' if timing.proven_optimal else 'no':>7}  {timing.method}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.placement.search_scaling", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="operators in each graph")
    parser.add_argument("--repeats", type=int, default=3, help="searches per graph; the median counts")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--plot", type=Path, help="write the curves to this PNG file (needs matplotlib)")
    options = parser.parse_args(arguments)
    if not options.json:
        print("operators  candidates  transfers   seconds    total ms  cuts  optimal  method")
    timings = run(
        options.sizes, options.repeats, lambda timing: None if options.json else print(_line(timing), flush=True)
    )
    exponents = {}
    if len(set(options.sizes)) > 1:
        exponents = {
            name: exponent([timing for timing in timings if timing.transfers == transfers])
            for name, transfers in (("without transfers", False), ("with transfers", True))
        }
    if options.json:
        print(json.dumps({"timings": [asdict(timing) for timing in timings], "exponents": exponents}, indent=2))
    else:
        for name, value in exponents.items():
            print(f"exponent {name}: {value:.2f}")
    if options.plot:
        plot(timings, options.plot)
        print(f"wrote {options.plot}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
