"""Which operators multiply an activation with constant weights, how their weights lie along k, and why others do not take part."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from bricolage.errors import AlreadyQuantised, UnknownOperatorName
from bricolage.graph.constant_folding import constant_elements
from bricolage.graph.graph import Graph, Operator, describe

INTEGER_OPERATORS = frozenset(
    [
        *("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "ConvInteger", "QLinearConv"),
        *("QLinearMatMul", "MatMulNBits", "QGemm", "QLinearAdd", "QLinearMul", "QAttention", "DynamicQuantizeMatMul"),
        *("MatMulIntegerToFloat", "DynamicQuantizeLSTM", "GatherBlockQuantized"),
    ]
)
FUSED = frozenset({"Relu", "Clip"})
"""What runtimes compute in the step that makes a convolution's result bytes."""
ORDER_KEEPING = frozenset({"MaxPool", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Identity"})
"""Whose result has the range of their first input, and is as exact in bytes."""
_PRODUCTS = frozenset({"Conv", "MatMul", "Gemm"})
_LIKE_PRODUCTS = frozenset({"ConvTranspose", "LSTM", "GRU", "RNN", "Einsum", "Attention"})
"""Whose absence a user would ask about."""


@dataclass(frozen=True)
class WeightedProduct:
    """An operator with an activation and constant weights. Its identity is the name of what it computes."""

    name: str
    """As the model calls it."""
    output: str
    op_type: str
    activation: str
    weight: str
    bias: str | None
    """Where it is an input of the operator."""
    end: str
    """What of a convolution becomes bytes: its result, or that of the rectifier behind it."""
    transposed: bool = False
    """Whether weights of a Gemm are [n, k]."""

    @property
    def channel_axis(self) -> int:
        """Of output channels in the weights."""
        return 0 if self.op_type == "Conv" or self.transposed else -1

    @property
    def activation_axis(self) -> int:
        """Of input channels in the activation."""
        return 1 if self.op_type == "Conv" else -1


@dataclass(frozen=True)
class Unquantised:
    """An operator that stays float, and why."""

    name: str
    op_type: str
    reason: str


def require_float(model: ir.Model) -> None:
    """Refuses what is quantised already.

    Raises:
        AlreadyQuantised
    """
    for node in model.graph.all_nodes():
        if node.op_type in INTEGER_OPERATORS:
            raise AlreadyQuantised(
                name=node.name or (node.outputs[0].name if node.outputs else ""), op_type=node.op_type
            )


def products(graph: Graph) -> tuple[list[WeightedProduct], list[Unquantised]]:
    """Those that can be quantised, in the graph's order, and those like them that cannot."""
    candidates: list[WeightedProduct] = []
    refused: list[Unquantised] = []
    for operator in graph.operators:
        if operator.domain or operator.op_type not in _PRODUCTS | _LIKE_PRODUCTS:
            continue
        reason = _hindrance(graph, operator)
        if reason:
            refused.append(Unquantised(operator.name, operator.op_type, reason))
        else:
            candidates.append(_product(graph, operator))
    return candidates, refused


def _hindrance(graph: Graph, operator: Operator) -> str:
    """Why an operator cannot be quantised; empty where it can."""
    if operator.op_type in _LIKE_PRODUCTS:
        return "no runtime computes it in bytes"
    data, weight = operator.node.inputs[:2]
    if data is None or weight is None:
        return "it lacks an input"
    if graph.is_constant(data) and operator.op_type != "Gemm":
        return "its weights stand on the left"
    array = constant_elements(weight)
    if array is None or graph.is_constant(data):
        return "both sides are computed" if array is None else "both sides are constant"
    if describe(data).dtype != ir.DataType.FLOAT:
        return f"it computes in {describe(data).dtype}"
    if array.ndim < 2 or not array.size:
        return "its weights are a vector"
    if not np.isfinite(array).all():
        return "its weights hold NaN or infinite numbers"
    if operator.op_type == "MatMul" and array.ndim > 2:
        return "its weights are a stack of matrices"
    bias = _bias(operator)
    shift = np.zeros(1) if bias is None else constant_elements(bias)
    if shift is None or not np.isfinite(shift).all():
        return "its bias is computed" if shift is None else "its bias is not finite"
    if bias is not None and any(size != 1 for size in shift.shape[:-1]):
        return "its bias is another one for each row"
    if operator.op_type == "Gemm" and _is_scaled(operator, bias):
        return "it multiplies its result or its bias with a factor"
    return ""


def _bias(operator: Operator) -> ir.Value | None:
    inputs = operator.node.inputs
    return inputs[2] if len(inputs) > 2 and operator.op_type != "MatMul" else None


def _is_scaled(operator: Operator, bias: ir.Value | None) -> bool:
    beta = operator.attribute("beta", 1.0)
    return operator.attribute("alpha", 1.0) != 1.0 or (bias is not None and beta != 1.0)


def _product(graph: Graph, operator: Operator) -> WeightedProduct:
    data, weight = operator.node.inputs[:2]
    bias = _bias(operator)
    (result,) = operator.outputs
    assert data is not None and weight is not None
    return WeightedProduct(
        operator.name,
        result.name or "",
        op_type=operator.op_type,
        activation=data.name or "",
        weight=weight.name or "",
        bias=None if bias is None else bias.name,
        end=_end(graph, result).name or "",
        transposed=operator.op_type == "Gemm" and bool(operator.attribute("transB", 0)),
    )


def _end(graph: Graph, value: ir.Value) -> ir.Value:
    """The value behind a rectifier that alone reads `value`."""
    readers = graph.readers(value)
    if len(readers) != 1 or graph.is_output(value):
        return value
    behind = graph.operators[readers[0]]
    if behind.domain or behind.op_type not in FUSED or behind.node.inputs[0] is not value:
        return value
    if any(source is not None and constant_elements(source) is None for source in behind.node.inputs[1:]):
        return value
    return behind.outputs[0]


def weight_rank(graph: Graph, product: WeightedProduct) -> int:
    """Rank of the weights."""
    array = constant_elements(graph.constants[product.weight])
    return 0 if array is None else array.ndim


def quantised_products(products: Collection[WeightedProduct], kept_float: Collection[str]) -> Iterator[WeightedProduct]:
    """Those whose name, result and type are not in `kept_float`."""
    for product in products:
        if not {product.name, product.output, product.op_type} & set(kept_float):
            yield product


def known_names(
    names: Collection[str], able: Sequence[WeightedProduct], refused: Sequence[Unquantised]
) -> tuple[str, ...]:
    """The names, those of parts of an operator as that of the operator: of "head/MatMul", as reports call a product of some of its
    channels, "head".

    Raises:
        UnknownOperatorName: no operator has a name.
    """
    there = {word for operator in able for word in (operator.name, operator.output, operator.op_type)} | {
        operator.name for operator in refused
    }
    return tuple(name if name in there else _whole_of(name, there, able) for name in names)


def _whole_of(name: str, there: Collection[str], able: Sequence[WeightedProduct]) -> str:
    whole, _, part = name.rpartition("/")
    if whole in there and part in _PRODUCTS:
        return whole
    shown = ", ".join(dict.fromkeys([*(product.op_type for product in able), *(product.name for product in able)]))
    raise UnknownOperatorName(name=name, known=shown)
