"""Which cell of DNNFusion's table each pair of operators falls into, and what the planner did with it.

    python -m benchmarks.fusion.cells bert-base resnet-50
    python -m benchmarks.fusion.cells squeezenet --pairs

For each of the 25 pairs of mapping types (Niu et al., PLDI 2021, table 3): how many edges of a network have it, and how many of
these lie within one kernel of the native engine's plan. `--pairs` prints every edge with its cell instead: the paper's verdict
(fuse, measure, never) and what the planner decided. An operator that is computed in several kernels counts as joined where one
of them holds both; one of which nothing is left to compute, such as a reshape, counts as joined with its neighbours. It compiles
nothing and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

from benchmarks.fusion.dnnfusion import Mapping, mapping, verdict
from benchmarks.workloads import export, workloads
from bricolage.backends.interface import RegionModel
from bricolage.device.caches import host_caches
from bricolage.frontends import to_model
from bricolage.graph.graph import Graph
from bricolage.graph.inference import infer
from bricolage.graph.prepare import prepare
from bricolage.graph.store import Store
from bricolage.native.cpu.target import fusion_target
from bricolage.native.fuse.fusion import plan
from bricolage.native.fuse.inspect import inspect_kernels
from bricolage.native.ir.from_onnx import lower_region
from bricolage.native.ir.tensors import Node


@dataclass(frozen=True)
class Decision:
    """One edge: two operators with their types (None outside of the paper's table), its verdict, and whether a kernel has both."""

    first: str
    second: str
    cell: tuple[Mapping | None, Mapping | None]
    verdict: Literal["fuse", "measure", "never"]
    joined: bool


def decisions(region: RegionModel) -> Iterator[Decision]:
    """Every edge of a region between two operators, in the order of the graph."""
    model = region.model.clone()
    infer(model)
    for position, node in enumerate(model.graph):
        node.name = f"{node.op_type}_{position}"  # which tells them apart
    origins: dict[Node, str] = {}
    found = plan(*lower_region(model, origins), fusion_target(host_caches()))
    together = [set(kernel.operators) for kernel in inspect_kernels(found, origins)]
    computed = set().union(*together)
    graph = Graph(model)
    for operator in graph.operators:
        for number in sorted({reader for value in operator.outputs for reader in graph.readers(value)}):
            reader = graph.operators[number]
            cell = mapping(operator), mapping(reader)
            names = {operator.name, reader.name} & computed
            joined = len(names) < 2 or any(names <= kernel for kernel in together)
            yield Decision(operator.name, reader.name, cell, verdict(*cell), joined)


def of_network(name: str) -> list[Decision]:
    """The edges of a workload."""
    graph = prepare(to_model(export(workloads()[name])), {})
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        store.share([graph.model])
        return list(decisions(RegionModel(store.region(graph.everything, "all"))))


def table(found: Sequence[Decision]) -> str:
    """Markdown: rows are first operators, columns second ones; edges within a kernel of all edges."""
    kinds = get_args(Mapping)
    every, joined = (Counter(one.cell for one in found if one.joined or not only) for only in (False, True))
    lines = [f"| first, second | {' | '.join(kinds)} |", f"|---|{'---:|' * len(kinds)}"]
    for first in kinds:
        cells = [f"{joined[first, second]} of {every[first, second]}" for second in kinds]
        lines.append(f"| {first} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", metavar="NAME", help="workloads")
    parser.add_argument("--pairs", action="store_true", help="every edge, one object a line")
    given = parser.parse_args()
    for name in given.names:
        found = of_network(name)
        if given.pairs:
            for one in found:
                print(json.dumps(asdict(one)))
        else:
            print(f"{name}\n\n{table(found)}\n", flush=True)


if __name__ == "__main__":
    main()
