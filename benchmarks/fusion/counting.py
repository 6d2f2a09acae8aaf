"""How many operators a model has, with what a runtime fused counted as the operators that it replaces.

Operators are the nodes of the graph and of its sub-graphs, without constants. ONNX Runtime's own operators count as what
they stand for, in the words of a given opset: its Gelu is five operators before opset 20, and one from there on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx

_GELU, _TANH_GELU, _RMS = 5, 8, 6
"""Operators of the written-out forms: Div Erf Add Mul Mul; Pow Mul Add Mul Tanh Add Mul Mul; Pow ReduceMean Add Sqrt Div Mul."""


def _has(node: onnx.NodeProto, index: int) -> int:
    """1 where an optional input is there."""
    return int(len(node.input) > index and bool(node.input[index]))


def _set(node: onnx.NodeProto, *names: str) -> int:
    """How many of these attributes are there, and neither empty, nor 0 nor 1.0."""
    found = [onnx.helper.get_attribute_value(a) for a in node.attribute if a.name in names]
    return sum(1 for value in found if value not in (b"", 0, 1.0))


def _flag(node: onnx.NodeProto, *names: str) -> int:
    found = [onnx.helper.get_attribute_value(a) for a in node.attribute if a.name in names]
    return sum(map(int, found))


def _gelu(opset: int) -> int:
    return 1 if opset >= 20 else _GELU


def _tanh_gelu(opset: int) -> int:
    return 1 if opset >= 20 else _TANH_GELU


def _rms(opset: int) -> int:
    return 1 if opset >= 23 else _RMS


_Count = Callable[[onnx.NodeProto, int], int]


def _fixed(count: int) -> _Count:
    return lambda _node, _opset: count


REPLACED: dict[tuple[str, str], _Count] = {
    # a convolution, its activation, and the sum with a fourth input
    ("com.microsoft", "FusedConv"): lambda node, _: 1 + _set(node, "activation") + _has(node, 3),
    ("com.microsoft.nchwc", "Conv"): lambda node, _: 1 + _set(node, "activation") + _has(node, 3),
    # changes of memory layout are no operators of the model
    ("com.microsoft.nchwc", "ReorderInput"): _fixed(0),
    ("com.microsoft.nchwc", "ReorderOutput"): _fixed(0),
    ("com.microsoft.nchwc", "MaxPool"): _fixed(1),
    ("com.microsoft.nchwc", "AveragePool"): _fixed(1),
    ("com.microsoft.nchwc", "GlobalMaxPool"): _fixed(1),
    ("com.microsoft.nchwc", "GlobalAveragePool"): _fixed(1),
    ("com.microsoft.nchwc", "Upsample"): _fixed(1),
    ("com.microsoft", "FusedGemm"): lambda node, _: 1 + _set(node, "activation"),
    # a product, the transposes of its operands, and a scale
    ("com.microsoft", "FusedMatMul"): lambda node, _: (
        1 + _flag(node, "transA", "transB", "transBatchA", "transBatchB") + _set(node, "alpha")
    ),
    ("com.microsoft", "Gelu"): lambda _, opset: _gelu(opset),
    ("com.microsoft", "BiasGelu"): lambda _, opset: 1 + _gelu(opset),
    ("com.microsoft", "FastGelu"): lambda node, opset: _has(node, 1) + _tanh_gelu(opset),
    # x · Sigmoid(α · x)
    ("com.microsoft", "QuickGelu"): lambda node, _: 2 + _set(node, "alpha"),
    ("com.microsoft", "BiasSoftmax"): _fixed(2),
    # a sum (with a bias, two), and the normalisation
    ("com.microsoft", "SkipLayerNormalization"): lambda node, _: 2 + _has(node, 4),
    ("com.microsoft", "SkipSimplifiedLayerNormalization"): lambda node, opset: 1 + _has(node, 3) + _rms(opset),
    # ONNX Runtime writes it in the default domain, where only its own reader finds it
    ("", "SimplifiedLayerNormalization"): lambda _, opset: _rms(opset),
}
"""What ONNX Runtime's operators replace, by domain and type."""


class Uncounted(Exception):
    """An operator of another domain of which it is not known what it replaces."""


def operators(model: onnx.ModelProto, opset: int) -> int:
    """Operators of a model, in the words of `opset`.

    Raises:
        Uncounted: `REPLACED` lacks one of its operators.
    """
    return sum(_count(node, opset) for node in _nodes(model.graph))


def _count(node: onnx.NodeProto, opset: int) -> int:
    domain = "" if node.domain == "ai.onnx" else node.domain
    known = REPLACED.get((domain, node.op_type))
    if known is not None:
        return known(node, opset)
    if domain:
        raise Uncounted(f"{domain}.{node.op_type}")
    return int(node.op_type != "Constant")


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _nodes(inner)
