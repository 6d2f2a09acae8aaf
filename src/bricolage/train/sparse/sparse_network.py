"""A sparse network whose rows are divided between processes, forward and back: what is sent is what the partition counts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bricolage.base.torch_library import load_torch
from bricolage.search.sharding.row_partition import Parts
from bricolage.train.run.rank import Rank
from bricolage.train.sparse.local_program import LocalExchange, LocalProgram, Route
from bricolage.train.sparse.weighted_layers import Activation, Reals, WeightedLayer

_AT_ONCE = 1 << 16
"""Non-zeros whose gradients are summed at once."""


@dataclass
class Sent:
    """What a process sent, counted where it leaves."""

    messages: int = 0
    size_bytes: int = 0
    packed_bytes: int = 0
    """Of these, what was copied together before it left."""
    forward_s: float = 0.0
    """Seconds in exchanges of a pass forward, copies and waiting for others included."""


@dataclass(frozen=True, eq=False)
class StepValues:
    """What a pass gives."""

    outputs: Reals
    """[rows, samples]."""
    input_gradient: Reals | None = None
    """[inputs, samples]; None where nothing went back."""
    weight_gradients: tuple[Reals, ...] = ()
    """Of each layer, one for each non-zero."""


@dataclass(frozen=True)
class SparseProcess:
    """One process's program, and how it reaches the others."""

    program: LocalProgram
    rank: Rank
    packs: bool = True
    """Whether entries that do not lie together are copied into one message; otherwise each run is a message."""
    sent: Sent = field(default_factory=Sent)

    def forward(self, inputs: Reals) -> list[list[Reals]]:
        """By exchange what lies in memory before each of its layers, then the last one's outputs.

        Args:
            inputs: of this process, as they lie in memory, [inputs, samples].
        """
        states: list[list[Reals]] = []
        now = inputs
        for exchange in self.program.exchanges:
            state = np.empty((exchange.size, inputs.shape[1]), inputs.dtype)
            state[: exchange.own] = now
            begun = time.perf_counter()
            self._send_forward(exchange, state)
            self.sent.forward_s += time.perf_counter() - begun
            values = [state]
            for layer in exchange.layers:
                values.append(apply_layer(layer.weights, layer.bias, layer.activation, values[-1]))
            states.append(values)
            now = values[-1]
        return states

    def backward(self, states: Sequence[Sequence[Reals]], gradient: Reals) -> StepValues:
        """Gradients of the inputs and of the weights. Each exchange has one layer.

        Args:
            states: as `forward` gives them.
            gradient: of this process's outputs, [rows, samples].
        """
        weight_gradients, back = [], gradient
        for exchange, (state, outputs) in zip(self.program.exchanges[::-1], states[::-1], strict=True):
            (layer,) = exchange.layers
            back = back * differentiate(layer.activation, outputs)
            rows = np.repeat(np.arange(len(back)), np.diff(layer.weights.indptr))
            weight_gradients.append(sum_pairs(rows, layer.weights.indices, back, state))
            partial = layer.weights.T @ back
            self._send_back(exchange, partial)
            back = partial[: exchange.own]
        return StepValues(states[-1][-1], back, tuple(weight_gradients[::-1]))

    def _send_forward(self, exchange: LocalExchange, state: Reals) -> None:
        """Own entries to those that need them, and theirs behind the own."""
        messages = [(route.peer, tag, part) for route in exchange.sends for tag, part in self._messages(route, state)]
        arriving = []
        for route in exchange.receives:
            slices = [route.span] if self.packs else [slice(*run) for run in route.runs]
            arriving += [(route.peer, tag, state[part]) for tag, part in enumerate(slices)]
        self._meet(messages, arriving)

    def _messages(self, route: Route, state: Reals) -> list[tuple[int, Reals]]:
        """What goes one way, numbered."""
        if self.packs and len(route.runs) > 1:
            packed = state[route.entries]
            self.sent.packed_bytes += packed.nbytes
            return [(0, packed)]
        return [(tag, state[first:last]) for tag, (first, last) in enumerate(route.runs)]

    def _send_back(self, exchange: LocalExchange, partial: Reals) -> None:
        """Sums of others' entries to their owners, and what comes to the own ones."""
        messages = [(route.peer, 0, partial[route.span]) for route in exchange.receives]
        waiting = [(route, np.empty((len(route.entries), partial.shape[1]), partial.dtype)) for route in exchange.sends]
        self._meet(messages, [(route.peer, 0, part) for route, part in waiting])
        for route, part in waiting:
            partial[route.entries] += part

    def _meet(self, messages: Sequence[tuple[int, int, Reals]], arriving: Sequence[tuple[int, int, Reals]]) -> None:
        """Sends and receives; (process, number, consecutive memory)."""
        if not messages and not arriving:
            return
        torch, dist = load_torch(), self.rank.dist
        works = [dist.irecv(torch.from_numpy(part), peer, tag=tag) for peer, tag, part in arriving]
        for peer, tag, part in messages:
            works.append(dist.isend(torch.from_numpy(part), peer, tag=tag))
            self.sent.messages += 1
            self.sent.size_bytes += part.nbytes
        for work in works:
            work.wait()


def apply_layer(weights: Reals, bias: Reals | None, activation: Activation, inputs: Reals) -> Reals:
    """One layer's outputs, [rows, samples]."""
    values: Reals = weights @ inputs
    if bias is not None:
        values += bias
    if activation == "relu":
        np.maximum(values, 0.0, out=values)
    elif activation == "tanh":
        np.tanh(values, out=values)
    elif activation == "sigmoid":
        from scipy.special import expit

        expit(values, out=values)
    return values


def differentiate(activation: Activation, outputs: Reals) -> Reals:
    """An activation's derivative, from its outputs."""
    if activation == "relu":
        return (outputs > 0).astype(outputs.dtype)
    if activation == "tanh":
        return 1.0 - outputs * outputs
    if activation == "sigmoid":
        return outputs * (1.0 - outputs)
    return np.ones_like(outputs)


def sum_pairs(rows: Parts, columns: Parts, back: Reals, inputs: Reals) -> Reals:
    """The gradient of each non-zero: that of its row by its input, summed over samples."""
    gradients = np.empty(len(rows), back.dtype)
    for begin in range(0, len(rows), _AT_ONCE):
        part = slice(begin, begin + _AT_ONCE)
        gradients[part] = np.einsum("ns,ns->n", back[rows[part]], inputs[columns[part]])
    return gradients


def run_undivided(layers: Sequence[WeightedLayer], inputs: Reals, gradient: Reals) -> StepValues:
    """A step in one process, in the type of `inputs`.

    Args:
        layers: the network.
        inputs: [inputs, samples].
        gradient: of the outputs, [rows, samples].
    """
    dtype, states = inputs.dtype, [inputs]
    for layer in layers:
        bias = None if layer.bias is None else layer.bias.astype(dtype)[:, None]
        states.append(apply_layer(layer.weights.astype(dtype), bias, layer.activation, states[-1]))
    weight_gradients, back = [], gradient
    for layer, before, outputs in zip(layers[::-1], states[-2::-1], states[:0:-1], strict=True):
        back = back * differentiate(layer.activation, outputs)
        rows, columns = layer.weights.tocoo().coords
        weight_gradients.append(sum_pairs(rows, columns, back, before))
        back = layer.weights.astype(dtype).T @ back
    return StepValues(states[-1], back, tuple(weight_gradients[::-1]))
