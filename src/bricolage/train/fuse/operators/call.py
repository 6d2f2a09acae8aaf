"""What the rules of the operator table speak: one operator's call for several lanes, and the ways to compute it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import torch

Result: TypeAlias = "torch.Tensor | Sequence[torch.Tensor]"
Compute: TypeAlias = Callable[..., Result]
"""From the tensors of a call, in the order of `Call.operands`, then its masks, to its results, stacked."""


@dataclass(frozen=True)
class Operand:
    """A tensor that a call reads."""

    place: int
    """Among the values of the graph."""
    stacked: bool
    """Whether it is [lanes, *shape], or one tensor [*shape] for all lanes."""
    shape: tuple[int, ...]
    dtype: torch.dtype
    order: tuple[int, ...] = ()
    """Dimensions of one lane's tensor as they lie in memory in training alone, from the outermost to the innermost."""

    @property
    def rank(self) -> int:
        """Of one lane's tensor."""
        return len(self.shape)


@dataclass(frozen=True)
class Mask:
    """Dropout's random factors, drawn lane by lane from each lane's own stream: 0, or 1 / (1 - rate)."""

    shape: tuple[int, ...]
    """Of one lane."""
    rates: tuple[float, ...]
    """By lane. A lane with rate 0 draws nothing, as PyTorch does."""
    order: tuple[int, ...] = ()
    """Dimensions from the outermost to the innermost in memory, which is the order that they are drawn in; as they stand if
    empty."""
    dtype: torch.dtype | None = None
    """PyTorch's default one if None."""


@dataclass(frozen=True)
class Call:
    """One operator's call."""

    name: str
    target: Callable[..., Any]
    args: tuple[Any, ...]
    """With `Operand` where tensors are."""
    keywords: Mapping[str, Any]
    lanes: int
    numbers: tuple[tuple[float, ...], ...] = ()
    """By lane: the constants that it may have of its own."""
    shape: tuple[int, ...] = ()
    """Of the (first) result of one lane."""

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Its tensors, from left to right."""
        return tuple(_operands((self.args, tuple(self.keywords.values()))))

    @property
    def stacked(self) -> bool:
        """Whether any of its tensors has lanes."""
        return any(operand.stacked for operand in self.operands)

    def filled(self, tensors: Sequence[torch.Tensor]) -> tuple[list[object], dict[str, object]]:
        """Its arguments with tensors in the places of the operands."""
        left = iter(tensors)
        args = [_fill_operands(argument, left) for argument in self.args]
        return args, {name: _fill_operands(argument, left) for name, argument in self.keywords.items()}


@dataclass(frozen=True)
class Joined:
    """How a call is computed for all lanes."""

    ways: Mapping[str, Compute]
    masks: tuple[Mask, ...] = ()
    plain: bool = False
    """Nothing in it needs measuring: the operator itself, on stacked tensors."""


Rule: TypeAlias = Callable[[Call], "Joined | None"]
"""How to compute a call; None where the rule does not cover it."""


@dataclass
class Table:
    """Rules by name of the operator."""

    rules: dict[str, Rule] = field(default_factory=dict)

    def rule(self, *names: str) -> Callable[[Rule], Rule]:
        """Registers a rule for operators."""

        def add(rule: Rule) -> Rule:
            for name in names:
                self.rules[name] = rule
            return rule

        return add


TABLE = Table()


def only(way: str, compute: Compute, *masks: Mask) -> Joined:
    """One way, which needs no measuring."""
    return Joined({way: compute}, masks, plain=True)


def stack(tensor: torch.Tensor, operand: Operand, lanes: int) -> torch.Tensor:
    """The tensor with its dimension of lanes: a view without a copy where it is shared."""
    return tensor if operand.stacked else tensor.unsqueeze(0).expand(lanes, *tensor.shape)


def align_tensor(tensor: torch.Tensor, operand: Operand, rank: int) -> torch.Tensor:
    """A stacked tensor as [lanes, 1, ..., 1, *shape], so that one lane's part broadcasts as it would alone; shared ones stay."""
    if not operand.stacked or operand.rank >= rank:
        return tensor
    return tensor.reshape(tensor.shape[0], *[1] * (rank - operand.rank), *operand.shape)


def batch_outside(tensor: torch.Tensor) -> bool:
    """Whether [lanes, batch, ...] lies in memory as [batch, lanes, ...]."""
    return bool(tensor.stride(1) > tensor.stride(0))


def apply_folded(tensor: torch.Tensor, compute: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Something done to each sample of [lanes, batch, ...] by folding both into one dimension, without a copy where memory allows
    it in either order."""
    lanes, batch = tensor.shape[:2]
    if batch_outside(tensor):
        done = compute(tensor.transpose(0, 1).flatten(0, 1))
        return done.view(batch, lanes, *done.shape[1:]).transpose(0, 1)
    done = compute(tensor.flatten(0, 1))
    return done.view(lanes, batch, *done.shape[1:])


def channels_joined(tensor: torch.Tensor) -> torch.Tensor:
    """[lanes, batch, channels, ...] as [batch, lanes · channels, ...]."""
    return tensor.transpose(0, 1).flatten(1, 2)


def channels_split(tensor: torch.Tensor, lanes: int) -> torch.Tensor:
    """The inverse of `channels_joined`, without a copy."""
    apart: torch.Tensor = tensor.unflatten(1, (lanes, -1))
    return apart.transpose(0, 1)


def _operands(value: object) -> Iterator[Operand]:
    if isinstance(value, Operand):
        yield value
    elif isinstance(value, list | tuple):
        for element in value:
            yield from _operands(element)


def _fill_operands(value: object, left: Iterator[torch.Tensor]) -> object:
    if isinstance(value, Operand):
        return next(left)
    if isinstance(value, list | tuple):
        return type(value)(_fill_operands(element, left) for element in value)
    return value
