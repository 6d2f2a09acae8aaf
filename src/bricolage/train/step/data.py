"""What is trained on, and what is held out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bricolage.errors import BadTrainingCode
from bricolage.train.step.spec import StepSpec
from bricolage.train.step.step import Tensors, call

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Samples:
    """Tensors whose first dimension counts samples."""

    inputs: Tensors
    targets: Tensors

    def __len__(self) -> int:
        return len(self.inputs[0])

    def rows(self, index: torch.Tensor) -> Samples:
        """These samples: for an index of shape [...], tensors of shape [..., *]."""
        return Samples(tuple(source[index] for source in self.inputs), tuple(target[index] for target in self.targets))

    @property
    def tensors(self) -> Tensors:
        """Inputs, then targets."""
        return (*self.inputs, *self.targets)


@dataclass(frozen=True)
class Data:
    """What lanes train on and are tested on. Without `train`, batches come from the training step's own function."""

    step: StepSpec
    train: Samples | None
    held_out: Samples | None


def read_data(step: StepSpec, place: str | None) -> Data:
    """Runs the function that is named as the data of a training step; without one, batches come from the step's own function.

    Raises:
        BadTrainingCode: it is not there, fails, or returns something else than a pair of samples and held-out samples (or None).
    """
    if place is None:
        return Data(step, None, None)
    data_pair = call(place, step.folder)
    if not isinstance(data_pair, tuple) or len(data_pair) != 2:
        raise BadTrainingCode(place=place, reason="it returns no pair of training data and held-out data (or None)")
    return Data(
        step, as_samples(data_pair[0], place), None if data_pair[1] is None else as_samples(data_pair[1], place)
    )


def as_samples(found: object, place: str) -> Samples:
    """A pair of inputs and targets as samples.

    Raises:
        BadTrainingCode: it is none.
    """
    import torch

    if not isinstance(found, tuple) or len(found) != 2:
        raise BadTrainingCode(place=place, reason="its data are no pair of inputs and targets")
    parts = [side if isinstance(side, tuple) else (side,) for side in found]
    if not all(part and all(isinstance(tensor, torch.Tensor) and tensor.ndim for tensor in part) for part in parts):
        raise BadTrainingCode(place=place, reason="its inputs and targets are not tensors or tuples of tensors")
    samples = Samples(*(tuple(tensor.detach() for tensor in part) for part in parts))
    if len({len(source) for source in (*samples.inputs, *samples.targets)}) != 1 or not len(samples):
        raise BadTrainingCode(place=place, reason="its inputs and targets are not equally many samples, at least one")
    return samples
