"""A training step of PyTorch as a graph: what it computes, where its memory goes, and when gradients are ready.

The step (forward, backward, update of the weights) runs once on tensors without memory (`FakeTensorMode`), below autograd, where
AOTAutograd traces as well; so the graph is that of the operators that PyTorch would run, in their order, without running one.
Unlike AOTAutograd's it is not made functional: an operator that works in place does so here, and a tensor ends where PyTorch lets
go of its memory. Control flow that rests on data has no answer on such tensors, and is refused with the line that asks.
"""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

from bricolage.errors import BricolageError, NotTraceable
from bricolage.frontends.traced_step import TracedStep
from bricolage.work.training_step import Kind, Phase

if TYPE_CHECKING:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

Lasting: TypeAlias = "Callable[[], Mapping[Kind, list[torch.Tensor]]]"


class Steps(Protocol):
    """Something that trains: what `trace_step` follows."""

    def run(self, phase: Callable[[Phase], None] = ...) -> None:
        """One step; says which phase begins."""
        ...


def fake_copy(module: torch.nn.Module, mode: FakeTensorMode) -> torch.nn.Module:
    """A copy of a module whose tensors have shapes, types and strides, but no memory."""
    import torch

    memo: dict[int, object] = {}
    for part in module.modules():
        for parameter in [*part._parameters.values(), *part._buffers.values(), *vars(part).values()]:
            if isinstance(parameter, torch.Tensor) and id(parameter) not in memo:
                fake: torch.Tensor = mode.from_tensor(parameter.detach())
                if isinstance(parameter, torch.nn.Parameter):
                    fake = torch.nn.Parameter(fake, parameter.requires_grad)
                memo[id(parameter)] = fake
    return copy.deepcopy(module, memo)


def trace_step(
    module: torch.nn.Module,
    inputs: Sequence[torch.Tensor],
    start: Callable[[torch.nn.Module, Sequence[torch.Tensor]], tuple[Steps, Lasting]],
) -> TracedStep:
    """The graph of a training step.

    Args:
        module: its module, which is left as it is.
        inputs: its batch, inputs and targets; only shapes, types and strides count.
        start: given a copy of both without memory, what runs a step, and what tells tensors that last, by the kind of storage.

    Raises:
        NotTraceable: the step's control flow rests on values of tensors, or an operator of it cannot run without memory.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    from bricolage.frontends.torch_recorder import Recorder  # a class of PyTorch's

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    twin = fake_copy(module, mode)
    batch = [mode.from_tensor(source.detach()) for source in inputs]
    recorder = Recorder()
    try:
        with _quiet(), mode:
            steps, lasting = start(twin, batch)
            steps.run()  # the optimiser makes its state in the first step
            recorder.lasts(lasting())
            with recorder, recorder.following(twin):
                steps.run(recorder.begin)
    except BricolageError:
        raise
    except Exception as error:
        reason = recorder.failed or error
        raise NotTraceable(reason=f"{_first_line(reason)} ({_users_line(reason)})") from error
    return recorder.graph(lasting())


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the words of those who are used to data, and with the random state as it was."""
    import logging
    import warnings

    import torch

    state, logger = torch.get_rng_state(), logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
        torch.set_rng_state(state)


def _first_line(error: Exception) -> str:
    from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

    if isinstance(error, DataDependentOutputException):
        return f"a decision rests on the value of a tensor ({error.func})"
    if isinstance(error, DynamicOutputShapeException):
        return f"a shape rests on values of a tensor ({error.func})"
    words = str(error).strip().splitlines()
    return f"{type(error).__name__}: {words[0] if words else ''}"


def _users_line(error: Exception) -> str:
    """The innermost line of code that is neither PyTorch's nor ours."""
    import traceback

    package_folder = sys.modules["bricolage"].__path__[0]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if "/torch/" not in frame.filename and not frame.filename.startswith(package_folder):
            return f"{frame.filename}, line {frame.lineno}: {frame.line}"
    return "a line that is not known"
