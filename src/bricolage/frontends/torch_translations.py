"""Operators of PyTorch that its exporter writes in a way that is no valid ONNX, or wrong, or not at all; written as they should be.

A translation takes what the operator takes (tensors as values of the graph, numbers as they are) and returns the values of its
results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Protocol, TypeAlias

import numpy as np
import onnx_ir as ir

Tensor: TypeAlias = ir.Value
_REDUCTIONS = {"sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min"}
"""PyTorch's words for what becomes of several values at one place, and ONNX's."""
_SUM, _MEAN, _MAX = range(3)
"""Modes of embedding bags."""


@cache
def translations() -> dict[Callable[..., object], Callable[..., object]]:
    """By operator, for `custom_translation_table` of `torch.onnx.export`. Operators that this version of PyTorch does not have are
    left out."""
    import torch

    table: dict[str, Callable[..., object]] = {
        "aten._embedding_bag.default": embedding_bag,
        "aten._embedding_bag_forward_only.default": embedding_bag,
        "aten.embedding_bag.padding_idx": embedding_bag,
        "aten.scatter.reduce": scatter_reduce,
        "aten.scatter.value_reduce": scatter_value_reduce,
        "aten.scatter_reduce.two": scatter_reduce_two,
        "aten.index_reduce.default": index_reduce,
        "aten.kthvalue.default": kthvalue,
        "aten.median.dim": median,
        "aten._cdist_forward.default": cdist,
        "aten.searchsorted.Tensor": searchsorted,
        "prims.prod.default": prod,
    }
    by_target: dict[Callable[..., object], Callable[..., object]] = {}
    for name, translation in table.items():
        target: object = torch.ops
        for part in name.split("."):
            target = getattr(target, part, None)
        if callable(target):
            by_target[target] = translation
    return by_target


def embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sums, means or maxima [bags, width] of rows of `weight` [rows, width], by `indices` [N] that are cut into bags at `offsets`.
    The other three results are for the gradient, which is never asked for: they are as many zeros as there are bags."""
    del scale_grad_by_freq, sparse
    op = _ops()
    if include_last_offset:
        offsets = op.Slice(offsets, [0], [-1], [0])
    count, minus = op.Shape(indices), op.Constant(value_ints=[-1])
    rows = op.Gather(weight, indices)
    if per_sample_weights is not None:
        rows = op.Mul(rows, op.Unsqueeze(per_sample_weights, minus))
    zero, unit = op.Constant(value_int=0), op.Constant(value_int=1)
    places = op.Unsqueeze(op.Range(zero, op.Squeeze(count), unit), minus)
    begun = op.Cast(op.LessOrEqual(op.Unsqueeze(offsets, [0]), places), to=ir.DataType.INT64)
    bag = op.Sub(op.ReduceSum(begun, [1], keepdims=0), unit)
    kept = op.CastLike(op.Expand(unit, count), weight)
    if padding_idx is not None and padding_idx >= 0:
        unpadded = op.Not(op.Equal(indices, op.Constant(value_int=padding_idx)))
        kept = op.CastLike(unpadded, weight)
        empty = op.CastLike(op.Constant(value_float=float("-inf") if mode == _MAX else 0.0), weight)
        rows = op.Where(op.Unsqueeze(unpadded, minus), rows, empty)
    bags, where = op.Shape(offsets), op.Unsqueeze(bag, minus)
    none = op.CastLike(op.Constant(value_float=0.0), weight)
    counts = op.ScatterND(op.Expand(none, bags), where, kept, reduction="add")
    shape = op.Concat(bags, op.Shape(weight, start=1), axis=0)
    if mode == _MAX:
        least = op.CastLike(op.Constant(value_float=float("-inf")), weight)
        most = op.ScatterND(op.Expand(least, shape), where, rows, reduction="max")
        bag_values = op.Where(op.Unsqueeze(op.Greater(counts, none), minus), most, none)
    else:
        bag_values = op.ScatterND(op.Expand(none, shape), where, rows, reduction="add")
        if mode == _MEAN:
            bag_values = op.Div(bag_values, op.Unsqueeze(op.Max(counts, op.CastLike(unit, weight)), minus))
    rest = op.Expand(zero, bags)
    return bag_values, rest, rest, rest


def scatter_reduce(self: Tensor, dim: int, index: Tensor, src: Tensor, *, reduce: str) -> Tensor:
    """What is in `self` and what `src` brings to places by `index`, added or multiplied."""
    return _ops().ScatterElements(self, index, src, axis=dim, reduction=_REDUCTIONS[reduce])


def scatter_value_reduce(self: Tensor, dim: int, index: Tensor, value: Tensor | float, *, reduce: str) -> Tensor:
    """The same with one number for `src`."""
    op = _ops()
    number = value if isinstance(value, ir.Value) else op.Constant(value_float=float(value))
    return scatter_reduce(self, dim, index, op.Expand(op.CastLike(number, self), op.Shape(index)), reduce=reduce)


def scatter_reduce_two(
    self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """The same for all reductions, and with `self` left out where anything is brought. The exporter makes no mean of a mean."""
    op = _ops()
    if self.shape is not None and not _rank(self):
        flat = op.Constant(value_ints=[1])
        given = (op.Reshape(operand, flat) for operand in (self, index, src))
        first, places, brought = given
        return op.Squeeze(scatter_reduce_two(first, 0, places, brought, reduce, include_self=include_self), [0])
    if not include_self:
        self = op.ScatterElements(self, index, op.Expand(_neutral(self, reduce), op.Shape(index)), axis=dim)
    if reduce != "mean":
        return op.ScatterElements(self, index, src, axis=dim, reduction=_REDUCTIONS[reduce])
    total = op.ScatterElements(self, index, src, axis=dim, reduction="add")
    unit, none = (op.CastLike(op.Constant(value_float=value), self) for value in (1.0, 0.0))
    counts = op.Expand(unit, op.Shape(self))
    ones = op.Expand(unit, op.Shape(index))
    if not include_self:
        counts = op.ScatterElements(counts, index, op.Expand(none, op.Shape(index)), axis=dim)
    counts = op.ScatterElements(counts, index, ones, axis=dim, reduction="add")
    return op.Div(total, counts)


def index_reduce(
    self: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """Slices of `source` along `dim` brought to places by `index` [N]."""
    op = _ops()
    rank = _rank(source)
    shape = op.Constant(value_ints=[-1 if axis == dim % rank else 1 for axis in range(rank)])
    places = op.Expand(op.Reshape(index, shape), op.Shape(source))
    return scatter_reduce_two(self, dim, places, source, reduce, include_self=include_self)


def kthvalue(self: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The k-th smallest value along a dimension, and where it is."""
    op = _ops()
    values, places = op.TopK(self, op.Constant(value_ints=[k]), axis=dim, largest=0, sorted=1)
    last = op.Constant(value_ints=[k - 1])
    gathered = tuple(op.Gather(tensor, last, axis=dim) for tensor in (values, places))
    return (gathered[0], gathered[1]) if keepdim else (op.Squeeze(gathered[0], [dim]), op.Squeeze(gathered[1], [dim]))


def median(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The lower one of the two in the middle, and where it is.

    Raises:
        ValueError: the dimension is open.
    """
    size = None if self.shape is None else self.shape[dim]
    if not isinstance(size, int):
        raise ValueError(f"a median along a dimension of open size {size}")
    return kthvalue(self, (size + 1) // 2, dim, keepdim)


def cdist(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None = None) -> Tensor:
    """Distances of rows, [..., M, N], by the norm of order p: for the Euclidean one of differences, not of products, whose rounding
    is larger."""
    del compute_mode
    op = _ops()
    apart = op.Sub(op.Unsqueeze(x1, [-2]), op.Unsqueeze(x2, [-3]))
    if p == 0.0:
        none = op.CastLike(op.Constant(value_float=0.0), apart)
        unequal = op.CastLike(op.Not(op.Equal(apart, none)), apart)
        return op.ReduceSum(unequal, [-1], keepdims=0)
    if p == 1.0:
        return op.ReduceL1(apart, [-1], keepdims=0)
    if p == 2.0:
        return op.ReduceL2(apart, [-1], keepdims=0)
    if p == float("inf"):
        return op.ReduceMax(op.Abs(apart), [-1], keepdims=0)
    power, root = (op.CastLike(op.Constant(value_float=value), apart) for value in (p, 1.0 / p))
    return op.Pow(op.ReduceSum(op.Pow(op.Abs(apart), power), [-1], keepdims=0), root)


def searchsorted(
    sorted_sequence: Tensor,
    self: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """How many of an ascending sequence, one for all or one for each row, lie below each value (`right`: or equal it)."""
    op = _ops()
    if sorter is not None:
        sorted_sequence = op.GatherElements(sorted_sequence, sorter, axis=-1)
    sequence = op.Unsqueeze(sorted_sequence, [-2]) if _rank(sorted_sequence) > 1 else sorted_sequence
    value = op.Unsqueeze(self, [-1])
    before = op.LessOrEqual(sequence, value) if right or side == "right" else op.Less(sequence, value)
    counted = op.ReduceSum(op.Cast(before, to=ir.DataType.INT64), [-1], keepdims=0)
    return op.Cast(counted, to=ir.DataType.INT32) if out_int32 else counted


def prod(inp: Tensor, dims: Sequence[int] | None, *, output_dtype: int | None = None) -> Tensor:
    """The product along dimensions; of everything where there are none."""
    op = _ops()
    product = op.ReduceProd(inp, keepdims=0) if dims is None else op.ReduceProd(inp, list(dims), keepdims=0)
    return product if output_dtype is None else op.Cast(product, to=output_dtype)


def _rank(value: Tensor) -> int:
    assert value.shape is not None, "the exporter knows the rank of every value"
    return len(value.shape)


def _neutral(like: Tensor, reduce: str) -> Tensor:
    """What does not change a reduction."""
    op, kind = _ops(), like.dtype
    if reduce in ("amax", "amin") and kind is not None and not kind.is_floating_point():
        limits = np.iinfo(kind.numpy())
        whole = int(limits.min if reduce == "amax" else limits.max)
        return op.CastLike(op.Constant(value_int=whole), like)
    value = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "amax": float("-inf"), "amin": float("inf")}[reduce]
    return op.CastLike(op.Constant(value_float=value), like)


class _Operators(Protocol):
    """ONNX's operators, as functions that add to the graph that is being written."""

    def __getattr__(self, name: str) -> Callable[..., Tensor]: ...

    def TopK(self, *given: object, **named: object) -> tuple[Tensor, Tensor]: ...


def _ops() -> _Operators:
    import onnxscript

    ops: _Operators = onnxscript.opset18
    return ops
