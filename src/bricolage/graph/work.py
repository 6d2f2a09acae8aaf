"""Work of operators: floating-point operations and bytes moved, from shapes alone.

A multiply-add counts as two operations. Element-wise operators count one operation an element, transcendental ones too:
the number serves to rank regions and to state floors, not to predict times. Bytes are what must be read and written at
least once: inputs, constants and outputs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

import onnx_ir as ir

from bricolage.graph.graph import Operator, Region, describe
from bricolage.graph.identity import operator_key
from bricolage.graph.operator_kinds import MOVEMENT, VIEWS
from bricolage.graph.properties import SYMBOLIC_SIZE
from bricolage.work.cost import Work
from bricolage.work.workload import OperatorWork, Workload


def _shape(operator: Operator, index: int) -> tuple[int, ...]:
    value = operator.node.inputs[index] if index < len(operator.node.inputs) else None
    info = describe(value) if value is not None else None
    return info.sizes if info is not None and info.static else ()


def _outputs(operator: Operator) -> int:
    infos = [describe(value) for value in operator.outputs]
    return sum(info.elements for info in infos if info.static)


def _inputs(operator: Operator) -> int:
    infos = [describe(value) for value in operator.inputs]
    return sum(info.elements for info in infos if info.static)


def _convolution(operator: Operator) -> int:
    weight = _shape(operator, 1)  # output channels × input channels of a group × kernel
    return 2 * _outputs(operator) * math.prod(weight[1:])


def _transposed_convolution(operator: Operator) -> int:
    weight = _shape(operator, 1)  # input channels × output channels of a group × kernel
    return 2 * math.prod(_shape(operator, 0)) * math.prod(weight[1:])


def _matmul(operator: Operator) -> int:
    left = _shape(operator, 0)
    return 2 * _outputs(operator) * (left[-1] if left else 1)


def _gemm(operator: Operator) -> int:
    left = _shape(operator, 0)
    inner = left[0 if operator.attribute("transA", 0) else -1] if left else 1
    return 2 * _outputs(operator) * inner


def _recurrent(gates: int) -> Callable[[Operator], int]:
    def flops(operator: Operator) -> int:
        steps, weight, recurrence = _shape(operator, 0), _shape(operator, 1), _shape(operator, 2)
        if len(steps) < 2 or len(weight) < 3 or len(recurrence) < 3:
            return _outputs(operator) * gates
        return 2 * steps[0] * steps[1] * weight[0] * weight[1] * (weight[2] + recurrence[2])

    return flops


def _attention(operator: Operator) -> int:
    query, key = _shape(operator, 0), _shape(operator, 1)
    if len(query) < 3 or len(key) < 3:
        return _outputs(operator)
    return 4 * math.prod(query) * key[-2]


def _einsum(operator: Operator) -> int:
    """One multiply-add for each combination of all indices; without knowledge of the indices (an ellipsis), of the results."""
    equation = str(operator.node.attributes.get_string("equation", "")).replace(" ", "")
    terms = equation.partition("->")[0].split(",")
    sizes: dict[str, int] = {}
    for index, term in enumerate(terms):
        shape = _shape(operator, index)
        if "." in term or len(shape) != len(term):
            return 2 * _outputs(operator)
        sizes.update(zip(term, shape, strict=True))
    return 2 * math.prod(sizes.values())


def _pool(operator: Operator) -> int:
    kernel = operator.node.attributes.get("kernel_shape")
    return _outputs(operator) * (math.prod(kernel.as_ints()) if kernel is not None else 1)


_FLOPS: dict[str, Callable[[Operator], int]] = {
    "Conv": _convolution,
    "ConvInteger": _convolution,
    "QLinearConv": _convolution,
    "ConvTranspose": _transposed_convolution,
    "MatMul": _matmul,
    "MatMulInteger": _matmul,
    "QLinearMatMul": _matmul,
    "FusedMatMul": _matmul,
    "Gemm": _gemm,
    "FusedGemm": _gemm,
    "LSTM": _recurrent(4),
    "GRU": _recurrent(3),
    "RNN": _recurrent(1),
    "Attention": _attention,
    "Einsum": _einsum,
    "MaxPool": _pool,
    "AveragePool": _pool,
    "LpPool": _pool,
    "Softmax": lambda operator: 5 * _outputs(operator),
    "LogSoftmax": lambda operator: 5 * _outputs(operator),
    "LayerNormalization": lambda operator: 8 * _outputs(operator),
    "InstanceNormalization": lambda operator: 8 * _outputs(operator),
    "GroupNormalization": lambda operator: 8 * _outputs(operator),
    "RMSNormalization": lambda operator: 5 * _outputs(operator),
    "BatchNormalization": lambda operator: 2 * _outputs(operator),
}


def flops(operator: Operator) -> int:
    """Floating-point operations of one operator; 0 for pure data movement."""
    if operator.op_type in MOVEMENT:
        return 0
    special = _FLOPS.get(operator.op_type)
    if special is not None:
        return special(operator)
    if operator.op_type.startswith(("Reduce", "Global", "Arg", "CumSum", "TopK")):
        return _inputs(operator)
    return _outputs(operator)


def bytes_moved(operator: Operator) -> int:
    """Bytes of one operator on its own: everything read once and written once; 0 for views."""
    if operator.op_type in VIEWS:
        return 0
    return sum(describe(value).bytes for value in (*operator.inputs, *operator.outputs))


def operator_work(operator: Operator, sizes: Mapping[str, int] | None = None) -> Work:
    """An operator by itself, whether or not it lies in a graph. `sizes`: of symbolic dimensions; `SYMBOLIC_SIZE` for others."""
    bound = Operator(operator.number, _bind_sizes(operator.node, sizes or {}), operator.version)
    constants = frozenset(value for value in bound.inputs if value.const_value is not None)
    bound_work = _operator_work(bound, constants)
    return Work(
        Workload((bound_work,), bound_work.read, bound_work.constant, bound_work.written), key=operator_key(operator)
    )


def workload(region: Region, network: str = "") -> Workload:
    """What a region computes, without the region: see `bricolage.work.workload`. `network`: the hash of its model."""
    constants = frozenset(region.constants)
    return Workload(
        tuple(_operator_work(operator, constants) for operator in region.operators),
        sum(describe(value).bytes for value in region.inputs),
        sum(describe(value).bytes for value in region.constants),
        sum(describe(value).bytes for value in region.outputs),
        network,
    )


def _operator_work(operator: Operator, constants: frozenset[ir.Value]) -> OperatorWork:
    first = describe(operator.outputs[0])
    read = [(value, describe(value).bytes) for value in operator.inputs]
    kernel = operator.node.attributes.get("kernel_shape")
    strides = operator.node.attributes.get("strides")
    weight = _shape(operator, 1) if operator.op_type in _WITH_KERNEL else ()
    return OperatorWork(
        operator.op_type if _PLAIN.fullmatch(operator.op_type) else _UNUSUAL.sub("_", operator.op_type)[:_LONGEST_KIND],
        first.dtype.name.lower() if first.dtype is not None else "",
        first.sizes if first.static else (),
        flops(operator),
        sum(size for value, size in read if value not in constants),
        sum(size for value, size in read if value in constants),
        first.bytes + sum(describe(value).bytes for value in operator.outputs[1:]),
        kernel=tuple(kernel.as_ints()) if kernel is not None else weight[2:],
        strides=tuple(strides.as_ints()) if strides is not None else (),
        groups=groups if isinstance(groups := operator.attribute("group", 1), int) and groups > 0 else 1,
    )


_LONGEST_KIND = 100
_PLAIN, _UNUSUAL = re.compile(rf"\w{{1,{_LONGEST_KIND}}}", re.ASCII), re.compile(r"\W", re.ASCII)
_WITH_KERNEL = frozenset(["Conv", "ConvInteger", "ConvTranspose"])
"""Operators whose second input ends in the sizes of a kernel, where no attribute says them."""


def _bind_sizes(node: ir.Node, sizes: Mapping[str, int]) -> ir.Node:
    """The operator on values whose symbolic dimensions have sizes; itself where there are none."""
    values = [value for value in (*node.inputs, *node.outputs) if value is not None]
    if all(describe(value).static for value in values):
        return node
    copies: dict[ir.Value, ir.Value] = {}
    for value in values:
        info = describe(value)
        if info.shape is None:
            shape = None
        else:
            shape = ir.Shape([d if isinstance(d, int) else sizes.get(d, SYMBOLIC_SIZE) for d in info.shape])
        copies[value] = ir.Value(name=value.name, type=value.type, shape=shape, const_value=value.const_value)
    bound = ir.Node(
        node.domain,
        node.op_type,
        [None if value is None else copies[value] for value in node.inputs],
        [attribute for attribute in node.attributes.values() if attribute.type not in _BODIES],
        num_outputs=len(node.outputs),
    )
    for value, output in zip(node.outputs, bound.outputs, strict=True):
        output.name, output.type, output.shape = value.name, value.type, copies[value].shape
    return bound


_BODIES = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
