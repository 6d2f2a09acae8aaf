"""From an ONNX graph to a torch.fx graph, node by node: constants folded, sizes kept as integers, one call an operator."""

from __future__ import annotations

import functools
from collections.abc import Callable

import onnx_ir as ir
import torch

from bricolage.lowering.common import (
    PORTABLE,
    Attributes,
    HostValue,
    OperatorLowering,
    Results,
    attributes_of,
    constant_node_value,
    opset_for,
    subgraphs_of,
)
from bricolage.lowering.torch import sizes
from bricolage.lowering.torch.arrays import TorchArrays
from bricolage.lowering.torch.control import lower_control
from bricolage.lowering.torch.fused import EMITTERS, NodeView
from bricolage.lowering.torch.fx_builder import Builder
from bricolage.lowering.torch.known_values import AbsentInput, Const, DeviceTensor, Emitted, Known, Size, Sizes

FOLD_LIMIT = 1 << 24
"""Results with more elements than this stay computed at run time, so that folding never bloats a module."""
_ALWAYS_TUPLES = frozenset(
    {"CausalConvWithState", "DynamicQuantizeLinear", "GRU", "LSTM", "LinearAttention", "RNN", "Split", "TopK"}
)
"""Operators whose function returns a tuple even when one output is asked for."""


def lower_node(builder: Builder, node: ir.Node) -> None:
    """Lower one node; its outputs become known."""
    inputs = [builder.known(v) for v in node.inputs]
    attributes = attributes_of(node)
    if node.op_type == "Constant" and not node.domain:
        value = constant_node_value(node)
        if value is None:
            raise builder.refuse(node, "the constant is no dense tensor")
        builder.env[node.outputs[0]] = builder.constant(value)
        return
    if subgraphs_of(node):
        builder.bind(node, lower_control(builder, node, inputs, attributes, lower_node))
        return
    opset = opset_for(node, builder.imports)
    entry = PORTABLE.find("" if node.domain == "ai.onnx" else node.domain, node.op_type, opset)
    if entry is None:
        raise builder.refuse(node, "it is not known")
    result: Emitted | None = _sizes(builder, node, inputs, attributes)
    if result is None:
        result = _fold_constants(builder, entry, node, inputs, attributes)
    if result is None:
        emit = EMITTERS.get(node.op_type) if not node.domain else None
        emitted = emit(NodeView(builder, node, inputs, attributes, opset)) if emit else None
        result = _generic(builder, entry, node, inputs, attributes) if emitted is None else emitted
    builder.bind(node, result)


def _sizes(builder: Builder, node: ir.Node, inputs: list[Known], attributes: Attributes) -> Known | None:
    if node.domain:
        return None
    if node.op_type in ("Shape", "Size"):
        return _shape(builder, node, inputs[0], attributes)
    if not any(isinstance(i, Sizes) for i in inputs):
        return None
    given = [sizes.as_sizes(i) for i in inputs if not isinstance(i, AbsentInput)]
    complete = [s for s in given if s is not None]
    if len(complete) < len(given):
        return None
    return sizes.evaluate_sizes(builder.call, node.op_type, complete, attributes)


def _shape(builder: Builder, node: ir.Node, x: Known, attributes: Attributes) -> Known | None:
    """Shape and Size: numbers where the model knows them, size calls where it does not."""
    if isinstance(x, Const):
        dims: list[Size] = list(x.tensor.shape)
    elif isinstance(x, Sizes):
        dims = [len(x.elements)] * x.rank
    else:
        value = node.inputs[0]
        if value is None or value.shape is None or isinstance(x, AbsentInput):
            return None
        dims = [int(d) if isinstance(d, int) else builder.size(x.node, i) for i, d in enumerate(value.shape)]
    if node.op_type == "Size":
        return sizes.evaluate_sizes(builder.call, "ReduceProd", [Sizes(tuple(dims), 0)], {})
    chosen = tuple(dims[attributes.get("start", 0) : attributes.get("end")])
    if all(isinstance(d, int) for d in chosen):
        return Const(torch.tensor(chosen, dtype=torch.int64))
    return Sizes(chosen, 1)


def _fold_constants(
    builder: Builder, entry: OperatorLowering, node: ir.Node, inputs: list[Known], attributes: Attributes
) -> Emitted | None:
    """The result when every input is constant, computed now by the operator itself."""
    if not all(isinstance(i, (Const, AbsentInput)) for i in inputs) or entry.data_dependent:
        return None
    arguments = [
        None if isinstance(operand, AbsentInput) else builder.host(operand) if entry.is_host(i) else operand.tensor
        for i, operand in enumerate(inputs)
        if not isinstance(operand, (Sizes, DeviceTensor))
    ]
    with torch.no_grad():
        result = entry.function(builder.xp, *arguments, **_keywords(entry, node, attributes))
    results = result if isinstance(result, (tuple, list)) else (result,)
    if sum(r.numel() for r in results) > FOLD_LIMIT:
        return None
    return tuple(Const(r.contiguous()) for r in results)


def _keywords(entry: OperatorLowering, node: ir.Node, attributes: Attributes) -> Attributes:
    words = dict(attributes)
    if "_outputs" in entry.internal:
        words["_outputs"] = len(node.outputs)
    if "_types" in entry.internal:
        words["_types"] = tuple(int(v.dtype) if v is not None and v.dtype else None for v in node.inputs)
    return words


def _generic(
    builder: Builder, entry: OperatorLowering, node: ir.Node, inputs: list[Known], attributes: Attributes
) -> Emitted:
    """The operator as one call of its portable definition."""
    arguments = [builder.host(k) if entry.is_host(i) else builder.tensor(k) for i, k in enumerate(inputs)]
    result = builder.call(bind_operator(entry, builder.xp, _keywords(entry, node, attributes)), arguments)
    return builder.unpacked(result, node) if _is_tuple(entry, node) else result


def _is_tuple(entry: OperatorLowering, node: ir.Node) -> bool:
    return len(node.outputs) > 1 or entry.name in _ALWAYS_TUPLES


def bind_operator(entry: OperatorLowering, xp: TorchArrays, attributes: Attributes) -> Callable[..., Results]:
    """The operator as a function of its inputs alone, with a name that generated code can show."""
    function = functools.partial(entry.function, xp, **attributes)

    def run(*inputs: HostValue | torch.Tensor) -> Results:
        return function(*inputs)

    run.__name__ = entry.name.lower()
    return run
