"""A training step as it ran: each call of an operator with the storages that it reads and writes, to be run again in parts.

`frontends.torch_recorder` follows a step without memory, for its times and bytes. Here the step runs with data, because
strides that an operator leaves are known only then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_map

from bricolage.errors import NotTraceable
from bricolage.frontends.torch_operators import list_mutated_tensors, operator_name, tensors_of
from bricolage.frontends.torch_recorder import Recorder
from bricolage.train.predict.variant import Variant
from bricolage.train.predict.variant_step import Running, prepare_step
from bricolage.train.step.spec import StepSpec
from bricolage.work.training_step import OUTSIDE


class StoredTensor(NamedTuple):
    """A tensor as a part of a storage."""

    storage: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class RecordedCall:
    """A call; tensors in its arguments are `StoredTensor`s."""

    function: OpOverload
    name: str
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    made: tuple[StoredTensor, ...]
    """What it returns."""
    reads: frozenset[int]
    """Storages of its arguments."""
    writes: frozenset[int]
    """Storages that it changes or makes. A call that writes none has nothing to run: views are parts of storages."""


@dataclass(frozen=True)
class RecordedStep:
    """The calls of a step, numbered as `TracedStep` numbers operators."""

    calls: tuple[RecordedCall, ...]
    outside: Mapping[int, torch.UntypedStorage]
    """Storages that are there before the step: weights, state, batch, constants."""
    sizes: Mapping[int, int]
    """Bytes of storages."""
    gradients: Mapping[str, StoredTensor]
    """By parameter."""

    @property
    def digest(self) -> str:
        """The same for two records of one step, whatever process made them."""
        parts = [f"{call.name}{sorted(call.reads)}{sorted(call.writes)}{call.made}" for call in self.calls]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class CallRecorder(Recorder):
    """Also keeps how operators were called."""

    def __init__(self) -> None:
        super().__init__()
        self.recorded: list[RecordedCall] = []
        self.outside: dict[int, torch.UntypedStorage] = {}
        self.sizes: dict[int, int] = {}

    def stored(self, tensor: torch.Tensor, born: int = OUTSIDE) -> StoredTensor:
        """A tensor as a part of its storage."""
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
            raise NotTraceable(reason=f"a tensor of the layout {tensor.layout} is no part of a storage")
        number = self._storages.number(tensor, born)
        if number not in self.sizes:
            self.sizes[number] = tensor.untyped_storage().nbytes()
            if born == OUTSIDE:
                self.outside[number] = tensor.untyped_storage()
        return StoredTensor(
            number, tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset())
        )

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        if func.namespace == "prim":
            return func(*args, **(kwargs or {}))

        def part(value: object) -> object:
            return self.stored(value) if isinstance(value, torch.Tensor) else value

        given = tree_map(part, (args, kwargs or {}))
        number = len(self.recorded)
        reads = frozenset(self.stored(tensor).storage for tensor in tensors_of((args, kwargs)))
        changed = {self.stored(tensor).storage for tensor in list_mutated_tensors(func, args, kwargs or {})}
        out = super().__torch_dispatch__(func, types, args, kwargs)
        outputs = tuple(self.stored(tensor, number) for tensor in tensors_of(out))
        writes = frozenset(changed | ({part.storage for part in outputs} - reads))
        self.recorded.append(RecordedCall(func, operator_name(func), given[0], given[1], outputs, reads, writes))
        return out


def record_step(spec: StepSpec) -> RecordedStep:
    """Runs a step twice in this process, with a learning rate of zero, and records the second time.

    Raises:
        MissingLibrary, BadTrainingCode: as `prepare_step` does.
        NotTraceable: it draws random numbers, or has tensors that are no parts of storages.
    """
    step = prepare_step(spec, Variant())
    running = Running(step.module, [*step.inputs, *step.targets], step, Variant())
    running.run()
    running.forget()
    recorder = CallRecorder()
    recorder.lasts(running.lasting())
    state = torch.get_rng_state()
    with recorder:
        running.run()
    if not torch.equal(state, torch.get_rng_state()):
        raise NotTraceable(
            reason="it draws random numbers, and pieces on several devices draw others; train without dropout"
        )
    gradients = {
        name: recorder.stored(parameter.grad)
        for name, parameter in step.module.named_parameters()
        if parameter.grad is not None
    }
    return RecordedStep(tuple(recorder.recorded), recorder.outside, recorder.sizes, gradients)


def check_pieces(recorded: RecordedStep, pieces: Sequence[Sequence[int]]) -> None:
    """Raises NotTraceable where a step's pieces are of another step than was recorded."""
    operators = sum(map(len, pieces))
    if operators != len(recorded.calls):
        raise NotTraceable(reason=f"it has {operators} operators without data, and {len(recorded.calls)} with data")
