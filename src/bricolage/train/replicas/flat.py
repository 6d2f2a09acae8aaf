"""All trained weights of a module as one vector, and their gradients as another: what replicas exchange."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class Flat:
    """A module whose trained parameters, and their gradients, are views of two vectors."""

    def __init__(self, module: torch.nn.Module) -> None:
        """Lays them side by side, in the order in which the module has them.

        Raises ValueError where nothing is trained, or parameters are of several types.
        """
        import torch

        self.module = module
        self.parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        if not self.parameters:
            raise ValueError("nothing is trained")
        if len({parameter.dtype for parameter in self.parameters}) > 1:
            raise ValueError("its trained parameters are of several types")
        self.sizes = [parameter.numel() for parameter in self.parameters]
        self.weights = torch.cat([parameter.detach().reshape(-1) for parameter in self.parameters])
        self.gradient = torch.zeros_like(self.weights)
        for target, weight, gradient in zip(
            self.parameters, self.parts(self.weights), self.parts(self.gradient), strict=True
        ):
            target.data = weight.view_as(target)
            target.grad = gradient.view_as(target)

    def __len__(self) -> int:
        return sum(self.sizes)

    def parts(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """The pieces of a vector that belong to each parameter."""
        return list(vector.split(self.sizes))

    def shaped(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """The same, in the parameters' shapes."""
        return [piece.view_as(parameter) for piece, parameter in zip(self.parts(vector), self.parameters, strict=True)]

    def shards(self, count: int) -> list[tuple[int, int]]:
        """Begin and end of parts of the vector, whole parameters in each, about equally long; as many as there can be."""
        bounds, total, taken = [0], len(self), 0
        for size in self.sizes:
            taken += size
            if taken - bounds[-1] >= total / count or taken == total:
                bounds.append(taken)
        return list(pairwise(bounds))
