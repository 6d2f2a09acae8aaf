"""What several lanes compute as one: a row of operators over tensors with an axis of lanes in front."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bricolage.train.fuse.operators.call import Mask

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Choice:
    """How an operator is computed for all lanes."""

    operator: str
    way: str
    ms: Mapping[str, float]
    """Forward and backward, by way; empty where nothing was measured."""


@dataclass
class FusedProgram:
    """Computes the losses of all lanes. `building.build_program` makes it. Tensors have places, by number."""

    lanes: int
    start: list[Any]
    """By place, what is known before a step begins."""
    parameters: list[tuple[int, str]]
    """Places of weights, with their names."""
    buffers: list[tuple[int, str]]
    batch: list[int]
    """Places of its tensors, in their order."""
    end: int = -1
    """The place of the losses."""
    steps: list[tuple[int, Callable[..., Any], tuple[int, ...]]] = field(default_factory=list)
    """Where a result goes, what computes it, and the places that it reads."""
    masks: list[Mask] = field(default_factory=list)
    mask_places: list[int] = field(default_factory=list)
    choices: dict[str, Choice] = field(default_factory=dict)
    """By node."""

    def __call__(
        self,
        parameters: Mapping[str, torch.Tensor],
        buffers: Mapping[str, torch.Tensor],
        batch: Sequence[torch.Tensor],
        masks: Sequence[torch.Tensor],
    ) -> torch.Tensor:
        """The losses, [lanes]. Running statistics in the buffers are updated."""
        values = self.start.copy()
        for place, name in self.parameters:
            values[place] = parameters[name]
        for place, name in self.buffers:
            values[place] = buffers[name]
        for place, tensor in zip(self.batch, batch, strict=True):
            values[place] = tensor
        for place, mask in zip(self.mask_places, masks, strict=True):
            values[place] = mask
        for place, compute, reads in self.steps:
            values[place] = compute(*[values[read] for read in reads])
        losses: torch.Tensor = values[self.end]
        return losses.reshape(self.lanes)

    @property
    def ways(self) -> dict[str, str]:
        """The way chosen for each node that had several."""
        return {name: choice.way for name, choice in self.choices.items() if choice.ms}
