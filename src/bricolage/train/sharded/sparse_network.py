"""A sparse network whose rows are divided between processes, forward and back: what is sent is what the partition counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bricolage.search.sharding.row_partition import Parts, SparseLayer, routes
from bricolage.train.run.rank import Rank

if TYPE_CHECKING:
    import torch


@dataclass
class SparseRun:
    """What one process has after a step."""

    outputs: torch.Tensor
    """[rows, samples]; rows of others are zero."""
    input_gradient: torch.Tensor
    """[inputs, samples]; inputs of others are zero."""
    weight_gradients: list[torch.Tensor]
    """Of each layer, [rows, inputs] where its weights are not zero and the row is its own; dense."""
    sent: int
    """Numbers that this process sent, forward and back."""


def run_sparse(
    layers: Sequence[SparseLayer],
    weights: Sequence[torch.Tensor],
    parts: Sequence[Parts],
    owners: Parts,
    inputs: torch.Tensor,
    gradient: torch.Tensor,
    rank: Rank,
) -> SparseRun:
    """One forward and backward pass with ReLU behind each layer, over the processes of a group.

    Args:
        layers: where weights are not zero.
        weights: of each layer, [rows, inputs], the same in each process; only own rows are read.
        parts: by layer the process of each row.
        owners: the process of each of the first layer's inputs.
        inputs: [inputs, samples]; only own ones are read.
        gradient: of the outputs, [rows, samples]; only own rows are read.
        rank: this process, whose group has met.
    """
    import torch

    owned = [owners, *parts]
    ways = [routes(layer, rows, before) for layer, rows, before in zip(layers, parts, owned, strict=False)]
    mine = [torch.from_numpy(ownership == rank.number).to(inputs.dtype)[:, None] for ownership in owned]
    sent, seen = 0, []
    own_weights = [weight * mask for weight, mask in zip(weights, mine[1:], strict=True)]
    now = inputs * mine[0]
    for weight, way, here in zip(own_weights, ways, mine[1:], strict=True):
        sent += _exchange(now, way, rank, add=False)
        seen.append(now)
        now = torch.relu(weight @ now) * here
    outputs, back, weight_gradients = now, gradient * mine[-1], []
    for number in reversed(range(len(layers))):
        back = back * ((own_weights[number] @ seen[number]) > 0)
        there = (own_weights[number] != 0).to(back.dtype)
        weight_gradients.append((back @ seen[number].T) * there)
        partial = own_weights[number].T @ back
        reversed_ways = {(target, source): indices for (source, target), indices in ways[number].items()}
        sent += _exchange(partial, reversed_ways, rank, add=True)
        back = partial * mine[number]
    return SparseRun(outputs, back, weight_gradients[::-1], sent)


def _exchange(values: torch.Tensor, ways: Mapping[tuple[int, int], Sequence[int]], rank: Rank, *, add: bool) -> int:
    """Sends rows of `values` along the ways, and puts those that come into it, or adds them. Returns how many numbers were sent."""
    import torch

    waiting, coming, sent = [], [], 0
    for (source, target), rows in ways.items():
        if source == rank.number:
            message = values[list(rows)].contiguous()
            waiting.append((rank.dist.isend(message, target), message))
            sent += message.numel()
        elif target == rank.number:
            message = torch.empty((len(rows), values.shape[1]), dtype=values.dtype)
            coming.append((rank.dist.irecv(message, source), message, list(rows)))
    for work, message, rows in coming:
        work.wait()
        if add:
            values[rows] += message
        else:
            values[rows] = message
    for work, _ in waiting:
        work.wait()
    return sent
