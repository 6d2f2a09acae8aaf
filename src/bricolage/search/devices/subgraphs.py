"""Sub-graphs between forks and joins: what is placed on devices as a whole."""

from __future__ import annotations

from collections.abc import Sequence

from bricolage.work.bits import members
from bricolage.work.placement import owners
from bricolage.work.work_graph import GRAPH_INPUT, WorkGraph, WorkOperator, WorkTensor


def chains(graph: WorkGraph, apart: Sequence[int] = (), part: int | None = None) -> tuple[int, ...]:
    """Bit-sets of operators that cover the graph, or a `part` of it, in executable order: in each, an operator is the only reader
    of the one before and reads nothing else of that part. No chain holds operators of two of the sets `apart`."""
    inside = members((1 << len(graph)) - 1 if part is None else part)
    home = {number: index for index, region in enumerate(apart) for number in members(region)}
    chain: dict[int, int] = {}
    chain_masks: list[int] = []
    for number in inside:
        sources = [source for source in graph.predecessors[number] if source in chain]
        before = sources[0] if len(sources) == 1 else None
        if before is not None and len(graph.successors[before]) == 1 and home.get(before) == home.get(number):
            chain[number] = chain[before]
        else:
            chain[number] = len(chain_masks)
            chain_masks.append(0)
        chain_masks[chain[number]] |= 1 << number
    return tuple(chain_masks)


def contract_regions(graph: WorkGraph, regions: Sequence[int], names: Sequence[str]) -> WorkGraph:
    """The graph whose operators are these regions, in executable order, before them one that holds the graph's inputs and behind
    them one that takes its outputs. A tensor that several operators of a region read leads there once.

    Raises ValueError where the regions do not cover every operator exactly once, or are in no executable order.
    """
    owner = owners(graph, regions)
    tensors = []
    for tensor in graph.tensors:
        home = 0 if tensor.producer == GRAPH_INPUT else 1 + owner[tensor.producer]
        readers = {1 + owner[reader] for reader in tensor.consumers} - {home}
        if tensor.is_output:
            readers.add(len(regions) + 1)
        if readers:
            tensors.append(WorkTensor(tensor.name, home, tuple(sorted(readers)), tensor.bytes))
    operators = [WorkOperator("inputs"), *(WorkOperator(name) for name in names), WorkOperator("outputs")]
    return WorkGraph(tuple(operators), tuple(tensors))
