"""A module divided into a row of stages, each of which is given what the one before it hands on, and the batch.

PyTorch's tracer (`torch.distributed.pipelining.pipeline`) divides the module. Its runtime hands values from a stage to the next one
alone; so a value that a later stage reads is handed on by the stages between (a skip connection is routed). What the batch holds is
on every device, and is not sent.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, cast

import torch

from bricolage.errors import BadPlan
from bricolage.train.step.step import Tensors, TrainingStep, users_code

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

_Value: TypeAlias = "tuple[int, int]"
"""What a stage makes, by its number and the place among its outputs; what the batch holds has the stage -1."""
_BATCH = -1


class ModuleStage(torch.nn.Module):
    """One stage: `forward(*carried, **batch)`; the names of the batch are "input0", "input1" ..."""

    def __init__(
        self,
        inner: torch.nn.Module,
        own: int,
        takes: Sequence[_Value],
        before: Sequence[_Value],
        after: Sequence[_Value],
        *,
        last: bool,
    ) -> None:
        super().__init__()
        self.inner = inner
        self.recompute = False
        """Whether the backward pass computes it again, from what it was given."""
        self._last, self._own, self._takes, self._before, self._after = (
            last,
            own,
            tuple(takes),
            tuple(before),
            tuple(after),
        )

    @property
    def handed_on(self) -> tuple[int, ...]:
        """Places among the outputs of what it only hands on."""
        return tuple(place for place, origin in enumerate(self._after) if origin[0] != self._own)

    def forward(self, *carried: torch.Tensor, **batch: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """What is handed on: a tensor, or several as a tuple."""
        carried_values = dict(zip(self._before, carried, strict=True))
        given = [
            batch[f"input{origin[1]}"] if origin[0] == _BATCH else carried_values[origin] for origin in self._takes
        ]
        if self.recompute and torch.is_grad_enabled():
            from torch.utils.checkpoint import checkpoint

            outputs = checkpoint(self.inner, *given, use_reentrant=False)
        else:
            outputs = self.inner(*given)
        several = outputs if isinstance(outputs, tuple | list) else (outputs,)
        if self._last:
            messages = [
                several[origin[1]] if origin[0] == self._own else carried_values[origin] for origin in self._after
            ]
        else:
            messages = [
                _message(several[origin[1]]) if origin[0] == self._own else carried_values[origin].clone()
                for origin in self._after
            ]
        return messages[0] if len(messages) == 1 else tuple(messages)


def _message(one: torch.Tensor) -> torch.Tensor:
    """Messages are contiguous; PyTorch's runtime detaches what was sent in place, which views do not allow."""
    return one.clone(memory_format=torch.contiguous_format) if one._is_view() or not one.is_contiguous() else one


@dataclass(frozen=True)
class Handed:
    """A tensor that a stage hands to the next: its shape and type for one micro-batch, and whether it has a gradient."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    gradient: bool

    @property
    def bytes(self) -> int:
        """Of one message."""
        size = self.dtype.itemsize
        for extent in self.shape:
            size *= extent
        return size

    def empty(self, device: torch.device) -> torch.Tensor:
        """To be received in."""
        return torch.empty(self.shape, dtype=self.dtype, device=device)


@dataclass(frozen=True)
class Division:
    """The stages of a module, and what each hands on for a micro-batch of the size of the example."""

    stages: tuple[ModuleStage, ...]
    handed: tuple[tuple[Handed, ...], ...]
    """By stage, but for the last."""
    shared: tuple[str, int, int] | None = None
    """A weight that several stages have, the first of these and the last."""

    @property
    def routed(self) -> int:
        """Values that a stage hands on without having made them."""
        return sum(len(stage.handed_on) for stage in self.stages)


def batch_names(inputs: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """The inputs as `Stage.forward` takes them."""
    return {f"input{number}": tensor for number, tensor in enumerate(inputs)}


def divide_module(step: TrainingStep, begins: Sequence[str], example: Tensors, *, sharing: bool = False) -> Division:
    """The stages of a module.

    Args:
        step: whose module is divided; it is changed.
        begins: paths of the modules with which stages begin, but for the first.
        example: inputs of one micro-batch.
        sharing: whether stages may have a weight in common; then they cannot be run.

    Raises:
        BadPlan: PyTorch cannot divide it there, or two stages have a weight in common.
    """
    from torch.distributed.pipelining import pipeline

    names: dict[int, str] = {id(parameter): name for name, parameter in step.module.named_parameters()}
    first = {name: names[id(parameter)] for name, parameter in step.module.named_parameters(remove_duplicate=False)}
    try:
        for name in begins:
            _begin_stage(step.module.get_submodule(name))
        with warnings.catch_warnings():  # of PyTorch about itself
            warnings.simplefilter("ignore", FutureWarning)
            whole = pipeline(step.module, example).split_gm
    except Exception as error:  # whatever tracing says of it
        line = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise BadPlan(reason=f"PyTorch cannot divide the module: {line}") from error
    stages = _route_stages(whole)
    if len(stages) != len(begins) + 1:
        raise BadPlan(reason=f"PyTorch divides the module into {len(stages)} stages instead of {len(begins) + 1}")
    shared = _find_shared_weight(stages, first)
    if shared is not None and not sharing:
        name, stage, other = shared
        raise BadPlan(reason=f"stages {stage + 1} and {other + 1} share the weights '{name}'")
    return Division(stages, _observe_messages(stages, example), shared)


def _find_shared_weight(stages: Sequence[ModuleStage], first: Mapping[str, str]) -> tuple[str, int, int] | None:
    """Weights in several stages; `first`: of each name the first name of the same tensor."""
    homes: dict[str, set[int]] = {}
    for number, stage in enumerate(stages):
        for name, _ in stage.inner.named_parameters(remove_duplicate=False):
            homes.setdefault(first.get(name, name), set()).add(number)
    several = {name: owners for name, owners in homes.items() if len(owners) > 1}
    if not several:
        return None
    name = min(several)
    together = set().union(*several.values())
    return name, min(together), max(together)


def _begin_stage(part: torch.nn.Module) -> None:
    """A stage begins where this module runs."""
    from torch.distributed.pipelining import pipe_split

    inner = part.forward

    def forward(*args: object, **kwargs: object) -> object:
        pipe_split()
        return inner(*args, **kwargs)

    part.forward = forward


def _route_stages(whole: GraphModule) -> tuple[ModuleStage, ...]:
    """The stages of PyTorch's division, with what each is handed and hands on."""
    values: dict[Node, _Value] = {}
    inner: list[torch.nn.Module] = []
    takes: list[list[_Value]] = []
    results: list[_Value] = []
    for node in whole.graph.nodes:
        if node.op == "placeholder":
            values[node] = (_BATCH, sum(stage == _BATCH for stage, _ in values.values()))
        elif node.op == "call_module":
            values[node] = (len(inner), 0)
            inner.append(whole.get_submodule(str(node.target)))
            takes.append([_value(argument, values) for argument in node.args])
        elif node.op == "call_function" and node.target is operator.getitem:
            values[node] = (_value(node.args[0], values)[0], cast("int", node.args[1]))
        elif node.op == "output":
            results = [_value(argument, values) for argument in cast("Sequence[object]", node.args[0])]
        else:
            raise BadPlan(reason=f"between two stages, it computes {node.name}")
    last = len(inner) - 1
    until: dict[_Value, int] = dict.fromkeys(results, last + 1)
    for number, stage_inputs in enumerate(takes):
        for origin in stage_inputs:
            until[origin] = max(until.get(origin, 0), number)
    # Between each stage and the next: what is made before it and read behind it.
    carried = [
        [origin for origin in until if _BATCH < origin[0] <= number < until[origin]] if number < last else results
        for number in range(last + 1)
    ]
    return tuple(
        ModuleStage(
            module, number, takes[number], carried[number - 1] if number else [], carried[number], last=number == last
        )
        for number, module in enumerate(inner)
    )


def _value(node: object, values: dict[Node, _Value]) -> _Value:
    origin = values.get(cast("Node", node))
    if origin is None:
        raise BadPlan(reason=f"a stage is given {node}, which is no tensor")
    return origin


def _observe_messages(stages: Sequence[ModuleStage], example: Tensors) -> tuple[tuple[Handed, ...], ...]:
    """What each stage hands on, seen by running them."""
    messages: list[tuple[Handed, ...]] = []
    given: tuple[torch.Tensor, ...] = ()
    kept = [{name: buffer.clone() for name, buffer in stage.named_buffers()} for stage in stages]
    with users_code("the module, divided into stages"):
        for stage in stages[:-1]:
            outputs = stage(*given, **batch_names(example))
            several = outputs if isinstance(outputs, tuple) else (outputs,)
            messages.append(
                tuple(Handed(tuple(tensor.shape), tensor.dtype, tensor.requires_grad) for tensor in several)
            )
            given = tuple(tensor.detach().requires_grad_(tensor.requires_grad) for tensor in several)
    with torch.no_grad():  # statistics of batches are as they were
        for stage, buffers in zip(stages, kept, strict=True):
            for name, buffer in stage.named_buffers():
                buffer.copy_(buffers[name])
    return tuple(messages)
