"""Random graphs: of which steps, and how many."""

from __future__ import annotations

import random
from typing import TypeVar

import numpy as np
import onnx
import onnx.compose

from bricolage.testing.basics import BASIC_STEPS, Basics
from bricolage.testing.edges import EDGE_STEPS, Edges
from bricolage.testing.element_types import TYPE_STEPS, Types
from bricolage.testing.elements import ELEMENT_STEPS, Elements
from bricolage.testing.kernels import KERNEL_STEPS, Kernels
from bricolage.testing.random_graph import RandomGraph

_Graph = TypeVar("_Graph", bound=Basics)
WIDE_STEPS = BASIC_STEPS + ELEMENT_STEPS + KERNEL_STEPS + TYPE_STEPS
_OLDEST, _NEWEST = 18, 26


class WideGraph(Basics, Elements, Kernels, Types, Edges):
    """Every step that there is, but for those of `Patterns`."""


def grow(seed: int, chance: random.Random | None = None) -> Basics:
    """A few inputs and up to twelve operators of `Basics`, which fuse deeply."""
    graph = Basics(seed, chance, opset=20)
    for _ in range(graph.random.randint(1, 3)):
        rank = graph.random.randint(0, 6)
        graph.input(tuple(graph.random.choice([1, 2, 3, 4, 7]) for _ in range(rank)))
    if graph.random.random() < 0.5:
        graph.image()
    return _grow_graph(graph, BASIC_STEPS)


def grow_wide(
    seed: int,
    chance: random.Random | None = None,
    *,
    edges: bool = False,
    steps: tuple[str, ...] | None = None,
    operators: tuple[int, int] = (2, 12),
) -> WideGraph:
    """A few inputs and two to twelve steps of all kinds: integers and conditions, choices and look-ups by computed places,
    products of every form, attention, resizing, losses, operators with several outputs.

    With `edges`, of `Edges` too, and at an opset that is seldom the newest one. `steps` are names of methods, where not all will
    do; `operators` the least and the largest number of steps.
    """
    graph = WideGraph(seed, chance)
    for _ in range(graph.random.randint(1, 3)):
        graph.input(graph.sized())
    if graph.random.random() < 0.4:
        graph.image()
    _grow_graph(graph, steps or WIDE_STEPS + (EDGE_STEPS * 2 if edges else ()), operators)
    if edges:
        graph.opset = graph.random.choice(
            [o for o in range(_OLDEST, _NEWEST + 1) if is_expressible_at(graph, o)] or [24]
        )
    return graph


def is_expressible_at(graph: RandomGraph, opset: int) -> bool:
    """Whether all operators of a graph can be written as they are at an opset."""
    for node in graph.nodes:
        try:
            schema = onnx.defs.get_schema(node.op_type, opset)
        except onnx.defs.SchemaError:
            return False
        if not schema.min_input <= len(node.input) <= schema.max_input:
            return False
        if any(attribute.name not in schema.attributes for attribute in node.attribute):
            return False
        if schema.since_version < _CHANGED.get(node.op_type, 0):
            return False
    return True


_CHANGED = {"GroupNormalization": 21, "Pad": 19, "Resize": 19}
"""Operators that mean something else, or can less, in definitions older than these."""


def _grow_graph(graph: _Graph, steps: tuple[str, ...], operators: tuple[int, int] = (2, 12)) -> _Graph:
    for _ in range(graph.random.randint(*operators)):
        getattr(graph, graph.random.choice(steps))()
    if not graph.nodes:
        graph.unary()
    return graph


class SideBySide:
    """Graphs that share nothing as one: most of the time that a small library takes to compile is spent once.

    Every tenth is one of `grow`, whose fewer operators fuse more deeply.
    """

    def __init__(self, seeds: range) -> None:
        self.parts = {f"s{seed}_": ((grow if seed % 10 == 9 else grow_wide)(seed), seed) for seed in seeds}

    def proto(self) -> onnx.ModelProto:
        """All of them as one model; names start with the graph's seed."""
        return side_by_side({prefix: graph.proto() for prefix, (graph, _) in self.parts.items()})

    def feeds(self, seed: int) -> dict[str, np.ndarray]:  # noqa: ARG002  # every graph has its own
        """Values of the inputs of all."""
        return {
            prefix + name: value
            for prefix, (graph, part_seed) in self.parts.items()
            for name, value in graph.feeds(part_seed).items()
        }


def side_by_side(models: dict[str, onnx.ModelProto]) -> onnx.ModelProto:
    """One model of several, with prefixed names, at the newest of their opsets."""
    first, *others = (onnx.compose.add_prefix(proto, prefix) for prefix, proto in models.items())
    for other in others:
        for name in ("node", "input", "output", "initializer"):
            getattr(first.graph, name).extend(getattr(other.graph, name))
    first.opset_import[0].version = max(proto.opset_import[0].version for proto in models.values())
    return first
