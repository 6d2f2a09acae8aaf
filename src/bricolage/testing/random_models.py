"""A random model with planted patterns."""

from __future__ import annotations

import random
from collections.abc import Sequence

import onnx_ir as ir

from bricolage.graph.inference import infer
from bricolage.testing.patterns import STEPS, Patterns, Plant


def random_model(
    seed: int, plants: Sequence[Plant] = (), plant: Plant | None = None, chance: random.Random | None = None
) -> ir.Model:
    """A model of one to three inputs, at opset 18, 20, 23 or 24, with examples of `plants` among its operators, and of `plant` in
    any case. Types and shapes are inferred. The same arguments give the same model."""
    graph = Patterns(seed, chance, plants)
    for _ in range(graph.random.randint(1, 3)):
        rank = graph.random.randint(1, 4)
        graph.input(tuple(graph.random.choice([1, 2, 3, 4, 6]) for _ in range(rank)))
    steps = graph.random.randint(3, 14)
    for step in range(steps):
        if plant is not None and step == steps // 2:
            graph.plant(plant)
        getattr(graph, graph.random.choice(STEPS))()
    if not graph.nodes:
        graph.function()
    for index, node in enumerate(graph.nodes):
        node.name = f"{node.op_type}_{index}"
    model: ir.Model = ir.from_proto(graph.proto())
    infer(model)
    return model
