"""The operators of the generator's vocabulary in ONNX: which nodes they are, and how they are written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from bricolage.device.tensor_form import Dimension
from bricolage.graph.constant_folding import constant_elements
from bricolage.rewrite.analyses.slices import kept_ranges
from bricolage.rewrite.predicates import (
    axes,
    integer,
    integers,
    listed,
    normalised,
    permutation,
    rank,
    require,
    shape,
    text,
)
from bricolage.rewrite.rule import MatchFailure, Operators

Dimensions = tuple[Dimension, ...]
Parts = tuple[Dimension, Dimension] | None
"""Sizes of the two parts of what is split."""


@dataclass(frozen=True)
class OnnxOperator:
    """An operator of the vocabulary as an ONNX operator.

    `operands` is how many constants (shapes, axes, pads) follow the inputs; `accepts` raises MatchFailure for a node of the
    type that means something else; `write` makes the outputs from the inputs, the shape of the result and the parts of a split.
    """

    op_type: str
    accepts: Callable[[ir.Node], None]
    write: Callable[[Operators, Sequence[ir.Value], Dimensions, Parts], tuple[ir.Value, ...]]
    operands: int = 0
    output: int = 0


def require_fixed_sizes(dimensions: Sequence[Dimension]) -> list[int]:
    """Sizes that are numbers. Raises MatchFailure."""
    if not all(isinstance(d, int) for d in dimensions):
        raise MatchFailure(f"{'×'.join(map(str, dimensions))} are not all known sizes")
    return [int(d) for d in dimensions]


def _plain(op_type: str) -> OnnxOperator:
    def write(op: Operators, xs: Sequence[ir.Value], *_: object) -> tuple[ir.Value, ...]:
        return op.many(op_type, 1, *xs)

    return OnnxOperator(op_type, lambda _: None, write)


def _attributes(op_type: str, expected: Mapping[str, Any], written: Mapping[str, Any]) -> OnnxOperator:
    """An operator that attributes tell from others of its type; `expected` has the defaults of those that are not written."""

    def accepts(node: ir.Node) -> None:
        for name, (value, default) in expected.items():
            attribute: Any
            if isinstance(default, str):
                attribute = text(node, name, default)
            elif isinstance(default, int):
                attribute = integer(node, name, default)
            else:
                attribute = listed(node, name, default)
            require(attribute == value, f"{name} of '{node.name}' is {attribute}, not {value}")

    def write(op: Operators, xs: Sequence[ir.Value], *_: object) -> tuple[ir.Value, ...]:
        return op.many(op_type, 1, *xs, **written)

    return OnnxOperator(op_type, accepts, write)


def _convolution(kernel: int, stride: int = 1, group: int = 1, padded: bool = True) -> OnnxOperator:
    pad = kernel // 2 if padded else 0
    strides, pads = (stride,) * 2, (pad,) * 4
    return _attributes(
        "Conv",
        {
            "auto_pad": ("NOTSET", "NOTSET"),
            "group": (group, 1),
            "strides": (strides, (1, 1)),
            "pads": (pads, (0,) * 4),
            "dilations": ((1, 1), (1, 1)),
        },
        {"strides": list(strides), "pads": list(pads), "group": group},
    )


def _pool(op_type: str, stride: int) -> OnnxOperator:
    strides, pads = (stride,) * 2, (1,) * 4
    counted = {"count_include_pad": 1} if op_type == "AveragePool" else {}
    return _attributes(
        op_type,
        {
            "auto_pad": ("NOTSET", "NOTSET"),
            "kernel_shape": ((3, 3), ()),
            "strides": (strides, (1, 1)),
            "pads": (pads, (0,) * 4),
            "dilations": ((1, 1), (1, 1)),
            "ceil_mode": (0, 0),
            **{name: (value, 0) for name, value in counted.items()},
        },
        {"kernel_shape": [3, 3], "strides": list(strides), "pads": list(pads), **counted},
    )


def _make_transpose(wanted: Callable[[int], tuple[int, ...]]) -> OnnxOperator:
    def accepts(node: ir.Node) -> None:
        value = _input(node)
        require(permutation(node, value) == wanted(rank(value)), f"'{node.name}' permutes otherwise")

    def write(op: Operators, xs: Sequence[ir.Value], made: Dimensions, _: Parts) -> tuple[ir.Value, ...]:
        return op.many("Transpose", 1, *xs, perm=list(wanted(len(made))))

    return OnnxOperator("Transpose", accepts, write)


def _swap_last_axes(of_rank: int) -> tuple[int, ...]:
    return (*range(of_rank - 2), of_rank - 1, of_rank - 2)


def _concat(axis: int) -> OnnxOperator:
    def accepts(node: ir.Node) -> None:
        _same_axis(node, axis)

    def write(op: Operators, xs: Sequence[ir.Value], made: Dimensions, _: Parts) -> tuple[ir.Value, ...]:
        return op.many("Concat", 1, *xs, axis=len(made) + axis)

    return OnnxOperator("Concat", accepts, write)


def _same_axis(node: ir.Node, axis: int) -> None:
    value = _input(node)
    (node_axis,) = normalised([integer(node, "axis", 0)], rank(value))
    require(node_axis == rank(value) + axis, f"'{node.name}' goes along another axis")


def _split(axis: int, output: int) -> OnnxOperator:
    def accepts(node: ir.Node) -> None:
        _same_axis(node, axis)
        require(len(node.outputs) == 2, f"'{node.name}' has not two outputs")

    def write(op: Operators, xs: Sequence[ir.Value], made: Dimensions, parts: Parts) -> tuple[ir.Value, ...]:
        assert parts is not None
        return op.many("Split", 2, *xs, op.integers(require_fixed_sizes(parts)), axis=len(made) + axis)

    return OnnxOperator("Split", accepts, write, operands=1, output=output)


def _slice(axis: int, output: int) -> OnnxOperator:
    def accepts(node: ir.Node) -> None:
        input_shape = shape(_input(node))
        place = len(input_shape) + axis
        ranges = kept_ranges(node)
        require(set(ranges) == {place}, f"'{node.name}' cuts other axes")
        start, end = ranges[place]
        require(
            end > start and (start == 0 if output == 0 else end == input_shape[place]),
            f"'{node.name}' does not keep {'the end' if output else 'the front'}",
        )

    def write(op: Operators, xs: Sequence[ir.Value], made: Dimensions, parts: Parts) -> tuple[ir.Value, ...]:
        assert parts is not None
        first, second = require_fixed_sizes(parts)
        start, end = (0, first) if output == 0 else (first, first + second)
        where = [op.integers([number]) for number in (start, end, len(made) + axis)]
        return op.many("Slice", 1, *xs, *where)

    return OnnxOperator("Slice", accepts, write, operands=4)


def _reduction(op_type: str, axis: int) -> OnnxOperator:
    def accepts(node: ir.Node) -> None:
        of_rank = rank(_input(node))
        require(integer(node, "keepdims", 1) == 1, f"'{node.name}' drops the axis")
        require(normalised(axes(node), of_rank) == (of_rank + axis,), f"'{node.name}' reduces other axes")

    def write(op: Operators, xs: Sequence[ir.Value], made: Dimensions, _: Parts) -> tuple[ir.Value, ...]:
        return op.many(op_type, 1, *xs, op.integers([len(made) + axis]), keepdims=1)

    return OnnxOperator(op_type, accepts, write, operands=1)


_AROUND = (0, 0, 1, 1, 0, 0, 1, 1)


def _pad() -> OnnxOperator:
    def accepts(node: ir.Node) -> None:
        given = [*node.inputs, None, None, None]
        require(text(node, "mode", "constant") == "constant", f"'{node.name}' does not pad with a constant")
        require(integers(given[1], "the pads") == _AROUND and given[3] is None, f"'{node.name}' has other pads")
        filler = constant_elements(given[2]) if given[2] is not None else None
        require(given[2] is None or (filler is not None and not filler.any()), f"'{node.name}' does not pad with 0")

    def write(op: Operators, xs: Sequence[ir.Value], *_: object) -> tuple[ir.Value, ...]:
        return op.many("Pad", 1, *xs, op.integers(_AROUND))

    return OnnxOperator("Pad", accepts, write, operands=3)


def _reshape() -> OnnxOperator:
    """The shapes say all."""

    def write(op: Operators, xs: Sequence[ir.Value], made: Dimensions, _: Parts) -> tuple[ir.Value, ...]:
        sizes = [d if isinstance(d, int) else -1 for d in made]
        require(sizes.count(-1) <= 1, "more than one dimension of the result is not known")
        return op.many("Reshape", 1, *xs, op.integers(sizes))

    return OnnxOperator("Reshape", lambda _: None, write, operands=1)


def _input(node: ir.Node) -> ir.Value:
    value = node.inputs[0]
    assert value is not None
    return value


def _along(name: str, axis: int) -> dict[str, OnnxOperator]:
    operators = {f"concat_{name}": _concat(axis)}
    for output in (0, 1):
        operators[f"split_{name}_{output}"] = _split(axis, output)
        operators[f"slice_{name}_{output}"] = _slice(axis, output)
    return operators


ONNX_OPERATORS: Mapping[str, OnnxOperator] = {
    "relu": _plain("Relu"),
    "tanh": _plain("Tanh"),
    "sigmoid": _plain("Sigmoid"),
    "add": _plain("Add"),
    "mul": _plain("Mul"),
    "scale": _plain("Mul"),
    "matmul": _plain("MatMul"),
    "project": _plain("MatMul"),
    "transpose": _make_transpose(_swap_last_axes),
    "nhwc": _make_transpose(lambda _: (0, 2, 3, 1)),
    "nchw": _make_transpose(lambda _: (0, 3, 1, 2)),
    "sum_rows": _reduction("ReduceSum", -2),
    "sum_columns": _reduction("ReduceSum", -1),
    "mean_columns": _reduction("ReduceMean", -1),
    "max_columns": _reduction("ReduceMax", -1),
    "mean_spatial": _plain("GlobalAveragePool"),
    "merge": _reshape(),
    "unmerge": _reshape(),
    "average_pool3": _pool("AveragePool", 1),
    "average_pool3_stride2": _pool("AveragePool", 2),
    "max_pool3": _pool("MaxPool", 1),
    "max_pool3_stride2": _pool("MaxPool", 2),
    "pad": _pad(),
    "enlarge": _pad(),
    "conv1": _convolution(1),
    "conv3": _convolution(3),
    "conv3_valid": _convolution(3, padded=False),
    "conv1_stride2": _convolution(1, 2),
    "conv3_stride2": _convolution(3, 2),
    "conv1_group2": _convolution(1, group=2),
    "conv3_group2": _convolution(3, group=2),
    **_along("columns", -1),
    **_along("rows", -2),
    **_along("channels", -3),
    **_along("batch", -4),
}
