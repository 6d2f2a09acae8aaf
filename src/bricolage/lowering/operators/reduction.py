"""Reductions, arg-reductions, running sums and products, softmax and its relatives."""

from __future__ import annotations

import math
from collections.abc import Callable

from bricolage.lowering.arrays import Arrays
from bricolage.lowering.common import Array, front_axis, normalise_axes, operator

Ints = tuple[int, ...]
Reducer = Callable[[Arrays, Array, Ints, bool], Array]

REDUCTIONS: dict[str, Reducer] = {
    "ReduceSum": lambda xp, x, axes, keep: xp.sum(x, axes, keep),
    "ReduceMean": lambda xp, x, axes, keep: xp.mean(x, axes, keep),
    "ReduceProd": lambda xp, x, axes, keep: xp.prod(x, axes, keep),
    "ReduceMax": lambda xp, x, axes, keep: xp.max(x, axes, keep),
    "ReduceMin": lambda xp, x, axes, keep: xp.min(x, axes, keep),
    "ReduceL1": lambda xp, x, axes, keep: xp.sum(abs(x), axes, keep),
    "ReduceL2": lambda xp, x, axes, keep: _root(xp, xp.sum(x * x, axes, keep)),
    "ReduceSumSquare": lambda xp, x, axes, keep: xp.sum(x * x, axes, keep),
    "ReduceLogSum": lambda xp, x, axes, keep: xp.lib.log(xp.sum(x, axes, keep)),
    "ReduceLogSumExp": lambda xp, x, axes, keep: xp.logsumexp(x, axes, keep),
}

_AXES_AS_INPUT_SINCE = {"ReduceSum": 13}


def _root(xp: Arrays, x: Array) -> Array:
    return xp.astype(xp.lib.sqrt(xp.widen(x)), x.dtype)


def _register() -> None:
    def by_input(reduce: Reducer) -> Callable[..., Array]:
        def run(
            xp: Arrays, x: Array, axes: Ints | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
        ) -> Array:
            if axes is None or len(axes) == 0:
                if noop_with_empty_axes:
                    return reduce(xp, x, (), bool(keepdims))
                axes = None
            return reduce(xp, x, normalise_axes(axes, x.ndim), bool(keepdims))

        return run

    def by_attribute(reduce: Reducer) -> Callable[..., Array]:
        def run(xp: Arrays, x: Array, *, axes: Ints | None = None, keepdims: int = 1) -> Array:
            return reduce(xp, x, normalise_axes(axes or None, x.ndim), bool(keepdims))

        return run

    for name, reduce in REDUCTIONS.items():
        since = _AXES_AS_INPUT_SINCE.get(name, 18)
        operator(name, since=since, host=("axes",))(by_input(reduce))
        operator(name, until=since - 1)(by_attribute(reduce))


_register()


@operator("ArgMax")
def arg_max(xp: Arrays, x: Array, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Array:
    axis = front_axis(x.ndim, axis)
    if not select_last_index:
        return xp.argmax(x, axis, bool(keepdims))
    return x.shape[axis] - 1 - xp.argmax(xp.flip(x, (axis,)), axis, bool(keepdims))


@operator("ArgMin")
def arg_min(xp: Arrays, x: Array, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Array:
    # Bit-wise "not" reverses the order of integers without overflow; -x does so for floating point.
    negated = ~x if xp.kind(x) in "iu" else -x
    return arg_max(xp, negated, axis=axis, keepdims=keepdims, select_last_index=select_last_index)


def _running(xp: Arrays, x: Array, axis: Array, exclusive: int, reverse: int, neutral: int) -> Array:
    axis = front_axis(x.ndim, int(axis[0] if isinstance(axis, tuple) else axis))
    if reverse:
        x = xp.flip(x, (axis,))
    y = xp.cumprod(x, axis) if neutral else xp.cumsum(x, axis)
    if exclusive:
        widths = [(1, 0) if i == axis else (0, 0) for i in range(x.ndim)]
        y = xp.slice_axis(xp.pad(y, widths, neutral), axis, 0, x.shape[axis], 1)
    return xp.flip(y, (axis,)) if reverse else y


@operator("CumSum", since=11, host=("axis",))
def cum_sum(xp: Arrays, x: Array, axis: Array, *, exclusive: int = 0, reverse: int = 0) -> Array:
    return _running(xp, x, axis, exclusive, reverse, 0)


@operator("CumProd", since=26, host=("axis",))
def cum_prod(xp: Arrays, x: Array, axis: Array, *, exclusive: int = 0, reverse: int = 0) -> Array:
    return _running(xp, x, axis, exclusive, reverse, 1)


@operator("Softmax", since=13)
def softmax(xp: Arrays, x: Array, *, axis: int = -1) -> Array:
    return xp.softmax(x, front_axis(x.ndim, axis))


@operator("LogSoftmax", since=13)
def log_softmax(xp: Arrays, x: Array, *, axis: int = -1) -> Array:
    return xp.log_softmax(x, front_axis(x.ndim, axis))


@operator("Hardmax", since=13)
def hardmax(xp: Arrays, x: Array, *, axis: int = -1) -> Array:
    axis = front_axis(x.ndim, axis)
    view = [1] * x.ndim
    view[axis] = x.shape[axis]
    first = xp.argmax(x, axis, True)
    classes = xp.arange(0, x.shape[axis], 1, first.dtype).reshape(tuple(view))
    return xp.astype(classes == first, x.dtype)


def _register_flattened() -> None:
    """Before opset 13 these saw the input as a matrix: the axes before `axis` and the axes from it on."""

    def flatten_input(function: Callable[..., Array]) -> Callable[..., Array]:
        def run(xp: Arrays, x: Array, *, axis: int = 1) -> Array:
            axis = front_axis(x.ndim, axis)
            matrix = x.reshape((math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))
            return function(xp, matrix, axis=-1).reshape(tuple(x.shape))

        return run

    for name, function in {"Softmax": softmax, "LogSoftmax": log_softmax, "Hardmax": hardmax}.items():
        operator(name, until=12)(flatten_input(function))


_register_flattened()
