"""Search over rewrites: `python -m benchmarks.searching [NAME …]`.

For each workload: predicted cost (the roofline estimate, ms) of the graph as exported, after the fixpoint of `bricolage rewrite`,
after backtracking and after equality saturation, with the graphs or e-nodes seen and the seconds taken. Nothing is measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from benchmarks.workloads.registry import workloads
from bricolage.frontends import to_model
from bricolage.graph.prepare import simplify
from bricolage.perf.roofline import NOMINAL, OperatorRoofline
from bricolage.rewrite.apply import rewrite
from bricolage.rewrite.catalogue import rules
from bricolage.rewrite.search.cost import Pricing
from bricolage.rewrite.search.graph_search import SearchResult, search_graphs
from bricolage.rewrite.search.options import SearchOptions

if TYPE_CHECKING:
    import onnx_ir as ir

DEFAULT = (
    "collage-bert",
    "collage-nasnet",
    "light-squeezenet",
    "light-inception-v1",
    "resnext-50",
    "bert-base",
    "dcgan",
)


@dataclass(frozen=True)
class Row:
    """One workload; costs in ms. `graphs` and `nodes` are what backtracking and saturation saw."""

    name: str
    operators: int
    before: float
    fixpoint: float
    backtracking: float
    graphs: int
    backtracking_seconds: float
    saturation: float
    nodes: int
    gap: float
    saturation_seconds: float
    fixpoint_seconds: float


def measure(name: str, model: ir.Model) -> Row:
    """Searches from a simplified model both ways."""
    cost = OperatorRoofline()
    pricing = Pricing(cost, NOMINAL, model.graph.opset_imports)
    settled = model.clone()
    started = time.monotonic()
    rewrite(settled, rules())
    seconds = time.monotonic() - started

    def by(options: SearchOptions) -> SearchResult:
        return search_graphs(model, rules(), cost, options)

    first, second = by(SearchOptions(method="backtrack")), by(SearchOptions(method="saturate"))
    bound = second.statistics.lower_bound or 0.0
    return Row(
        name,
        len(model.graph),
        pricing.total(model.graph),
        pricing.total(settled.graph),
        first.best.cost,
        first.statistics.counts.seen,
        first.statistics.seconds,
        second.best.cost,
        second.statistics.counts.nodes,
        max(0.0, 1.0 - bound / second.best.cost),
        second.statistics.seconds,
        seconds,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=DEFAULT, metavar="NAME", help="workloads")
    parser.add_argument("--json", action="store_true", help="one object a line")
    given = parser.parse_args()
    from benchmarks.workloads.exporting import export

    heads = ("operators", "before", "fixpoint", "backtrack", "graphs", "s", "saturate", "e-nodes", "gap", "s")
    if not given.json:
        print("workload".ljust(20) + "".join(head.rjust(10) for head in heads))
    for name in given.names:
        model = to_model(export(workloads()[name]))
        simplify(model)
        row = measure(name, model)
        if given.json:
            print(json.dumps(asdict(row)))
        else:
            costs = [f"{cost:.4f}" for cost in (row.before, row.fixpoint, row.backtracking, row.saturation)]
            cells = [str(row.operators), *costs[:3], str(row.graphs), f"{row.backtracking_seconds:.1f}", costs[3]]
            cells += [str(row.nodes), f"{row.gap:.2%}", f"{row.saturation_seconds:.1f}"]
            print(row.name.ljust(20) + "".join(cell.rjust(10) for cell in cells))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
