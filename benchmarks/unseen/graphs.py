"""Networks of PyTorch Geometric, built without trained weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.unseen.libraries import library


def graph_attention(width: int, classes: int) -> Any:
    """GAT with the sizes of its paper: two layers, eight heads of eight channels. Each node is among its own edges in the input."""
    models = library("torch_geometric.nn.models")
    return models.GAT(width, 64, 2, classes, v2=False, heads=8, act="elu", add_self_loops=False)


def graph_sampling(width: int, classes: int) -> Any:
    """GraphSAGE, three layers of 128 channels that take means of neighbours."""
    return library("torch_geometric.nn.models").GraphSAGE(width, 128, 3, classes)


class _Distances(nn.Module):
    """Every pair of atoms of a molecule, and its distance."""

    pairs: Tensor

    def __init__(self, pairs: Tensor) -> None:
        super().__init__()
        self.register_buffer("pairs", pairs)

    def forward(self, positions: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        first, second = self.pairs[0], self.pairs[1]
        return self.pairs, (positions[first] - positions[second]).square().sum(-1).sqrt()


class _Sum(nn.Module):
    """Over the atoms of one molecule; the library's own sum asks at run time how many molecules there are."""

    def forward(self, energies: Tensor, _: Tensor, dim: int) -> Tensor:
        return energies.sum(dim, keepdim=True)


class _Molecule(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.model.readout = _Sum()

    def forward(self, atoms: Tensor, positions: Tensor) -> Tensor:
        energy: Tensor = self.model(atoms, positions)
        return energy


def molecule(count: int) -> Any:
    """SchNet: kinds of atoms (count,) and positions (count, 3) to an energy. All atoms are neighbours."""
    models = library("torch_geometric.nn.models")
    return _Molecule(models.SchNet(interaction_graph=_Distances((1 - torch.eye(count)).nonzero().T.contiguous())))
