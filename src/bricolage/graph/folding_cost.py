"""What it costs to fold an operator on constants, told beforehand: in steps of the ONNX reference implementation, a nanosecond or
two each. Steps, not seconds: what is folded must not depend on how busy the machine is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from bricolage.graph.graph import Operator, describe
from bricolage.graph.work import flops

MOST_STEPS = 2_000_000_000
"""For one operator."""
MOST_STEPS_TOGETHER = 10_000_000_000
"""For all of one model."""
MOST_BYTES = 64 << 20
"""Of a folded constant; beyond it computing is cheaper than shipping."""

_FLOPS_A_STEP = 16
"""Of matrix products, which a library does."""
_SLOW_WORDS = """
    AffineGrid AveragePool Col2Im Compress Conv ConvInteger ConvTranspose DeformConv DFT GatherND GridSample GRU
    ImageDecoder LpPool LRN LSTM MaxPool MaxRoiPool MaxUnpool NonMaxSuppression OneHot QLinearConv Resize
    ReverseSequence RNN RoiAlign ScatterElements ScatterND STFT StringConcat StringNormalizer StringSplit
    TfIdfVectorizer Unique Upsample
"""
_SLOW = frozenset(_SLOW_WORDS.split())
"""Operators that the reference implementation computes element by element in Python."""
_SLOW_STEPS = 10_000
"""For an element of one of these."""

_CROSSING = frozenset(["Einsum", "Gather", "GatherND", "Gemm", "MatMul", "MatMulInteger", "QLinearMatMul"])
"""Operators whose results may have an element for any pair of elements that they are given."""

Constants = Sequence[np.ndarray | None]


@dataclass
class FoldingBudget:
    """What folding one model may still take."""

    steps: int = MOST_STEPS_TOGETHER


def folding_steps(node: ir.Node, constants: Constants) -> int | None:
    """Steps to compute a node on `constants`, one for each input; None where that or the result is too large or unknown."""
    given = sum(array.size for array in constants if array is not None)
    produced = 0
    for value in node.outputs:
        if not value.name:
            continue
        info = describe(value)
        elements = info.elements if info.static else _elements(node, constants, given)
        width = info.dtype.itemsize if info.dtype is not None else 8
        if elements is None or elements * width > MOST_BYTES:
            return None
        produced += elements
    steps = given + produced + flops(Operator(0, node, 1)) // _FLOPS_A_STEP
    if node.op_type in _SLOW:
        steps += _SLOW_STEPS * (given + produced)
    return steps if steps <= MOST_STEPS else None


def _elements(node: ir.Node, constants: Constants, given: int) -> int | None:
    """Of a result whose shape is not known: what its size inputs say, or as many as a result of such inputs can have."""
    if node.op_type in _SIZED:
        try:
            return max(0, int(_SIZED[node.op_type](node, constants)))
        except (IndexError, AttributeError, ValueError, TypeError, OverflowError, ZeroDivisionError):
            return None  # an input is missing or makes no sense: the operator stays, and fails when it runs
    shapes = [array.shape for array in constants if array is not None]
    if node.op_type in _CROSSING:
        return given + math.prod(math.prod(shape) for shape in shapes[:2])
    try:
        return given + math.prod(np.broadcast_shapes(*shapes))
    except ValueError:
        return given


def _product(array: np.ndarray | None) -> int:
    return math.prod(int(size) for size in array.reshape(-1)) if array is not None else 0


def _range(_: ir.Node, constants: Constants) -> float:
    start, limit, delta = (float(array.reshape(-1)[0]) for array in constants if array is not None)
    return math.ceil((limit - start) / delta)


def _expand(_: ir.Node, constants: Constants) -> int:
    source, shape = constants
    assert source is not None and shape is not None
    wanted = tuple(int(size) for size in shape)
    if max(wanted, default=1) > MOST_BYTES:
        return MOST_BYTES + 1
    return math.prod(np.broadcast_shapes(source.shape, wanted))


def _tile(_: ir.Node, constants: Constants) -> int:
    return constants[0].size * _product(constants[1])  # type: ignore[union-attr]


def _pad(_: ir.Node, constants: Constants) -> int:
    source, pads = constants[0], constants[1]
    assert source is not None and pads is not None
    most = int(np.abs(pads).sum())
    return math.prod(size + most for size in source.shape)


def _resize(_: ir.Node, constants: Constants) -> float:
    source, sizes = constants[0], constants[3] if len(constants) > 3 else None
    assert source is not None
    if sizes is not None and sizes.size:
        return _product(sizes) * source.size
    scales = constants[2] if len(constants) > 2 else constants[1]
    assert scales is not None
    return source.size * math.prod(float(scale) for scale in scales)


def _one_hot(_: ir.Node, constants: Constants) -> int:
    return constants[0].size * _product(constants[1])  # type: ignore[union-attr]


_SIZED: Mapping[str, Callable[[ir.Node, Constants], float]] = {
    "Range": _range,
    "ConstantOfShape": lambda _, constants: _product(constants[0]),
    "Expand": _expand,
    "Tile": _tile,
    "Pad": _pad,
    "Resize": _resize,
    "Upsample": _resize,
    "OneHot": _one_hot,
}
"""Operators whose results may be larger than what they are given by any factor."""
