"""Search over rewrites, on the nine networks of TASO and Tensat: `python -m benchmarks.rewrites.searching [NAME …]`.

    python -m benchmarks.rewrites.searching --keep out/searched
    python -m benchmarks.rewrites.searching --race out/searched
    python -m benchmarks.rewrites.searching --generated --method backtrack --json nasrnn

For each network: the predicted cost (the roofline estimate, ms) and the operators of the graph as exported (none), after the
fixpoint of `bricolage rewrite`, and after each search; seconds of each search, those after which it met its best graph, and why
its parts ended; the largest error of its graph against float64 of the original. Nothing is measured but the searches themselves.
`same_cost_s` are the seconds after which saturation met a graph as cheap as backtracking's best. With `--generated` the rules
found by enumeration take part too; `generated` says which of them a method's best graph rests on.

`--keep` keeps the graphs. `--race` races those of a folder: the file as exported, what the fixpoint made of it, and the cheapest
that a search met, on each of the backends, checked against float64; a ratio above 1 is faster than the file. `PUBLISHED` is what
Tensat's authors report for TASO and for Tensat, with TASO's runtime on a GPU."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.rewrites.rewriting_alone import RaceLimits, race_files
from benchmarks.tools.output import keep
from benchmarks.workloads import export, workloads
from bricolage.backends import registry
from bricolage.base.codec import decode
from bricolage.base.options import Options
from bricolage.costs.models.roofline import NOMINAL, OperatorRoofline
from bricolage.driver.rewrites.verified_rewrite import Check, references
from bricolage.frontends import to_model
from bricolage.graph.extract import write_whole
from bricolage.graph.prepare import prepare, simplify
from bricolage.plan.shipped_program import ORIGINAL
from bricolage.rewrite.catalogue import choose_rules
from bricolage.rewrite.engine.apply import rewrite
from bricolage.rewrite.search.graph_search import SearchResult, search_graphs
from bricolage.rewrite.search.operator_prices import Pricing
from bricolage.rewrite.search.search_options import METHODS, Method, SearchOptions
from bricolage.work.implementation import Implementation

if TYPE_CHECKING:
    import onnx_ir as ir

PUBLISHED: Mapping[str, tuple[float, float] | None] = {
    "bert-base": (1.085, 1.092),
    "nasrnn": (1.454, 1.689),
    "nasnet-a-large": (1.019, 1.073),
    "resnext-50": (1.055, 1.088),
    "inception-v3": (1.063, 1.100),
    "light-vgg19": (1.089, 1.089),
    "squeezenet": (1.067, 1.245),
    "resnet-50": None,
    "mobilenet-v2": None,
}
"""Speed-ups over the graph as it was, of TASO and of Tensat (Yang et al., MLSys 2021, table of the authors' page). The last two
are in Tensat's repository without a figure; TASO (SOSP 2019) is on par with others on ResNet-50."""
DEFAULT = tuple(PUBLISHED)
NONE, FIXPOINT = "none", "fixpoint"
_BACKENDS = ("native", "onnxruntime")
_ROUNDING = 1e-9
_REFERENCE_S = 900.0
"""For one evaluation in float64."""
_ROWS = "rows.json"
_RACE = RaceLimits(rounds=30, seconds=10.0, processes=3)


@dataclass(frozen=True)
class Way:
    """What one method found.

    `predicted_ms` and `operators` of its best graph; `seconds` that it took; `found_s` after which it met that graph; `seen` graphs
    or e-nodes; `repeatable` whether there are steps to it; `stopped` how many searches of parts ended for which reason; `generated`
    rules that it rests on; `error` against the original, both in float64, and what is `allowed`, where that was checked.
    """

    predicted_ms: float
    operators: int
    seconds: float
    found_s: float
    seen: int = 0
    repeatable: bool = True
    stopped: Mapping[str, int] = field(default_factory=dict)
    generated: tuple[str, ...] = ()
    error: float | None = None
    allowed: float | None = None


@dataclass(frozen=True)
class Row:
    """One network: what each method found, by its name; `bound_ms` is below what saturation's e-graphs hold; `published` speed-ups
    of TASO and Tensat."""

    name: str
    ways: Mapping[str, Way]
    bound_ms: float | None
    same_cost_s: float | None
    published: tuple[float, float] | None = None

    @property
    def cheapest(self) -> str:
        """The search with the lowest predicted cost, the first of several."""
        searched = [name for name in self.ways if name not in (NONE, FIXPOINT)]
        return min(searched, key=lambda name: self.ways[name].predicted_ms)


@dataclass(frozen=True)
class RacedRow:
    """One network on one backend: milliseconds of the file, and ratios with their intervals of the fixpoint's graph and of the
    cheapest that a search met."""

    name: str
    backend: str
    method: str
    ms: float
    fixpoint: tuple[float, float, float]
    searched: tuple[float, float, float]
    predicted: float
    """Ratio of the costs of the file and of the searched graph."""
    published: tuple[float, float] | None


def search(
    name: str, model: ir.Model, methods: Sequence[Method], seconds: float, *, generated: bool = False
) -> tuple[Row, dict[str, ir.Model]]:
    """Searches from a simplified model by all methods; the row, and the graphs by method. With `generated`, rules that were found
    by enumeration take part."""
    used, cost = choose_rules(stable=True, generated=generated), OperatorRoofline()
    pricing = Pricing(cost, NOMINAL, model.graph.opset_imports)
    settled = model.clone()
    started = time.monotonic()
    rewrite(settled, used)
    simplify(settled)
    took = time.monotonic() - started
    ways = {
        NONE: Way(pricing.total(model.graph), len(model.graph), 0.0, 0.0),
        FIXPOINT: Way(pricing.total(settled.graph), len(settled.graph), took, took),
    }
    models = {NONE: model, FIXPOINT: settled}
    results: dict[str, SearchResult] = {}
    for method in methods:
        result = search_graphs(model, used, cost, SearchOptions(method=method, seconds=seconds, retrace=True))
        best, counts = result.best, result.statistics.counts
        rests_on = dict.fromkeys(step.rule for step in best.applications if step.family == "generated")
        ways[method] = Way(
            best.cost,
            len(best.model.graph),
            result.statistics.seconds,
            best.found_s,
            counts.nodes if method == "saturate" else counts.seen,
            len(best.steps) == len(best.applications),
            result.statistics.stopped,
            tuple(rests_on),
        )
        models[method], results[method] = best.model, result
    saturated = results.get("saturate")
    bound = None if saturated is None else saturated.statistics.lower_bound
    return Row(name, ways, bound, _same_cost(results), PUBLISHED.get(name)), models


def _same_cost(results: Mapping[str, SearchResult]) -> float | None:
    """Seconds after which saturation met a graph as cheap as backtracking's best; None where it did not."""
    if "saturate" not in results or "backtrack" not in results:
        return None
    aim = results["backtrack"].best.cost * (1.0 + _ROUNDING)
    return min((graph.found_s for graph in results["saturate"].candidates if graph.cost <= aim), default=None)


def check_graphs(row: Row, models: Mapping[str, ir.Model]) -> Row:
    """The row with the error of each graph against the file, both in float64 on one random input.

    Raises:
        NoReference, ReferenceLimit: the network cannot be evaluated.
    """
    graph = prepare(models[NONE].clone(), {})
    ways = dict(row.ways)
    with references(graph, _REFERENCE_S, None) as evaluate:
        check = Check(graph, {}, 0, evaluate)
        for name, model in models.items():
            if name != NONE:
                error = check.deviation(model.clone()).error
                ways[name] = replace(ways[name], error=error, allowed=check.bound)
    return replace(row, ways=ways)


def race_row(row: Row, folder: Path, backends: Sequence[str]) -> list[RacedRow]:
    """Races what `--keep` has put into a folder.

    Raises:
        BricolageError: a graph did not finish the race.
    """
    workload = workloads()[row.name]
    files = {ORIGINAL: export(workload), FIXPOINT: _locate(folder, row, FIXPOINT), row.cheapest: _locate(folder, row)}
    with tempfile.TemporaryDirectory() as place:
        implementations = [Implementation(backend) for backend in backends]
        raced = race_files(files, implementations, workload.example_inputs(0), Options(), _RACE, Path(place))
    rows = []
    for implementation in implementations:
        times = raced[implementation]
        backend = f"{implementation.backend} {registry.version(implementation.backend)}"
        settled, cheapest = ((times[name][1], *times[name][2]) for name in (FIXPOINT, row.cheapest))
        predicted = row.ways[NONE].predicted_ms / row.ways[row.cheapest].predicted_ms
        ms = times[ORIGINAL][0]
        rows.append(RacedRow(row.name, backend, row.cheapest, ms, settled, cheapest, predicted, row.published))
    return rows


def _locate(folder: Path, row: Row, way: str | None = None) -> Path:
    return folder / f"{row.name}-{way or row.cheapest}.onnx"


def _format_published(published: tuple[float, float] | None) -> str:
    return "no figure" if published is None else " / ".join(f"{speedup:.3f}" for speedup in published)


def format_searches(rows: Sequence[Row]) -> str:
    """Markdown: what each search made of each network."""
    heads = ["network", "search", "predicted ms", "of before", "operators", "s", "met after, s", "stopped", "error"]
    lines = [f"| {' | '.join([*heads, 'TASO / Tensat, speed-up'])} |", f"|---|---|{'---:|' * 5}---|---:|---|"]
    for row in rows:
        before = row.ways[NONE].predicted_ms
        for name, way in row.ways.items():
            stopped = ", ".join(f"{count} {reason}" for reason, count in way.stopped.items())
            cells = [
                f"{way.predicted_ms:.4f}",
                f"{way.predicted_ms / before:.4f}",
                str(way.operators),
                f"{way.seconds:.1f}",
                f"{way.found_s:.1f}",
                stopped,
                "" if way.error is None else f"{way.error:.1e}",
                _format_published(row.published) if name == NONE else "",
            ]
            lines.append(f"| {' | '.join([row.name, name, *cells])} |")
    return "\n".join(lines)


def format_races(rows: Sequence[RacedRow]) -> str:
    """Markdown: how much faster each backend runs the graphs."""
    heads = ["network", "backend", "ms", "fixpoint", "searched", "by", "predicted", "TASO / Tensat, speed-up"]
    lines = [f"| {' | '.join(heads)} |", "|---|---|---:|---|---|---|---:|---|"]
    for row in rows:
        ratios = [f"{value:.3f} [{low:.3f}, {high:.3f}]" for value, low, high in (row.fixpoint, row.searched)]
        cells = [f"{row.ms:.3g}", *ratios, row.method, f"{row.predicted:.3f}", _format_published(row.published)]
        lines.append(f"| {' | '.join([row.name, row.backend, *cells])} |")
    return "\n".join(lines)


def _search_all(asked: argparse.Namespace) -> int:
    rows: list[Row] = []
    for name in asked.names or DEFAULT:
        model = to_model(export(workloads()[name]))
        simplify(model)
        row, models = search(name, model, tuple(asked.method or METHODS), asked.seconds, generated=asked.generated)
        rows.append(row if asked.unchecked else check_graphs(row, models))
        if asked.keep is not None:
            asked.keep.mkdir(parents=True, exist_ok=True)
            for way in (FIXPOINT, row.cheapest):
                write_whole(models[way], _locate(asked.keep, row, way))
            keep({"rows": [asdict(done) for done in rows]}, asked.keep / _ROWS)
        print(f"{name}: done", file=sys.stderr, flush=True)
    print(json.dumps([asdict(row) for row in rows], indent=1) if asked.json else format_searches(rows))
    return int(any((way.error or 0.0) > (way.allowed or 0.0) for row in rows for way in row.ways.values()))


def _race_all(asked: argparse.Namespace) -> int:
    stored = json.loads((asked.race / _ROWS).read_text(encoding="utf-8"))["rows"]
    searched = [decode(Row, row, str(asked.race)) for row in stored]
    rows: list[RacedRow] = []
    for row in searched:
        if not asked.names or row.name in asked.names:
            rows += race_row(row, asked.race, asked.backend.split(","))
            keep({"rows": [asdict(done) for done in rows]}, asked.output)
            print(f"{row.name}: raced", file=sys.stderr, flush=True)
    print(json.dumps([asdict(row) for row in rows], indent=1) if asked.json else format_races(rows))
    return 0


def main() -> int:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="workloads; by default the nine")
    parser.add_argument("--method", action="append", choices=METHODS, help="only this one; repeatable")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each search, at most")
    parser.add_argument("--generated", action="store_true", help="rules found by enumeration take part, too")
    parser.add_argument("--unchecked", action="store_true", help="evaluate nothing in float64")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep rows and graphs, for --race")
    parser.add_argument("--race", type=Path, metavar="FOLDER", help="race what was kept there, and search nothing")
    parser.add_argument("--backend", default=",".join(_BACKENDS), help="of the race, by commas")
    parser.add_argument("--output", type=Path, help="keep the rows of the race as JSON")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    asked = parser.parse_args()
    return _search_all(asked) if asked.race is None else _race_all(asked)


if __name__ == "__main__":
    sys.exit(main())
