"""A training step as it was traced from PyTorch: its graph, and how its operators are called. Importing this imports no PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bricolage.work.training_step import StepGraph

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class TensorArgument:
    """What an operator is given in the place of a tensor."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    bytes: int


@dataclass(frozen=True)
class OperatorCall:
    """How an operator is called: tensors in its arguments are `TensorArgument`s."""

    function: torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True)
class TracedStep(StepGraph):
    """A training step whose operators can be called again, each alone."""

    calls: Mapping[str, OperatorCall] = field(repr=False)
    """By signature."""
