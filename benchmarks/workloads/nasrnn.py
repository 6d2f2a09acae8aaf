"""The recurrent cell found by neural architecture search, unrolled.

Zoph & Le, "Neural Architecture Search with Reinforcement Learning", ICLR 2017, figure 8: eight products of the input and
eight of the hidden state, joined pairwise by a tree of functions. TASO (SOSP 2019) measures five steps of 512 units.
"""

from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.workloads.calibrate import calibrated, zero_mean
from benchmarks.workloads.inputs import normal

UNITS = 512
STEPS = 5
_GATES = 8


class Cell(nn.Module):
    """One step: input, hidden state and memory (batch, units) to the new hidden state and memory."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.of_input = nn.ModuleList(zero_mean(nn.Linear(units, units)) for _ in range(_GATES))
        self.of_hidden = nn.ModuleList(zero_mean(nn.Linear(units, units, bias=False)) for _ in range(_GATES))

    def forward(self, x: Tensor, hidden: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        pairs = list(zip(self.of_input, self.of_hidden, strict=True))
        gate = [
            a(x) * b(hidden) if index == 3 else a(x) + b(hidden) for index, (a, b) in enumerate(pairs)
        ]  # the fourth multiplies
        first = torch.tanh(torch.sigmoid(gate[0]) * torch.relu(gate[1]))
        second = torch.tanh(torch.sigmoid(gate[2]) + torch.relu(gate[3]))
        third = torch.tanh(torch.tanh(gate[4]) * torch.sigmoid(gate[5]))
        fourth = torch.sigmoid(torch.tanh(gate[6]) + torch.sigmoid(gate[7]))
        new = torch.tanh(first + memory) * second
        return torch.tanh(new * torch.tanh(third + fourth)), new


class Network(nn.Module):
    """The cell over a sequence (steps, batch, units), from a given state; answers the last hidden state."""

    def __init__(self, units: int = UNITS) -> None:
        super().__init__()
        self.cell = Cell(units)

    def forward(self, sequence: Tensor, hidden: Tensor, memory: Tensor) -> Tensor:
        for step in range(sequence.shape[0]):
            hidden, memory = self.cell(sequence[step], hidden, memory)
        return hidden


def nasrnn() -> Any:
    """Five steps of 512 units at batch 1."""
    batch = [((STEPS, 8, UNITS), 1), ((8, UNITS), 2), ((8, UNITS), 3)]
    return calibrated(Network, tuple(torch.from_numpy(normal(shape, seed=1_000_000 + seed)) for shape, seed in batch))
