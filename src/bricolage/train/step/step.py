"""A training step made ready: the module, its loss, its optimiser and a batch, as PyTorch runs them."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from bricolage.base.torch_library import load_torch
from bricolage.errors import BadTrainingCode, BricolageError
from bricolage.train.step.imports import file_as_module, search_first
from bricolage.train.step.spec import Optimiser, StepSpec

if TYPE_CHECKING:
    import torch

Tensors: TypeAlias = "tuple[torch.Tensor, ...]"
LossFunction: TypeAlias = "Callable[..., torch.Tensor]"


@dataclass(frozen=True)
class TrainingStep:
    """What one step needs. `loss(outputs, *targets)` is a scalar; `module(*inputs)` gives the outputs."""

    module: torch.nn.Module
    loss: LossFunction
    inputs: Tensors
    targets: Tensors
    optimiser: Optimiser

    def make_optimiser(self) -> torch.optim.Optimizer:
        """A fresh optimiser over all of the module's parameters that want a gradient."""
        return make_optimiser(self.optimiser, [p for p in self.module.parameters() if p.requires_grad])

    def run(self, optimiser: torch.optim.Optimizer) -> torch.Tensor:
        """One step: gradients to none, forward, backward, update. Returns the loss, detached."""
        optimiser.zero_grad(set_to_none=True)
        value = self.loss(self.module(*self.inputs), *self.targets)
        value.backward()
        optimiser.step()
        return value.detach()


def make_optimiser(spec: Optimiser, parameters: Sequence[torch.Tensor], how: str = "") -> torch.optim.Optimizer:
    """The optimiser of `torch.optim` that a spec describes; `how` it computes: "foreach", "fused", or as it would by itself."""
    import torch

    flags = {"foreach": how == "foreach", "fused": how == "fused"} if how else {}
    if spec.kind == "sgd":
        return torch.optim.SGD(
            parameters, spec.lr, momentum=spec.momentum, nesterov=spec.nesterov, weight_decay=spec.weight_decay, **flags
        )
    kind = torch.optim.Adam if spec.kind == "adam" else torch.optim.AdamW
    return kind(parameters, spec.lr, betas=spec.betas, eps=spec.eps, weight_decay=spec.weight_decay, **flags)


def build(spec: StepSpec) -> TrainingStep:
    """Imports and runs what the spec names: the module with weights by the spec's seed, and the batch.

    Raises:
        MissingLibrary: PyTorch is not installed.
        BadTrainingCode: something that the spec names is not there, fails, or returns something else than it should.
    """
    torch = load_torch()
    torch.manual_seed(spec.seed)
    module = call(spec.module, spec.folder, **spec.arguments)
    if not isinstance(module, torch.nn.Module):
        raise BadTrainingCode(place=spec.module, reason=f"it returns {type(module).__name__}, not a torch.nn.Module")
    inputs, targets = call_batch(spec, spec.seed)
    return TrainingStep(module.train(), find_loss(spec.loss, spec.folder), inputs, targets, spec.optimiser)


def call_batch(spec: StepSpec, seed: int) -> tuple[Tensors, Tensors]:
    """Inputs and targets of the batch of a seed.

    Raises:
        BadTrainingCode: as `build` does.
    """
    batch = call(spec.batch, spec.folder, spec.batch_size, seed)
    if not isinstance(batch, tuple) or len(batch) != 2:
        raise BadTrainingCode(place=spec.batch, reason="it returns no pair of inputs and targets")
    inputs, targets = (_tensors(part, spec.batch) for part in batch)
    return inputs, targets


def accelerator(kind: str, number: int) -> str:
    """The device of PyTorch on which a process runs that is the `number`th of its job, for devices of a kind: "cpu"; or its own
    GPU, where CUDA is and GPUs are wanted."""
    cuda = load_torch().cuda
    if kind != "gpu" or not cuda.is_available():
        return "cpu"
    return f"cuda:{int(os.environ.get('LOCAL_RANK', number)) % cuda.device_count()}"


def on_device(step: TrainingStep, device: str) -> TrainingStep:
    """The step with its module and batch on a device of PyTorch."""
    if device == "cpu":
        return step
    inputs, targets = (tuple(tensor.to(device) for tensor in tensors) for tensors in (step.inputs, step.targets))
    return replace(step, module=step.module.to(device), inputs=inputs, targets=targets)


def find_loss(name: str, folder: str) -> LossFunction:
    """The loss of that name: of `torch.nn.functional`, or of a file or module.

    Raises:
        MissingLibrary, BadTrainingCode: as `build` does.
    """
    torch = load_torch()
    if ":" in name:
        return find_function(name, folder)
    loss = getattr(torch.nn.functional, name, None) if not name.startswith("_") else None
    if not callable(loss):
        raise BadTrainingCode(place=name, reason="torch.nn.functional has no such loss")
    return loss  # type: ignore[no-any-return]


def call(place: str, folder: str, *args: object, **keywords: object) -> Any:
    """What a function returns that a spec names.

    Raises:
        BadTrainingCode: it is not there, takes other arguments, or fails.
    """
    function = find_function(place, folder)
    try:
        inspect.signature(function).bind(*args, **keywords)
    except TypeError as error:
        raise BadTrainingCode(place=place, reason=f"it does not take these arguments: {error}") from error
    except ValueError:
        pass  # built in, without a signature
    try:
        return function(*args, **keywords)
    except Exception as error:  # the user's code may raise anything
        raise BadTrainingCode(place=place, reason=f"it fails with {type(error).__name__}: {error}") from error


def find_function(place: str, folder: str) -> Callable[..., Any]:
    """The function or class at "file.py:name" (relative to `folder`) or "package.module:name". Imports look into `folder` first.

    Raises:
        BadTrainingCode: it is not there, or its file fails.
    """
    home, _, name = place.rpartition(":")
    try:
        search_first(folder)
        function: Any = file_as_module(Path(folder, home)) if home.endswith(".py") else importlib.import_module(home)
        for part in name.split("."):
            function = getattr(function, part)
    except Exception as error:  # the user's code runs and may raise anything
        raise BadTrainingCode(place=place, reason=f"{type(error).__name__}: {error}") from error
    if not callable(function):
        raise BadTrainingCode(place=place, reason=f"it is {type(function).__name__}, nothing to call")
    return function  # type: ignore[no-any-return]


@contextlib.contextmanager
def users_code(place: str) -> Iterator[None]:
    """Runs the user's module, forward or backward.

    Raises:
        BadTrainingCode: whatever it raises, with the line.
    """
    try:
        yield
    except BricolageError:
        raise
    except Exception as error:  # the user's code may raise anything
        words = str(error).strip().splitlines()
        reason = f"it fails with {type(error).__name__}: {words[0] if words else ''}{_at(users_line(error))}"
        raise BadTrainingCode(place=place, reason=reason) from error


def users_line(error: BaseException) -> str:
    """The innermost line that an error came through which is neither PyTorch's nor ours; empty if there is none."""
    return _innermost(traceback.extract_tb(error.__traceback__))


def calling_line() -> str:
    """The same of those that are running."""
    return _innermost(traceback.extract_stack())


def _innermost(frames: traceback.StackSummary) -> str:
    package_folder, pythons = str(Path(sys.modules["bricolage"].__path__[0])), str(Path(contextlib.__file__).parent)
    for frame in reversed(frames):
        theirs = "/torch/" in frame.filename or str(Path(frame.filename).parent) == pythons
        if not theirs and not frame.filename.startswith((package_folder, "<")):
            return f"{frame.filename}, line {frame.lineno}: {frame.line}"
    return ""


def _at(line: str) -> str:
    return f" ({line})" if line else ""


def _tensors(found: object, place: str) -> Tensors:
    import torch

    several = found if isinstance(found, tuple) else (found,)
    if not several or not all(isinstance(tensor, torch.Tensor) for tensor in several):
        raise BadTrainingCode(place=place, reason="its inputs and targets are not tensors or tuples of tensors")
    return several
