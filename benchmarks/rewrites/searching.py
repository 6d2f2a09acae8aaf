"""Search over rewrites: `python -m benchmarks.rewrites.searching [NAME …]`.

For each network of TASO and Tensat (or those named): the predicted cost (the roofline estimate, ms) of the graph as exported
(none), after the fixpoint of `bricolage rewrite`, after backtracking, equality saturation and random keys, with the seconds of
each search and those after which it met its best graph. `same_cost_s` are the seconds after which saturation met a graph as
cheap as backtracking's best.

    python -m benchmarks.rewrites.searching --json
    python -m benchmarks.rewrites.searching --time --backend onnxruntime squeezenet
    python -m benchmarks.rewrites.searching --generated --method backtrack --time nasrnn

With `--time` the graphs that the methods find race on a backend, checked against float64 of the original; the ratio is the
original's time by the graph's, above 1 where the graph is faster. Without it nothing is measured but the searches themselves.
With `--generated` the rules found by enumeration take part too; `generated` says which of them a method's best graph rests on.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.rewrites.rewriting_alone import race_files
from benchmarks.workloads import export, workloads
from bricolage.backends import registry
from bricolage.base.options import Options
from bricolage.costs.models.roofline import NOMINAL, OperatorRoofline
from bricolage.frontends import to_model
from bricolage.graph.extract import write_whole
from bricolage.graph.prepare import simplify
from bricolage.plan.shipped_program import ORIGINAL
from bricolage.rewrite.catalogue import choose_rules
from bricolage.rewrite.engine.apply import rewrite
from bricolage.rewrite.search.graph_search import SearchResult, search_graphs
from bricolage.rewrite.search.operator_prices import Pricing
from bricolage.rewrite.search.search_options import METHODS, Method, SearchOptions
from bricolage.work.implementation import Implementation

if TYPE_CHECKING:
    import onnx_ir as ir

DEFAULT = (
    "bert-base",
    "nasrnn",
    "nasnet-a-large",
    "resnext-50",
    "resnet-50",
    "inception-v3",
    "vgg16",
    "squeezenet",
    "mobilenet-v2",
)
"""TASO's five, and Tensat's: BERT, NasRNN, NASNet-A, ResNeXt-50, ResNet-50, Inception-v3, VGG, SqueezeNet, MobileNet-v2."""
NONE, FIXPOINT = "none", "fixpoint"
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Way:
    """What one method found.

    `predicted_ms` of its best graph; `seconds` that it took; `found_s` after which it met that graph; `seen` graphs or
    e-nodes; `repeatable` whether there are steps to it; `generated` rules that it rests on; `ms` and `ratio` of the race, where
    there was one.
    """

    predicted_ms: float
    seconds: float
    found_s: float
    seen: int = 0
    repeatable: bool = True
    generated: tuple[str, ...] = ()
    ms: float | None = None
    ratio: float | None = None
    ratio_ci: tuple[float, float] | None = None


@dataclass(frozen=True)
class Row:
    """One network: what each method found, by its name; `bound_ms` is below what saturation's e-graphs hold."""

    name: str
    operators: int
    ways: Mapping[str, Way]
    bound_ms: float | None
    same_cost_s: float | None
    backend: str = ""


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
        NONE: Way(pricing.total(model.graph), 0.0, 0.0),
        FIXPOINT: Way(pricing.total(settled.graph), took, took),
    }
    models = {NONE: model, FIXPOINT: settled}
    found: dict[str, SearchResult] = {}
    for method in methods:
        result = search_graphs(model, used, cost, SearchOptions(method=method, seconds=seconds, retrace=True))
        best, counts = result.best, result.statistics.counts
        repeatable = len(best.steps) == len(best.applications)
        seen = counts.nodes if method == "saturate" else counts.seen
        found_rules = dict.fromkeys(one.rule for one in best.applications if one.family == "generated")
        ways[method] = Way(
            best.cost, result.statistics.seconds, best.found_s, seen, repeatable, generated=tuple(found_rules)
        )
        models[method], found[method] = best.model, result
    saturated = found.get("saturate")
    bound = None if saturated is None else saturated.statistics.lower_bound
    return Row(name, len(model.graph), ways, bound, _same_cost(found)), models


def _same_cost(found: Mapping[str, SearchResult]) -> float | None:
    """Seconds after which saturation met a graph as cheap as backtracking's best; None where it did not."""
    if "saturate" not in found or "backtrack" not in found:
        return None
    aim = found["backtrack"].best.cost * (1.0 + _ROUNDING)
    return min((one.found_s for one in found["saturate"].candidates if one.cost <= aim), default=None)


def timed(row: Row, models: Mapping[str, ir.Model], backend: str, rounds: int) -> Row:
    """The row with times of the graphs, raced on a backend with its default configuration.

    Raises:
        BricolageError: a graph did not finish the race.
    """
    options, workload = Options(), workloads()[row.name]
    implementation = Implementation(backend)
    with tempfile.TemporaryDirectory() as folder:
        files = {ORIGINAL: export(workload)}
        for name, model in models.items():
            if name != NONE:
                files[name] = Path(folder) / f"{name}.onnx"
                write_whole(model, files[name])
        raced = race_files(files, implementation, workload.example_inputs(0), options, rounds, Path(folder))
    ways = {
        name: replace(way, ms=raced[key][0], ratio=raced[key][1], ratio_ci=raced[key][2])
        for name, way in row.ways.items()
        for key in (ORIGINAL if name == NONE else name,)
    }
    return replace(row, ways=ways, backend=f"{backend} {registry.version(backend)}")


def _line(row: Row) -> str:
    cells = [row.name, str(row.operators)]
    for way in row.ways.values():
        told = (
            f"{way.predicted_ms:.4f}"
            if not way.seconds
            else f"{way.predicted_ms:.4f} in {way.found_s:.1f} of {way.seconds:.1f} s"
        )
        cells.append(told if way.ratio is None else f"{told}, {way.ms:.4g} ms ({way.ratio:.3f})")
    return f"| {' | '.join([*cells, 'never' if row.same_cost_s is None else f'{row.same_cost_s:.1f}'])} |"


def main() -> None:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=DEFAULT, metavar="NAME", help="workloads")
    parser.add_argument("--method", action="append", choices=METHODS, help="only this one; repeatable")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each search, at most")
    parser.add_argument("--time", action="store_true", help="race what they find")
    parser.add_argument("--backend", default="onnxruntime", help="for the race")
    parser.add_argument("--rounds", type=int, default=60, help="of the race")
    parser.add_argument("--generated", action="store_true", help="rules found by enumeration take part, too")
    parser.add_argument("--json", action="store_true", help="one object a line")
    given = parser.parse_args()
    methods: Sequence[Method] = tuple(given.method or METHODS)
    if not given.json:
        heads = ["network", "operators", NONE, FIXPOINT, *methods, "saturation to the same cost, s"]
        print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for name in given.names:
        model = to_model(export(workloads()[name]))
        simplify(model)
        row, models = search(name, model, methods, given.seconds, generated=given.generated)
        if given.time:
            row = timed(row, models, given.backend, given.rounds)
        print(json.dumps(asdict(row)) if given.json else _line(row))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
