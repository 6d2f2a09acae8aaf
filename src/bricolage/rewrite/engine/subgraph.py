"""Parts of a graph: operators that are connected by values of one kind, and how they are written anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import onnx_ir as ir

from bricolage.rewrite.predicates import require
from bricolage.rewrite.rule import Operators


@dataclass
class Subgraph:
    """Operators in the graph's order, and the values that connect them."""

    nodes: list[ir.Node] = field(default_factory=list)
    values: list[ir.Value] = field(default_factory=list)


def connected_subgraphs(graph: ir.Graph, touched: Callable[[ir.Node], Sequence[ir.Value]]) -> list[Subgraph]:
    """The largest connected subgraphs. `touched` gives the values that may connect an operator to others; none where it belongs to
    none. In near-linear time."""
    owners: dict[ir.Value, Subgraph] = {}
    for node in graph:
        values = touched(node)
        if not values:
            continue
        joined = list({id(owner): owner for value in values if (owner := owners.get(value)) is not None}.values())
        subgraph = max(joined, key=lambda candidate: len(candidate.values), default=Subgraph())
        for other in joined:
            if other is not subgraph:  # the smaller moves, so that long chains stay cheap
                subgraph.nodes += other.nodes
                subgraph.values += other.values
                owners.update(dict.fromkeys(other.values, subgraph))
        subgraph.nodes.append(node)
        subgraph.values += values
        owners.update(dict.fromkeys(values, subgraph))
    order = {node: number for number, node in enumerate(graph)}
    for subgraph in (distinct := list({id(subgraph): subgraph for subgraph in owners.values()}.values())):
        subgraph.nodes.sort(key=order.__getitem__)
    return distinct


class SubgraphWriter(Protocol):
    """Writes what operators compute in another way."""

    pairs: dict[ir.Value, ir.Value]
    """What is read outside, with what replaces it."""

    def write(self, node: ir.Node) -> None:
        """Writes one operator."""


def write_subgraph(nodes: Sequence[ir.Node], op: Operators, writer: SubgraphWriter) -> Mapping[ir.Value, ir.Value]:
    """What replaces operators that are written one by one, each where it stands in the graph.

    Raises MatchFailure if some are no longer in the graph.
    """
    require(all(node.graph is nodes[0].graph for node in nodes), "the subgraph has changed")
    for node in nodes:
        op.set_insertion_point(node)
        writer.write(node)
    return writer.pairs
