# ruff: noqa: ARG001 -- every rule has the same signature
"""Arithmetic on `Sizes`: the few integer operators that exporters put between Shape and Reshape."""

from __future__ import annotations

import operator as py
from collections.abc import Callable, Sequence

import torch
from torch import fx

from bricolage.graph.extents import slice_bounds
from bricolage.lowering.common import Attributes, front_axis, to_host
from bricolage.lowering.torch.known_values import Const, Known, Size, Sizes

Call = Callable[..., fx.Node]
"""Writes a call of a Python function into the graph."""

INT64 = 7


def as_sizes(value: Known) -> Sizes | None:
    """A constant of integers with rank 0 or 1 as sizes."""
    if isinstance(value, Sizes):
        return value
    if isinstance(value, Const) and value.tensor.ndim <= 1 and not value.tensor.dtype.is_floating_point:
        listed = to_host(value.tensor.numpy())
        return Sizes(listed if value.tensor.ndim else (listed,), value.tensor.ndim)
    return None


def known_sizes(sizes: Sequence[Size]) -> tuple[int, ...] | None:
    """The sizes where all are known; None where one is a graph node."""
    numbers = tuple(size for size in sizes if isinstance(size, int))
    return numbers if len(numbers) == len(sizes) else None


def _combine(call: Call, function: Callable[..., Size], a: Size, b: Size) -> Size:
    return function(a, b) if isinstance(a, int) and isinstance(b, int) else call(function, (a, b))


def truncate_division(a: int | torch.SymInt, b: int | torch.SymInt) -> int | torch.SymInt:
    """Integer division towards zero; sizes are not negative, so it is floor division for them."""
    if isinstance(a, int) and isinstance(b, int):
        quotient = abs(a) // abs(b)
        return quotient if (a >= 0) == (b >= 0) else -quotient
    return a // b


def select_size(condition: bool, a: int, b: int) -> int:
    """a if the condition holds, otherwise b: Where on sizes."""
    return a if condition else b


_ARITHMETIC: dict[str, Callable[..., Size]] = {
    "Add": py.add,
    "Sub": py.sub,
    "Mul": py.mul,
    "Div": truncate_division,
    "Equal": py.eq,
    "Max": max,
    "Min": min,
}


def evaluate_sizes(call: Call, op_type: str, inputs: list[Sizes], attributes: Attributes) -> Sizes | None:
    """The result as sizes, None when the operator is not one of these."""
    if op_type in _ARITHMETIC and len(inputs) == 2:
        return _arithmetic(call, _ARITHMETIC[op_type], *inputs)
    rule = _RULES.get(op_type)
    return rule(call, inputs, attributes) if rule else None


def _arithmetic(call: Call, function: Callable[..., Size], a: Sizes, b: Sizes) -> Sizes | None:
    length = max(len(a.elements), len(b.elements))
    if len({len(a.elements), len(b.elements)} - {1, length}):
        return None
    left, right = (s.elements * (length // len(s.elements)) if s.elements else () for s in (a, b))
    return Sizes(tuple(_combine(call, function, x, y) for x, y in zip(left, right, strict=True)), max(a.rank, b.rank))


def _gather(call: Call, inputs: list[Sizes], attributes: Attributes) -> Sizes | None:
    data, index = inputs
    picked = known_sizes(index.elements)
    return None if picked is None else Sizes(tuple(data.elements[i] for i in picked), index.rank)


def _slice(call: Call, inputs: list[Sizes], attributes: Attributes) -> Sizes | None:
    data, *bounds = inputs
    limits = known_sizes(tuple(i for b in bounds for i in b.elements))
    if len(bounds) < 2 or limits is None or len(bounds[0].elements) != 1:
        return None
    step = limits[3] if len(bounds) > 3 else 1
    low, high = slice_bounds(limits[0], limits[1], step, len(data.elements))
    return Sizes(data.elements[low:high:step], 1)


def _concat(call: Call, inputs: list[Sizes], attributes: Attributes) -> Sizes | None:
    return Sizes(tuple(e for s in inputs for e in s.elements), 1)


def _reshape(call: Call, inputs: list[Sizes], attributes: Attributes) -> Sizes | None:
    data, shape = inputs
    if len(shape.elements) > 1 or (not shape.elements and len(data.elements) != 1):
        return None
    return Sizes(data.elements, len(shape.elements))


def _squeeze(call: Call, inputs: list[Sizes], attributes: Attributes) -> Sizes | None:
    return Sizes(inputs[0].elements, 0) if len(inputs[0].elements) == 1 else None


def _unsqueeze(call: Call, inputs: list[Sizes], attributes: Attributes) -> Sizes | None:
    axes = attributes.get("axes") or known_sizes(inputs[1].elements)
    if inputs[0].rank or axes is None or len(axes) != 1:
        return None
    front_axis(1, axes[0])
    return Sizes(inputs[0].elements, 1)


def _same(call: Call, inputs: list[Sizes], attributes: Attributes) -> Sizes | None:
    return inputs[0] if attributes.get("to", INT64) == INT64 else None


def _product(call: Call, inputs: list[Sizes], attributes: Attributes) -> Sizes | None:
    total: Size = 1
    for element in inputs[0].elements:
        total = _combine(call, py.mul, total, element)
    return Sizes((total,), 1 if attributes.get("keepdims", 1) and inputs[0].rank else 0)


def _where(call: Call, inputs: list[Sizes], attributes: Attributes) -> Sizes | None:
    length = max(len(s.elements) for s in inputs)
    if any(len(s.elements) not in (1, length) for s in inputs):
        return None
    columns = [s.elements * (length // len(s.elements)) for s in inputs]
    picked = tuple(
        (a if c else b) if isinstance(c, (bool, int)) else call(select_size, (c, a, b))
        for c, a, b in zip(*columns, strict=True)
    )
    return Sizes(picked, max(s.rank for s in inputs))


_RULES: dict[str, Callable[[Call, list[Sizes], Attributes], Sizes | None]] = {
    "Cast": _same,
    "Concat": _concat,
    "Gather": _gather,
    "Identity": _same,
    "ReduceProd": _product,
    "Reshape": _reshape,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Where": _where,
}
