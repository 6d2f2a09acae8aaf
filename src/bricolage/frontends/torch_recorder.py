"""Follows a training step of PyTorch operator by operator, below autograd, and writes down its graph."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

from bricolage.frontends.torch_operators import (
    call_of,
    flops_of,
    is_view,
    list_mutated_tensors,
    operator_name,
    signature_of,
    size_of,
    tensors_of,
)
from bricolage.frontends.traced_step import OperatorCall, TracedStep
from bricolage.work.training_step import OUTSIDE, Gradient, Kind, Phase, Storage
from bricolage.work.work_graph import GRAPH_INPUT, WorkGraph, WorkOperator, WorkTensor


class Recorder(TorchDispatchMode):
    """A dispatch mode that writes down what runs while it is active."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.failed: Exception | None = None
        """What the first operator raised that failed."""
        self._phase: Phase = "forward"
        self._operators: list[WorkOperator] = []
        self._phases: list[Phase] = []
        self._layers: list[str] = []
        self._signatures: list[str] = []
        self._calls: dict[str, OperatorCall] = {}
        self._gradients: dict[str, Gradient] = {}
        self._modules = _Modules()
        self._storages = _Storages(self._modules.now)

    def begin(self, phase: Phase) -> None:
        """What runs from now on belongs to that phase."""
        self._phase = phase

    def lasts(self, tensors: Mapping[Kind, Sequence[torch.Tensor]]) -> None:
        """Tensors that are there before the step, by what they are."""
        for kind, group in tensors.items():
            for tensor in group:
                self._storages.number(tensor, OUTSIDE, kind)

    @contextlib.contextmanager
    def following(self, module: torch.nn.Module) -> Iterator[None]:
        """Knows by the module's hooks which part of it runs, and when its gradients are complete."""
        handles = self._modules.follow(module, lambda: self._phase == "forward")
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                handles.append(parameter.register_post_accumulate_grad_hook(self._ready(name, size_of(parameter))))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def graph(self, lasting: Mapping[Kind, Sequence[torch.Tensor]]) -> TracedStep:
        """What was written down. `lasting`: tensors that outlast the step, by what they are."""
        for kind, group in lasting.items():
            for tensor in group:
                self._storages.settle(tensor, kind)
        return TracedStep(
            WorkGraph(tuple(self._operators), self._storages.edges()),
            tuple(self._phases),
            tuple(self._layers),
            tuple(self._signatures),
            self._storages.seen(self._phases),
            tuple(self._gradients.values()),
            self._calls,
        )

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        kwargs = kwargs or {}
        if func.namespace == "prim":
            return func(*args, **kwargs)
        given = tensors_of((args, kwargs))
        read = {self._storages.number(tensor, OUTSIDE): tensor for tensor in given}
        try:
            out = func(*args, **kwargs)
        except Exception as error:
            self.failed = self.failed or error
            raise
        number, out_tensors = len(self._operators), tensors_of(out)
        self._storages.read(read, number)
        view, name = is_view(func), operator_name(func)
        moved = 0 if view else sum(map(size_of, [*given, *out_tensors]))
        flops = 0.0 if view else flops_of(func, args, kwargs, out)
        self._operators.append(WorkOperator(f"{number}: {name}", flops, moved, name))
        self._phases.append(self._phase)
        self._layers.append(self._modules.now())
        written = {id(tensor) for tensor in list_mutated_tensors(func, args, kwargs)}
        self._storages.written([place for place, tensor in read.items() if id(tensor) in written], out_tensors, number)
        signature = signature_of(func, args, kwargs)
        self._signatures.append(signature)
        if signature not in self._calls:
            self._calls[signature] = call_of(func, args, kwargs)
        return out

    def _ready(self, name: str, size: int) -> Callable[..., None]:
        def act(_: torch.Tensor) -> None:
            self._gradients.pop(name, None)  # of the micro-batch before
            self._gradients[name] = Gradient(name, size, len(self._operators) - 1)

        return act


class _Modules:
    """The module that runs; in the backward phase that whose forward pass made the node of autograd that runs."""

    def __init__(self) -> None:
        self._stack: list[str] = []
        self._ranges: list[tuple[int, str]] = []
        """From which number of autograd's on forward nodes belong to which module."""

    def now(self) -> str:
        """Its path; empty where it belongs to none."""
        if self._stack:
            return self._stack[-1]
        try:
            wanted = torch._C._current_autograd_node()._sequence_nr()
        except (AttributeError, RuntimeError):  # none runs, or it has no number
            return ""
        path = ""
        for start, name in self._ranges:
            if start > wanted:
                break
            path = name
        return path

    def follow(self, module: torch.nn.Module, forward: Callable[[], bool]) -> list[RemovableHandle]:
        """Registers hooks, whose handles it returns. `forward` says whether the forward phase runs."""

        def begin_range(name: str) -> None:
            if forward():
                self._ranges.append((torch._C._autograd._get_sequence_nr(), name))

        def enter(name: str) -> Callable[..., None]:
            def act(*_: object) -> None:
                self._stack.append(name)
                begin_range(name)

            return act

        def leave(*_: object) -> None:
            if self._stack:
                self._stack.pop()
            begin_range(self._stack[-1] if self._stack else "")

        handles = []
        for name, part in module.named_modules():
            handles.append(part.register_forward_pre_hook(enter(name)))
            handles.append(part.register_forward_hook(leave, always_call=True))
        return handles


@dataclass
class _Seen:
    """A storage as it is followed."""

    bytes: int
    born: int
    kind: Kind | None
    layer: str
    freed: int | None = None
    version: int = -1
    """The last operator that wrote it."""


class _Storages:
    """Storages as they come and go, and which operators read what others wrote into them."""

    def __init__(self, layer: Callable[[], str]) -> None:
        """`layer` says which module runs."""
        self._layer = layer
        self._count = 0
        """Operators that have run."""
        self._seen: list[_Seen] = []
        self._alive: dict[int, int] = {}
        """By address of the storage object: its number."""
        self._readers: dict[tuple[int, int], set[int]] = {}
        """By storage and the operator that wrote it: operators that read that."""

    def number(self, tensor: torch.Tensor, born: int, kind: Kind | None = None) -> int:
        """That of a tensor's storage, which is followed from now on. `born` and `kind` count where it is new."""
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address not in self._alive:
            number = len(self._seen)
            self._alive[address] = number
            self._seen.append(_Seen(storage.nbytes(), born, kind, self._layer(), version=born))
            weakref.finalize(storage, self._free, address, number).atexit = False
        return self._alive[address]

    def read(self, places: Iterable[int], operator: int) -> None:
        """An operator has read these storages."""
        for place in places:
            self._readers.setdefault((place, self._seen[place].version), set()).add(operator)

    def written(self, places: Iterable[int], made: Iterable[torch.Tensor], operator: int) -> None:
        """An operator has run: it wrote these storages and made these tensors."""
        self._count = operator + 1
        for place in places:
            self._seen[place].version = operator
        for tensor in made:
            self.number(tensor, operator)

    def settle(self, tensor: torch.Tensor, kind: Kind) -> None:
        """Says what a tensor is that is there in the end, unless it was known before."""
        place = self._alive.get(tensor.untyped_storage()._cdata)
        if place is not None and self._seen[place].kind is None:
            self._seen[place].kind = kind

    def seen(self, phases: Sequence[Phase]) -> tuple[Storage, ...]:
        """All of them. `phases`: of the operators."""
        return tuple(
            Storage(storage.bytes, storage.born, storage.freed, storage.kind or _kind(storage, phases), storage.layer)
            for storage in self._seen
        )

    def edges(self) -> tuple[WorkTensor, ...]:
        """What one operator writes and others read."""
        work_tensors = []
        for (place, writer), readers in self._readers.items():
            later = tuple(sorted(reader for reader in readers if reader > writer))
            producer = writer if writer >= 0 else GRAPH_INPUT
            work_tensors.append(WorkTensor(f"s{place}.{writer}", producer, later, self._seen[place].bytes))
        return tuple(work_tensors)

    def _free(self, address: int, number: int) -> None:
        if self._alive.get(address) == number:
            del self._alive[address]
        self._seen[number].freed = self._count


def _kind(one: _Seen, phases: Sequence[Phase]) -> Kind:
    """What a storage is that nothing else tells."""
    if one.born == OUTSIDE:
        return "gradients" if one.freed is not None else "inputs"  # of the step before, given back by this one
    end = len(phases) - 1 if one.freed is None else min(one.freed, len(phases) - 1)
    kept = phases[end] != phases[one.born]
    return "activations" if kept and phases[one.born] in ("forward", "recompute") else "temporary"
