"""Recurrent layers, with their cells written out: PyTorch has no batching rule for them.

LSTM: Hochreiter and Schmidhuber, 1997; GRU: Cho et al., 2014, with the reset gate behind the product, as cuDNN and PyTorch have it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from bricolage.train.fuse.operators.call import TABLE, Call, Joined, Mask, stack
from bricolage.train.fuse.operators.general import by_lane

if TYPE_CHECKING:
    import torch

Cell: TypeAlias = "Callable[[torch.Tensor, torch.Tensor, list[torch.Tensor]], list[torch.Tensor]]"
"""From the products with inputs and with states, and the states, to the new states; the first of them is the output."""
_GATES = {"aten::lstm.input": 4, "aten::gru.input": 3, "aten::rnn_tanh.input": 1, "aten::rnn_relu.input": 1}


@TABLE.rule(*_GATES)
def recurrent(call: Call) -> Joined | None:
    """Products with the inputs of all time steps at once, as one batched product; then, step by step, those with the states of all
    lanes. Between layers, dropout with each lane's own mask."""
    import torch

    x, hidden, params, biases, layers, rate, training, both, batch_first = call.args
    lstm = call.name == "aten::lstm.input"
    lanes, directions = call.lanes, 2 if both else 1
    tensors_each = 4 if biases else 2
    hx = hidden if lstm else [hidden]
    if x.rank != 3 or len(params) != tensors_each * layers * directions:  # projections have a fifth
        return None
    width = hx[0].shape[-1]
    length, batch = (x.shape[1], x.shape[0]) if batch_first else x.shape[:2]
    rates = tuple(number[0] for number in call.numbers) if call.numbers else (rate,) * lanes
    drops = training and any(rates) and layers > 1
    masks = (
        tuple(Mask((length, batch, width * directions), rates, dtype=x.dtype) for _ in range(layers - 1))
        if drops
        else ()
    )
    operands = call.operands
    cell = _CELLS[call.name]

    def written(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        lane_tensors = [stack(tensor, operand, lanes) for tensor, operand in zip(tensors, operands, strict=False)]
        factors = list(tensors[len(operands) :])
        value, states, weights = lane_tensors[0], lane_tensors[1 : 1 + len(hx)], lane_tensors[1 + len(hx) :]
        value = value.transpose(1, 2) if batch_first else value  # [lanes, length, batch, features]
        ends: list[list[torch.Tensor]] = [[] for _ in states]
        for layer in range(layers):
            parts = []
            for direction in range(directions):
                at = layer * directions + direction
                w = weights[at * tensors_each : (at + 1) * tensors_each]
                state = [stacked_state[:, at] for stacked_state in states]
                outputs, state = _run(cell, value, state, w, biases, direction == 1)
                parts.append(outputs)
                for end, final_state in zip(ends, state, strict=True):
                    end.append(final_state)
            value = parts[0] if directions == 1 else torch.cat(parts, -1)
            if drops and layer < layers - 1:
                value = value * factors[layer]
        value = value.transpose(1, 2) if batch_first else value
        return (value, *(torch.stack(end, 1) for end in ends))

    if drops:
        return Joined({"cell written out": written}, masks, plain=True)
    return Joined({"cell written out": written, "loop": by_lane(call)})


def _run(
    cell: Cell,
    value: torch.Tensor,
    state: list[torch.Tensor],
    weights: list[torch.Tensor],
    biases: bool,
    backwards: bool,
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """One layer in one direction over [lanes, length, batch, features]."""
    import torch

    lanes, length, batch, _ = value.shape
    w_in, w_state = weights[0], weights[1].mT
    rows = value.reshape(lanes, length * batch, -1)
    first = torch.baddbmm(weights[2].unsqueeze(1), rows, w_in.mT) if biases else torch.bmm(rows, w_in.mT)
    steps = first.view(lanes, length, batch, -1).unbind(1)
    bias = weights[3].unsqueeze(1) if biases else None
    outputs = []
    for step in reversed(steps) if backwards else steps:
        inner = torch.bmm(state[0], w_state) if bias is None else torch.baddbmm(bias, state[0], w_state)
        state = cell(step, inner, state)
        outputs.append(state[0])
    if backwards:
        outputs.reverse()
    return torch.stack(outputs, 1), state


def _lstm(outer: torch.Tensor, inner: torch.Tensor, state: list[torch.Tensor]) -> list[torch.Tensor]:
    import torch

    i, f, g, o = (outer + inner).chunk(4, -1)
    c = torch.addcmul(torch.sigmoid(f) * state[1], torch.sigmoid(i), torch.tanh(g))
    return [torch.sigmoid(o) * torch.tanh(c), c]


def _gru(outer: torch.Tensor, inner: torch.Tensor, state: list[torch.Tensor]) -> list[torch.Tensor]:
    import torch

    width = state[0].shape[-1]
    gates = torch.sigmoid(outer[..., : 2 * width] + inner[..., : 2 * width])
    r, z = gates.chunk(2, -1)
    n = torch.tanh(torch.addcmul(outer[..., 2 * width :], r, inner[..., 2 * width :]))
    return [torch.lerp(n, state[0], z)]


def _tanh(outer: torch.Tensor, inner: torch.Tensor, state: list[torch.Tensor]) -> list[torch.Tensor]:
    import torch

    del state
    return [torch.tanh(outer + inner)]


def _relu(outer: torch.Tensor, inner: torch.Tensor, state: list[torch.Tensor]) -> list[torch.Tensor]:
    import torch

    del state
    return [torch.relu(outer + inner)]


_CELLS = {
    "aten::lstm.input": _lstm,
    "aten::gru.input": _gru,
    "aten::rnn_tanh.input": _tanh,
    "aten::rnn_relu.input": _relu,
}
