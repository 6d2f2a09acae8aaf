"""Outputs that are drawn at random: two right answers differ, and their distributions are alike.

Values that depend on a random operator are compared in ascending order, element by element: the distance between two sorted samples
is Wasserstein's. How far two right answers are from each other in that measure is found as what rounding does is
(`bricolage.verify.bound`), with a new seed in each evaluation.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from bricolage.graph.graph import bodies, find_captured
from bricolage.graph.operator_kinds import RANDOM
from bricolage.work.values import ModelValue


class Drawn(np.ndarray):
    """An array of values that were drawn at random: only their distribution is compared."""


def mark_drawn(value: ModelValue) -> ModelValue:
    """An array, or those of a sequence, as such values."""
    if isinstance(value, list):
        return [mark_drawn(member) for member in value]
    return value.view(Drawn) if isinstance(value, np.ndarray) else value


def random_outputs(model: ir.Model) -> frozenset[str]:
    """Names of the outputs that depend on a random operator."""
    reached: set[ir.Value] = set()
    for node in model.graph:
        read = (*node.inputs, *find_captured(node))
        if _is_random(node) or any(value in reached for value in read if value is not None):
            reached.update(node.outputs)
    return frozenset(value.name or "" for value in model.graph.outputs if value in reached)


def remove_seeds(model: ir.Model) -> None:
    """Takes the seeds out of a model, so that every evaluation draws anew."""
    _unseed(model.graph)


def _unseed(graph: ir.Graph) -> None:
    for node in graph:
        if _is_random(node):
            node.attributes.pop("seed", None)
        for body in bodies(node):
            _unseed(body)


def _is_random(node: ir.Node) -> bool:
    if node.domain:
        return False
    if node.op_type == "Dropout" and len(node.inputs) > 2 and node.inputs[2] is not None:
        training = node.inputs[2].const_value
        return training is None or bool(training.numpy().any())
    return node.op_type in RANDOM or any(_is_random(inner) for body in bodies(node) for inner in body)
