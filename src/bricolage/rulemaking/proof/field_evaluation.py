"""Runs a model over the field: every operator by its own lowering."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Unpack

import numpy as np
import onnx_ir as ir

from bricolage.errors import BricolageError
from bricolage.lowering import operators
from bricolage.lowering.common import (
    PORTABLE,
    Array,
    Registry,
    attributes_of,
    constant_node_value,
    opset_for,
    refusal,
    static_shape,
    subgraphs_of,
    to_host,
)
from bricolage.lowering.operators.pooling import flat_indices, mask_of, tables_for
from bricolage.lowering.window_indices import PoolAttributes
from bricolage.rulemaking.proof.arrays import FieldArrays
from bricolage.rulemaking.proof.degree import VARIABLE
from bricolage.rulemaking.proof.random_point import NotModelled, RandomPoint
from bricolage.rulemaking.proof.tensor import BOOL, FieldTensor

_REGISTERED = operators
REGISTRY = Registry(PORTABLE)
"""The portable operators; those that speak of infinity are stated anew."""

Ints = tuple[int, ...]


@REGISTRY.operator("MaxPool")
def max_pool(
    xp: FieldArrays,
    x: FieldTensor,
    *,
    storage_order: int = 0,  # noqa: ARG001 -- it concerns the second output alone
    _outputs: int = 1,
    **attributes: Unpack[PoolAttributes],
) -> FieldTensor:
    """Padding never wins: a tap that lies outside is replaced by one inside the same window."""
    if _outputs > 1:
        raise NotModelled("the position of a maximum")
    tables = tables_for(x, attributes)
    inside = mask_of([table.inside for table in tables])
    if not inside.any(-1).all():
        raise NotModelled("a window that sees only padding")
    positions = flat_indices(tables, list(x.shape[2:]), False)
    first = np.take_along_axis(positions, inside.argmax(-1, keepdims=True), -1)
    flat = x.reshape((*x.shape[:2], -1))
    windows: FieldTensor = xp.take(flat, np.where(inside, positions, first), 2)
    pooled: FieldTensor = xp.max(windows, (windows.ndim - 1,))
    return pooled


@dataclass(frozen=True)
class Givens:
    """What the author of a rule says about the names that both sides share."""

    free: Collection[str] = ()
    nonnegative: Collection[str] = ()
    values: Mapping[str, np.ndarray] = field(default_factory=dict)


def evaluate_over_field(model: ir.Model, point: RandomPoint, givens: Givens) -> list[Array]:
    """The model's outputs at the point, in order: field tensors, or numpy arrays of integers and truth values.

    Raises:
        NotModelled: an operator, a type or a value has no exact model; the sentence names the operator.
        ZeroDivisor: the point lies on a pole.
    """
    xp = FieldArrays(point)
    imports = {str(domain): int(version) for domain, version in model.graph.opset_imports.items()}
    values: dict[ir.Value, Array] = {}
    for name, value in model.graph.initializers.items():
        if value.const_value is None:
            raise NotModelled(f"initializer '{name}' has no value")
        array = np.asarray(value.const_value.numpy())
        values[value] = _draw_input(name, array.shape, point, givens) if name in givens.free else xp.constant(array)
    for value in model.graph.inputs:
        if value not in values:
            values[value] = _read_input(value, xp, givens)
    for node in model.graph:
        results = _run(node, xp, opset_for(node, imports), [None if v is None else values[v] for v in node.inputs])
        values.update(zip(node.outputs, results, strict=False))
    return [values[value] for value in model.graph.outputs]


def _read_input(value: ir.Value, xp: FieldArrays, givens: Givens) -> Array:
    name, shape = value.name or "", static_shape(value)
    if name in givens.values:
        return xp.constant(np.asarray(givens.values[name]))
    if shape is None:
        raise NotModelled(f"input '{name}' has no fixed shape")
    if value.dtype is None or not (value.dtype.is_floating_point() or value.dtype == ir.DataType.BOOL):
        raise NotModelled(f"input '{name}' is neither floating-point nor boolean, and no value is given for it")
    drawn = _draw_input(name, shape, xp.point, givens)
    if value.dtype == ir.DataType.BOOL:
        return drawn.derived(xp.point.truth("truth of an input", drawn.values), VARIABLE, BOOL)
    return drawn


def _draw_input(name: str, shape: Ints, point: RandomPoint, givens: Givens) -> FieldTensor:
    if name in givens.nonnegative:
        return FieldTensor(point, point.draw_square(name, shape), VARIABLE.power(2))
    return FieldTensor(point, point.draw(name, shape), VARIABLE)


def _run(node: ir.Node, xp: FieldArrays, opset: int, inputs: list[Array]) -> tuple[Array, ...]:
    domain = "" if node.domain == "ai.onnx" else node.domain
    if not domain and node.op_type == "Constant":
        constant = constant_node_value(node)
        if constant is None:
            raise NotModelled("Constant: it is no dense tensor of numbers")
        return (xp.constant(constant),)
    reason = "control flow" if subgraphs_of(node) else refusal(REGISTRY, node, opset)
    entry = REGISTRY.find(domain, node.op_type, opset)
    if reason or entry is None:
        raise NotModelled(f"{node.op_type}: {reason}")
    words = attributes_of(node)
    if "_outputs" in entry.internal:
        words["_outputs"] = len(node.outputs)
    if "_types" in entry.internal:
        words["_types"] = tuple(int(v.dtype) if v is not None and v.dtype else None for v in node.inputs)
    arguments = [_host(x, entry.input_name(i)) if entry.is_host(i) else x for i, x in enumerate(inputs)]
    try:
        result = entry.function(xp, *arguments, **words)
    except (NotModelled, BricolageError, ValueError, TypeError, IndexError, AttributeError, ZeroDivisionError) as error:
        # Whatever stops an operator stops the proof: the graph is wrong, or its lowering wants what the field lacks.
        raise NotModelled(f"{node.op_type}: {error}") from error
    results = result if isinstance(result, (tuple, list)) else (result,)
    return tuple(r if isinstance(r, FieldTensor) else xp.constant(np.asarray(r)) for r in results)


def _host(value: Array, name: str) -> Array:
    if value is None or isinstance(value, np.ndarray):
        return None if value is None else to_host(value)
    if value.literal is None:
        raise NotModelled(f"input '{name}' depends on data")
    return to_host(value.literal)
