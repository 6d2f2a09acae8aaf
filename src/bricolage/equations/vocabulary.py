"""The operators of which terms are made: each with its shapes and its meaning on arrays.

They are strict: an addition wants equal shapes, a matrix product equal leading axes. Whether a term is well-typed is then a
matter of unification alone, and so is the question where an equation of two terms makes sense.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from bricolage.equations.number_domains import Array, TermArithmetic
from bricolage.equations.term_shapes import Bound, Shape, matches_ground, substitute

Meaning: TypeAlias = Callable[[TermArithmetic, Mapping[str, int], tuple[Array, ...]], Array]
"""Arithmetic, sizes of the names in the operator's shapes, arrays [samples..., *shape] → array [samples..., *shape]."""


@dataclass(frozen=True)
class TermOperator:
    """An operator with one output. Those that are outputs of one ONNX operator have one `node`."""

    name: str
    inputs: tuple[Shape, ...]
    output: Shape
    meaning: Meaning
    commutative: bool = False
    node: str = ""

    def shape(self, *given: Shape) -> Shape | None:
        """Shape of the result; None where the operator does not accept the shapes."""
        bound = self.bind(*given)
        return None if bound is None else substitute(self.output, bound)

    def bind(self, *given: Shape) -> Bound | None:
        """The meaning of the names in the operator's shapes."""
        bound: Bound = {}
        if len(given) == len(self.inputs) and all(
            matches_ground(p, g, bound) for p, g in zip(self.inputs, given, strict=True)
        ):
            return bound
        return None


_ANY: Shape = ("...",)


def _function(name: str) -> TermOperator:
    return TermOperator(name, (_ANY,), _ANY, lambda xp, _, a: xp.function(name, a[0]))


def _scale_operand(xp: TermArithmetic, _: Mapping[str, int], a: tuple[Array, ...]) -> Array:
    x, factor = a
    return xp.multiply(x, factor.reshape((*factor.shape, *[1] * (x.ndim - factor.ndim))))


def _along(axis: int, rank: int | None, size: str | tuple[str, str, str]) -> Shape:
    """Shape with `size` at an axis counted from the end: of any rank, or of one."""
    before = ["..."] if rank is None else [f"d{i}" for i in range(rank + axis)]
    return (*before, size, *(f"e{i}" for i in range(-axis - 1, 0, -1)))


def _movements(name: str, axis: int, rank: int | None) -> list[TermOperator]:
    """Concatenation, the two outputs of a split, and the two slices, along one axis."""

    def part(output: int) -> Meaning:
        def take(_: TermArithmetic, sizes: Mapping[str, int], a: tuple[Array, ...]) -> Array:
            where = np.arange(sizes["a"]) if output == 0 else np.arange(sizes["a"], sizes["a"] + sizes["b"])
            return np.take(a[0], where, axis)

        return take

    first, second, whole = (_along(axis, rank, size) for size in ("a", "b", ("+", "a", "b")))
    movements = [TermOperator(f"concat_{name}", (first, second), whole, lambda *given: np.concatenate(given[-1], axis))]
    for kind in ("split", "slice"):
        for output, shape in enumerate((first, second)):
            node = f"split_{name}" if kind == "split" else ""
            movements.append(TermOperator(f"{kind}_{name}_{output}", (whole,), shape, part(output), node=node))
    return movements


def _windows(x: Array, kernel: int, stride: int) -> Array:
    """[..., h, w] → [..., places down, places across, kernel²]."""
    windows = np.lib.stride_tricks.sliding_window_view(x, (kernel, kernel), axis=(-2, -1))[
        ..., ::stride, ::stride, :, :
    ]
    return windows.reshape(*windows.shape[:-2], kernel * kernel)


def _pad_borders(x: Array, value: float = 0) -> Array:
    return np.pad(x, [(0, 0)] * (x.ndim - 2) + [(1, 1)] * 2, constant_values=value)


def _convolve_windows(xp: TermArithmetic, x: Array, w: Array, stride: int) -> Array:
    kernel = w.shape[-1]
    windows = _windows(x, kernel, stride)  # [..., n, c, h, w, taps]
    *_, n, c, h, width, taps = windows.shape
    rows = np.moveaxis(windows, -4, -2).reshape(*windows.shape[:-5], n, h * width, c * taps)
    columns = w.reshape(*w.shape[:-4], 1, w.shape[-4], c * taps)
    product = xp.matmul(columns, np.swapaxes(rows, -1, -2))
    return product.reshape(*product.shape[:-1], h, width)


def _convolution(kernel: int, stride: int = 1, groups: int = 1, valid: bool = False) -> TermOperator:
    def meaning(xp: TermArithmetic, _: Mapping[str, int], a: tuple[Array, ...]) -> Array:
        x, w = a
        x = x if kernel == 1 or valid else _pad_borders(x)
        parts = zip(np.split(x, groups, -3), np.split(w, groups, -4), strict=True)
        return np.concatenate([_convolve_windows(xp, part, weight, stride) for part, weight in parts], -3)

    inputs: str | tuple[str, str, str] = "c" if groups == 1 else ("+", "c", "c")
    outputs: str | tuple[str, str, str] = "o" if groups == 1 else ("+", "o", "o")
    before: Shape = (("pad", "h"), ("pad", "w")) if valid else ("h", "w")
    after: Shape = ("h", "w") if stride == 1 else (("half", "h"), ("half", "w"))
    name = f"conv{kernel}" + ("_stride2" if stride == 2 else "") + ("_group2" if groups == 2 else "")
    return TermOperator(
        name + ("_valid" if valid else ""),
        (("n", inputs, *before), (outputs, "c", kernel, kernel)),
        ("n", outputs, *after),
        meaning,
    )


def _pool(kind: str, stride: int) -> TermOperator:
    def meaning(xp: TermArithmetic, _: Mapping[str, int], a: tuple[Array, ...]) -> Array:
        if kind == "max":
            largest: Array = _windows(_pad_borders(a[0], xp.lowest), 3, stride).max(-1)
            return largest
        return xp.divide(xp.sum(_windows(_pad_borders(a[0]), 3, stride), (-1,))[..., 0], 9)

    after: Shape = ("h", "w") if stride == 1 else (("half", "h"), ("half", "w"))
    name = f"{kind}_pool3" + ("_stride2" if stride == 2 else "")
    return TermOperator(name, (("n", "c", "h", "w"),), ("n", "c", *after), meaning)


def _reduction(kind: str, name: str, axes: tuple[int, ...], before: Shape, after: Shape) -> TermOperator:
    def meaning(xp: TermArithmetic, _: Mapping[str, int], a: tuple[Array, ...]) -> Array:
        if kind == "max":
            largest: Array = a[0].max(axes, keepdims=True)
            return largest
        total = xp.sum(a[0], axes)
        return total if kind == "sum" else xp.divide(total, int(np.prod([a[0].shape[axis] for axis in axes])))

    return TermOperator(f"{kind}_{name}", (before,), after, meaning)


def _make_permutation(*permutation: int) -> Meaning:
    def meaning(_: TermArithmetic, __: Mapping[str, int], a: tuple[Array, ...]) -> Array:
        front = a[0].ndim - len(permutation)
        return np.transpose(a[0], (*range(front), *(front + axis for axis in permutation)))

    return meaning


def _make_reshape(down: bool) -> Meaning:
    def meaning(_: TermArithmetic, sizes: Mapping[str, int], a: tuple[Array, ...]) -> Array:
        (x,) = a
        if down:
            return x.reshape(*x.shape[:-3], sizes["b"] * sizes["m"], x.shape[-1])
        return x.reshape(*x.shape[:-2], sizes["b"], sizes["m"], x.shape[-1])

    return meaning


_MATRIX: Shape = ("...", "m", "k")
_IMAGE: Shape = ("n", "c", "h", "w")
_MERGED: Shape = (("*", "b", "m"), "k")

OPERATORS: tuple[TermOperator, ...] = (
    _function("relu"),
    _function("tanh"),
    _function("sigmoid"),
    TermOperator("add", (_ANY, _ANY), _ANY, lambda xp, _, a: xp.add(*a), commutative=True),
    TermOperator("scale", (_ANY, ()), _ANY, _scale_operand),
    TermOperator("mul", (_ANY, _ANY), _ANY, lambda xp, _, a: xp.multiply(*a), commutative=True),
    TermOperator("transpose", (_MATRIX,), ("...", "k", "m"), lambda *given: np.swapaxes(given[-1][0], -1, -2)),
    TermOperator("matmul", (_MATRIX, ("...", "k", "n")), ("...", "m", "n"), lambda xp, _, a: xp.matmul(*a)),
    _reduction("sum", "rows", (-2,), _MATRIX, ("...", 1, "k")),
    _reduction("sum", "columns", (-1,), _MATRIX, ("...", "m", 1)),
    _reduction("mean", "columns", (-1,), _MATRIX, ("...", "m", 1)),
    _reduction("max", "columns", (-1,), _MATRIX, ("...", "m", 1)),
    *_movements("columns", -1, None),
    *_movements("rows", -2, None),
    TermOperator("merge", (("b", "m", "k"),), _MERGED, _make_reshape(True)),
    TermOperator("unmerge", (_MERGED,), ("b", "m", "k"), _make_reshape(False)),
    TermOperator(
        "project",
        (("b", "m", "k"), ("k", "n")),
        ("b", "m", "n"),
        lambda xp, _, a: xp.matmul(a[0], a[1][..., None, :, :]),
    ),
    TermOperator("nhwc", (_IMAGE,), ("n", "h", "w", "c"), _make_permutation(0, 2, 3, 1)),
    TermOperator("nchw", (("n", "h", "w", "c"),), _IMAGE, _make_permutation(0, 3, 1, 2)),
    _pool("average", 1),
    _pool("max", 1),
    _pool("average", 2),
    _pool("max", 2),
    _reduction("mean", "spatial", (-2, -1), _IMAGE, ("n", "c", 1, 1)),
    TermOperator("pad", (_IMAGE,), ("n", "c", ("pad", "h"), ("pad", "w")), lambda *given: _pad_borders(given[-1][0])),
    TermOperator("enlarge", (("o", "c", 1, 1),), ("o", "c", 3, 3), lambda *given: _pad_borders(given[-1][0])),
    _convolution(1),
    _convolution(3),
    _convolution(3, valid=True),
    _convolution(1, 2),
    _convolution(3, 2),
    _convolution(1, groups=2),
    _convolution(3, groups=2),
    *_movements("channels", -3, 4),
    *_movements("batch", -4, 4),
)
"""Cheap ones first: of equal terms of one size, the first found represents them."""

BY_NAME: Mapping[str, TermOperator] = {operator.name: operator for operator in OPERATORS}
