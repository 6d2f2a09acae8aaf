"""RNN, GRU and LSTM: one driver for directions, lengths and layouts, and one step function for each cell."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TypedDict, Unpack

from bricolage.errors import InvalidGraph
from bricolage.lowering.arrays import Arrays
from bricolage.lowering.common import Array, Results, operator

Activation = Callable[[Array], Array]
Step = Callable[[Array, tuple[Array, ...]], tuple[Array, ...]]
"""One step of a cell: (what the input gives to its gates, state) -> new state, whose first part is the output."""

Product = Callable[[Array], Array]
"""Rows [count, inputs] to what they give to the gates, [count, gates]."""
Cell = tuple[Product, Step]
"""What the inputs give to the gates, and the step."""


class RecurrentAttributes(TypedDict, total=False):
    """ONNX's attributes of all recurrent operators."""

    activation_alpha: tuple[float, ...] | None
    activation_beta: tuple[float, ...] | None
    activations: tuple[str, ...] | None
    clip: float | None
    direction: str
    hidden_size: int | None
    """What the weights say as well."""
    _batch_parts: int
    """Not ONNX's: into how many parts the batch falls, each with steps of its own."""


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


def activations_of(xp: Arrays, default: Sequence[str], attributes: RecurrentAttributes) -> list[Activation]:
    """The functions in order; each function that has an alpha or a beta takes the next one that is given."""
    alpha_left: Iterator[float] = iter(attributes.get("activation_alpha") or ())
    beta_left: Iterator[float] = iter(attributes.get("activation_beta") or ())
    functions: list[Activation] = []
    for name in attributes.get("activations") or default:
        key = name.lower()
        alpha, beta = _CONSTANTS.get(key, (None, None))
        alpha = 0.0 if alpha is None else next(alpha_left, alpha)
        beta = 0.0 if beta is None else next(beta_left, beta)
        functions.append(functools.partial(_activation, xp, key, alpha, beta))
    return functions


def _clip_values(xp: Arrays, x: Array, bound: float | None) -> Array:
    return x if bound is None else xp.maximum(xp.minimum(x, bound), -bound)


def _reverse(xp: Arrays, x: Array, lengths: Array | None) -> Array:
    """Reverse time (axis 0), for each batch entry only over its own length."""
    if lengths is None:
        return xp.flip(x, (0,))
    steps = xp.arange(0, x.shape[0], 1, lengths.dtype).reshape((-1, 1))
    source = xp.where(steps < lengths, lengths - 1 - steps, steps)
    return xp.take_along(x, xp.broadcast_to(source.reshape((x.shape[0], x.shape[1], 1)), x.shape), 0)


def _run_direction(
    xp: Arrays, given: Array, step: Step, state: tuple[Array, ...], lengths: Array | None, backwards: bool
) -> tuple[Array, tuple[Array, ...]]:
    length = given.shape[0]
    if backwards:
        given = _reverse(xp, given, lengths)

    def advance(carry: tuple[Array, ...], inputs: tuple[Array, Array]) -> tuple[tuple[Array, ...], Array]:
        value, time = inputs
        new = step(value, carry)
        if lengths is None:
            return new, new[0]
        alive = (time < lengths).reshape((-1, 1))
        kept = tuple(xp.where(alive, n, old) for n, old in zip(new, carry, strict=True))
        return kept, xp.where(alive, new[0], 0)

    times = xp.arange(0, length, 1, xp.dtype(7) if lengths is None else lengths.dtype)
    state, ys = xp.scan(advance, state, (given, times), length)
    return (_reverse(xp, ys, lengths) if backwards else ys), state


def run(
    xp: Arrays,
    x: Array,
    make_cell: Callable[[int], Cell],
    initial: Sequence[Array | None],
    hidden: int,
    lengths: Array | None,
    direction: str,
    layout: int = 0,
    parts: int = 1,
) -> tuple[Array, ...]:
    """All directions of a recurrent operator: (Y, Y_h, ...) in the wanted layout. The products of all inputs of a direction
    are one, before its steps. The batch falls into `parts`, each with steps of its own."""
    x = xp.transpose(x, (1, 0, 2)) if layout else x
    length, batch, width = x.shape
    rows = x.reshape((length * batch, width))
    outputs, finals = [], []
    for d, backwards in enumerate({"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[direction]):
        product, step = make_cell(d)
        given = product(rows)
        given = given.reshape((length, batch, given.shape[1]))
        ends = []
        for part in _divide_batch(batch, parts):
            state = tuple(
                xp.full((part.stop - part.start, hidden), 0, x.dtype, x)
                if given_state is None
                else given_state[part, d]
                if layout
                else given_state[d, part]
                for given_state in initial
            )
            part_lengths = None if lengths is None else lengths[part]
            ends.append(_run_direction(xp, given[:, part], step, state, part_lengths, backwards))
        outputs.append(_join_parts(xp, [ys for ys, _ in ends], 1))
        finals.append([_join_parts(xp, states, 0) for states in zip(*(final for _, final in ends), strict=True)])
    y = xp.stack(outputs, 1)
    last = [xp.stack([f[i] for f in finals], 1 if layout else 0) for i in range(len(initial))]
    return (xp.transpose(y, (2, 0, 1, 3)) if layout else y, *last)


def _divide_batch(batch: int, parts: int) -> list[slice]:
    """The rows of each part; all of them where there is one."""
    return [slice(batch * i // parts, batch * (i + 1) // parts) for i in range(parts)]


def _join_parts(xp: Arrays, arrays: Sequence[Array], axis: int) -> Array:
    return arrays[0] if len(arrays) == 1 else xp.concat(arrays, axis)


def _weights(xp: Arrays, w: Array, r: Array, d: int) -> tuple[Array, Array]:
    """What inputs and states of direction `d` are multiplied by from the right."""
    return xp.transpose(w[d], (1, 0)), xp.transpose(r[d], (1, 0))


def _product(xp: Arrays, weight: Array, bias: Array | None) -> Product:
    """With weights [inputs, gates]."""

    def of(rows: Array) -> Array:
        product = xp.matmul(rows, weight)
        return product if bias is None else product + bias

    return of


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
    layout: int = 0,
    **attributes: Unpack[RecurrentAttributes],
) -> Results:
    hidden, clip = r.shape[2], attributes.get("clip")
    functions = activations_of(xp, ("Tanh", "Tanh"), attributes)

    def make_cell(d: int) -> Cell:
        wt, rt = _weights(xp, w, r, d)

        def step(given: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
            return (functions[d](_clip_values(xp, given + xp.matmul(state[0], rt), clip)),)

        return _product(xp, wt, None if b is None else b[d][:hidden] + b[d][hidden:]), step

    direction, parts = attributes.get("direction", "forward"), attributes.get("_batch_parts", 1)
    return run(xp, x, make_cell, (initial_h,), hidden, lengths, direction, layout=layout, parts=parts)


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
    layout: int = 0,
    linear_before_reset: int = 0,
    **attributes: Unpack[RecurrentAttributes],
) -> Results:
    """Gates in the order z (update), r (reset), h (candidate)."""
    hidden, clip = r.shape[2], attributes.get("clip")
    functions = activations_of(xp, ("Sigmoid", "Tanh") * 2, attributes)

    def make_cell(d: int) -> Cell:
        gate, candidate = functions[2 * d : 2 * d + 2]
        wt, rt = _weights(xp, w, r, d)
        bias = None if b is None else b[d][: 3 * hidden]
        recurrent_bias = 0 if b is None else b[d][3 * hidden :]

        def update(z: Array, new: Array, h: Array) -> tuple[Array, ...]:
            return ((1 - z) * new + z * h,)

        def reset_behind(given: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
            (h,) = state
            state_product = xp.matmul(h, rt) + recurrent_bias
            z, reset, new = (slice(n * hidden, (n + 1) * hidden) for n in range(3))
            z, reset = (gate(_clip_values(xp, given[:, part] + state_product[:, part], clip)) for part in (z, reset))
            return update(z, candidate(_clip_values(xp, given[:, new] + reset * state_product[:, new], clip)), h)

        if linear_before_reset:
            return _product(xp, wt, bias), reset_behind
        rt_gates, rt_candidate = rt[:, : 2 * hidden], rt[:, 2 * hidden :]

        def reset_before(given: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
            (h,) = state
            gates = gate(_clip_values(xp, given[:, : 2 * hidden] + xp.matmul(h, rt_gates), clip))
            z, reset = gates[:, :hidden], gates[:, hidden:]
            recurrent = xp.matmul(reset * h, rt_candidate)
            return update(z, candidate(_clip_values(xp, given[:, 2 * hidden :] + recurrent, clip)), h)

        return _product(xp, wt, None if bias is None else bias + recurrent_bias), reset_before

    direction, parts = attributes.get("direction", "forward"), attributes.get("_batch_parts", 1)
    return run(xp, x, make_cell, (initial_h,), hidden, lengths, direction, layout=layout, parts=parts)


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
    input_forget: int = 0,
    layout: int = 0,
    **attributes: Unpack[RecurrentAttributes],
) -> Results:
    def products(d: int) -> tuple[Product, Product]:
        wt, rt = _weights(xp, w, r, d)
        return _product(xp, wt, None if b is None else lstm_bias(b, d)), _product(xp, rt, None)

    make_cell = lstm_cells(xp, products, r.shape[2], peepholes, bool(input_forget), attributes)
    direction, parts = attributes.get("direction", "forward"), attributes.get("_batch_parts", 1)
    return run(xp, x, make_cell, (initial_h, initial_c), r.shape[2], lengths, direction, layout=layout, parts=parts)


def lstm_bias(b: Array, d: int) -> Array:
    """The two biases of direction `d` as one."""
    count = b.shape[1] // 2
    return b[d][:count] + b[d][count:]


def lstm_cells(
    xp: Arrays,
    products: Callable[[int], tuple[Product, Product]],
    hidden: int,
    peepholes: Array | None,
    input_forget: bool,
    attributes: RecurrentAttributes,
) -> Callable[[int], Cell]:
    """Cells by direction: gates in the order i (input), o (output), f (forget), c (cell); peepholes in the order i, o, f.
    `products`: what inputs and states of a direction give to the gates."""
    functions, clip = activations_of(xp, ("Sigmoid", "Tanh", "Tanh") * 2, attributes), attributes.get("clip")

    def make_cell(d: int) -> Cell:
        gate, cell, out = functions[3 * d : 3 * d + 3]
        into, again = products(d)

        def add_peephole(total: Array, number: int, c: Array) -> Array:
            """A gate's argument, with what it sees of the cell."""
            if peepholes is None:
                return _clip_values(xp, total, clip)
            return _clip_values(xp, total + peepholes[d][number * hidden : (number + 1) * hidden] * c, clip)

        def step(given: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
            h, c = state
            gates = given + again(h)
            i, o, f, candidate = (gates[:, n * hidden : (n + 1) * hidden] for n in range(4))
            i = gate(add_peephole(i, 0, c))
            f = 1 - i if input_forget else gate(add_peephole(f, 2, c))
            new_c = f * c + i * cell(_clip_values(xp, candidate, clip))
            return gate(add_peephole(o, 1, new_c)) * out(new_c), new_c

        return into, step

    return make_cell
