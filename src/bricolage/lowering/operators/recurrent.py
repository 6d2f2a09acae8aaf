# ruff: noqa: ARG001 -- the signature is the operator's schema: attributes that change nothing are named all the same
"""RNN, GRU and LSTM: one driver for directions, lengths and layouts, and one step function for each cell."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bricolage.errors import InvalidGraph
from bricolage.lowering.arrays import Arrays
from bricolage.lowering.common import Array, operator

Activation = Callable[[Array], Array]
Step = Callable[[Array, tuple[Array, ...]], tuple[Array, ...]]
"""One step of a cell: (input, state) -> new state, whose first part is the output."""

# name -> (default alpha, default beta); None where the function has no such number
_CONSTANTS: dict[str, tuple[float | None, float | None]] = {
    "affine": (1.0, 0.0),
    "elu": (1.0, None),
    "hardsigmoid": (0.2, 0.5),
    "leakyrelu": (0.01, None),
    "scaledtanh": (1.0, 1.0),
    "thresholdedrelu": (1.0, None),
}


def _activation(xp: Arrays, name: str, alpha: float, beta: float, x: Array) -> Array:
    if name == "sigmoid":
        return xp.sigmoid(x)
    if name == "tanh":
        return xp.lib.tanh(x)
    if name == "relu":
        return xp.maximum(x, 0)
    if name == "softsign":
        return x / (abs(x) + 1)
    if name == "softplus":
        return xp.softplus(x)
    if name == "affine":
        return x * alpha + beta
    if name == "elu":
        return xp.where(x < 0, xp.lib.expm1(xp.minimum(x, 0)) * alpha, x)
    if name == "hardsigmoid":
        return xp.minimum(xp.maximum(x * alpha + beta, 0), 1)
    if name == "leakyrelu":
        return xp.where(x < 0, x * alpha, x)
    if name == "scaledtanh":
        return xp.lib.tanh(x * beta) * alpha
    if name == "thresholdedrelu":
        return xp.where(x > alpha, x, 0)
    raise InvalidGraph(reason=f"unknown recurrent activation {name!r}")


def activations_of(
    xp: Arrays, names: Sequence[str], alphas: Sequence[float] | None, betas: Sequence[float] | None
) -> list[Activation]:
    """The functions in order; each function that has an alpha or a beta takes the next one that is given."""
    alpha_left: Iterator[float] = iter(alphas or ())
    beta_left: Iterator[float] = iter(betas or ())
    functions: list[Activation] = []
    for name in names:
        key = name.lower()
        alpha, beta = _CONSTANTS.get(key, (None, None))
        alpha = 0.0 if alpha is None else next(alpha_left, alpha)
        beta = 0.0 if beta is None else next(beta_left, beta)
        functions.append(functools.partial(_activation, xp, key, alpha, beta))
    return functions


def _clipped(xp: Arrays, x: Array, bound: float | None) -> Array:
    return x if bound is None else xp.maximum(xp.minimum(x, bound), -bound)


def _reverse(xp: Arrays, x: Array, lengths: Array | None) -> Array:
    """Reverse time (axis 0), for each batch entry only over its own length."""
    if lengths is None:
        return xp.flip(x, (0,))
    steps = xp.arange(0, x.shape[0], 1, lengths.dtype).reshape((-1, 1))
    source = xp.where(steps < lengths, lengths - 1 - steps, steps)
    return xp.take_along(x, xp.broadcast_to(source.reshape((x.shape[0], x.shape[1], 1)), x.shape), 0)


def _run_direction(
    xp: Arrays, x: Array, step: Step, state: tuple[Array, ...], lengths: Array | None, backwards: bool
) -> tuple[Array, tuple[Array, ...]]:
    length = x.shape[0]
    if backwards:
        x = _reverse(xp, x, lengths)

    def advance(carry: tuple[Array, ...], inputs: tuple[Array, Array]) -> tuple[tuple[Array, ...], Array]:
        value, time = inputs
        new = step(value, carry)
        if lengths is None:
            return new, new[0]
        alive = (time < lengths).reshape((-1, 1))
        kept = tuple(xp.where(alive, n, old) for n, old in zip(new, carry, strict=True))
        return kept, xp.where(alive, new[0], 0)

    times = xp.arange(0, length, 1, xp.dtype(7) if lengths is None else lengths.dtype)
    state, ys = xp.scan(advance, state, (x, times), length)
    return (_reverse(xp, ys, lengths) if backwards else ys), state


def run(
    xp: Arrays,
    x: Array,
    make_step: Callable[[int], Step],
    initial: Sequence[Array | None],
    hidden: int,
    lengths: Array | None,
    direction: str,
    layout: int,
) -> tuple[Array, ...]:
    """All directions of a recurrent operator: (Y, Y_h, ...) in the wanted layout."""
    x = xp.transpose(x, (1, 0, 2)) if layout else x
    batch = x.shape[1]
    outputs, finals = [], []
    for d, backwards in enumerate({"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[direction]):
        state = tuple(
            xp.full((batch, hidden), 0, x.dtype, x) if given is None else given[:, d] if layout else given[d]
            for given in initial
        )
        ys, final = _run_direction(xp, x, make_step(d), state, lengths, backwards)
        outputs.append(ys)
        finals.append(final)
    y = xp.stack(outputs, 1)
    last = [xp.stack([f[i] for f in finals], 1 if layout else 0) for i in range(len(initial))]
    return (xp.transpose(y, (2, 0, 1, 3)) if layout else y, *last)


def _bias(b: Array | None, d: int, gates: int, hidden: int) -> tuple[Any, Any]:
    """Input bias and recurrence bias of direction `d`."""
    return (0, 0) if b is None else (b[d][: gates * hidden], b[d][gates * hidden :])


@operator("RNN", since=7)
def rnn(
    xp: Arrays,
    x: Array,
    w: Array,
    r: Array,
    b: Array = None,
    lengths: Array = None,
    initial_h: Array = None,
    *,
    activation_alpha: tuple[float, ...] | None = None,
    activation_beta: tuple[float, ...] | None = None,
    activations: tuple[str, ...] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
) -> Any:
    hidden = r.shape[2]
    names = activations or ("Tanh", "Tanh")
    functions = activations_of(xp, names, activation_alpha, activation_beta)

    def make_step(d: int) -> Step:
        wt, rt = xp.transpose(w[d], (1, 0)), xp.transpose(r[d], (1, 0))
        wb, rb = _bias(b, d, 1, hidden)

        def step(value: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
            total = xp.matmul(value, wt) + xp.matmul(state[0], rt) + wb + rb
            return (functions[d](_clipped(xp, total, clip)),)

        return step

    return run(xp, x, make_step, (initial_h,), hidden, lengths, direction, layout)


@operator("GRU", since=7)
def gru(
    xp: Arrays,
    x: Array,
    w: Array,
    r: Array,
    b: Array = None,
    lengths: Array = None,
    initial_h: Array = None,
    *,
    activation_alpha: tuple[float, ...] | None = None,
    activation_beta: tuple[float, ...] | None = None,
    activations: tuple[str, ...] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    linear_before_reset: int = 0,
) -> Any:
    """Gates in the order z (update), r (reset), h (candidate)."""
    hidden = r.shape[2]
    names = activations or ("Sigmoid", "Tanh") * 2
    functions = activations_of(xp, names, activation_alpha, activation_beta)

    def make_step(d: int) -> Step:
        gate, candidate = functions[2 * d : 2 * d + 2]
        wt, rt = xp.transpose(w[d], (1, 0)), xp.transpose(r[d], (1, 0))
        wb, rb = _bias(b, d, 3, hidden)
        rb_gates, rb_candidate = (0, 0) if b is None else (rb[: 2 * hidden], rb[2 * hidden :])

        def step(value: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
            (h,) = state
            given = xp.matmul(value, wt) + wb
            gates = given[:, : 2 * hidden] + xp.matmul(h, rt[:, : 2 * hidden]) + rb_gates
            z, reset = (gate(_clipped(xp, g, clip)) for g in (gates[:, :hidden], gates[:, hidden:]))
            if linear_before_reset:
                recurrent = reset * (xp.matmul(h, rt[:, 2 * hidden :]) + rb_candidate)
            else:
                recurrent = xp.matmul(reset * h, rt[:, 2 * hidden :]) + rb_candidate
            new = candidate(_clipped(xp, given[:, 2 * hidden :] + recurrent, clip))
            return ((1 - z) * new + z * h,)

        return step

    return run(xp, x, make_step, (initial_h,), hidden, lengths, direction, layout)


@operator("LSTM", since=7)
def lstm(
    xp: Arrays,
    x: Array,
    w: Array,
    r: Array,
    b: Array = None,
    lengths: Array = None,
    initial_h: Array = None,
    initial_c: Array = None,
    peepholes: Array = None,
    *,
    activation_alpha: tuple[float, ...] | None = None,
    activation_beta: tuple[float, ...] | None = None,
    activations: tuple[str, ...] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
    layout: int = 0,
) -> Any:
    """Gates in the order i (input), o (output), f (forget), c (cell); peepholes in the order i, o, f."""
    hidden = r.shape[2]
    names = activations or ("Sigmoid", "Tanh", "Tanh") * 2
    functions = activations_of(xp, names, activation_alpha, activation_beta)

    def make_step(d: int) -> Step:
        gate, cell, out = functions[3 * d : 3 * d + 3]
        wt, rt = xp.transpose(w[d], (1, 0)), xp.transpose(r[d], (1, 0))
        wb, rb = _bias(b, d, 4, hidden)
        p = [0, 0, 0] if peepholes is None else [peepholes[d][i * hidden : (i + 1) * hidden] for i in range(3)]

        def step(value: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
            h, c = state
            gates = xp.matmul(value, wt) + xp.matmul(h, rt) + wb + rb
            i, o, f, candidate = (gates[:, n * hidden : (n + 1) * hidden] for n in range(4))
            i = gate(_clipped(xp, i + p[0] * c, clip))
            f = 1 - i if input_forget else gate(_clipped(xp, f + p[2] * c, clip))
            new_c = f * c + i * cell(_clipped(xp, candidate, clip))
            return gate(_clipped(xp, o + p[1] * new_c, clip)) * out(new_c), new_c

        return step

    return run(xp, x, make_step, (initial_h, initial_c), hidden, lengths, direction, layout)
