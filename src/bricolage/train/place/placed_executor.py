"""A training step in pieces on the processes of a group: each runs its pieces, and sends what others read."""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from bricolage.errors import BadPlan
from bricolage.train.pipeline.schedule_loop import TimedPasses
from bricolage.train.place.piece_routes import PieceRoutes, StorageMove
from bricolage.train.place.recorded_step import RecordedCall, RecordedStep, StoredTensor
from bricolage.train.run.pace import STAMP_BYTES, Pace, PacedMachine, wait_until

if TYPE_CHECKING:
    from torch.distributed import Work

_AHEAD = 4
"""Pieces whose messages are asked for before it is their turn."""


@dataclass(frozen=True)
class _Turn:
    """A piece of this process. Moves by their tags."""

    receives: tuple[tuple[int, StorageMove], ...]
    calls: tuple[RecordedCall, ...]
    sends: tuple[tuple[int, StorageMove], ...]
    drops: tuple[int, ...]
    """Storages that this process needs no more."""


class PlacedStep:
    """See `train.run.executors.StepExecutor`. Its weights are those of the recorded step, and its learning rate is zero."""

    def __init__(
        self,
        recorded: RecordedStep,
        pieces: Sequence[Sequence[int]],
        devices: Sequence[int],
        routes: PieceRoutes,
        machine: PacedMachine,
        rank: int,
    ) -> None:
        """`devices`: of pieces, ranks of the group."""
        self._recorded, self._machine, self._rank = recorded, machine, rank
        self._pace = Pace(machine.devices[rank])
        holders = dict(routes.holders)
        self._kept = {name: part for name, part in recorded.gradients.items() if holders.get(part.storage, 0) == rank}
        self._turns = self._divide_work(pieces, devices, routes)
        self._tensors: dict[StoredTensor, torch.Tensor] = {}
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._parts: dict[int, list[StoredTensor]] = {}

    def _divide_work(self, pieces: Sequence[Sequence[int]], devices: Sequence[int], routes: PieceRoutes) -> list[_Turn]:
        receives: dict[int, list[tuple[int, StorageMove]]] = {}
        sends: dict[int, list[tuple[int, StorageMove]]] = {}
        for tag, move in enumerate(routes.moves):
            if move.to_device == self._rank:
                receives.setdefault(move.target, []).append((tag, move))
            if move.from_device == self._rank:
                sends.setdefault(move.source, []).append((tag, move))
        mine = [piece for piece in routes.order if devices[piece] == self._rank]
        calls = {
            piece: tuple(
                self._recorded.calls[number] for number in pieces[piece] if self._recorded.calls[number].writes
            )
            for piece in mine
        }
        last: dict[int, int] = {}
        for piece in mine:
            used = {storage for call in calls[piece] for storage in call.reads | call.writes}
            used |= {move.storage for _, move in (*receives.get(piece, ()), *sends.get(piece, ()))}
            last.update(dict.fromkeys(used, piece))
        stays = {part.storage for part in self._kept.values()} | set(self._recorded.outside)
        drops: dict[int, list[int]] = {}
        for storage, piece in last.items():
            if storage not in stays:
                drops.setdefault(piece, []).append(storage)
        return [
            _Turn(
                tuple(receives.get(piece, ())), calls[piece], tuple(sends.get(piece, ())), tuple(drops.get(piece, ()))
            )
            for piece in mine
        ]

    def run(self) -> TimedPasses:
        """A step: forward, backward and update. All processes of the group run it."""
        self._tensors.clear()
        self._parts.clear()
        self._storages = dict(self._recorded.outside)
        asked: dict[int, tuple[torch.Tensor, Work]] = {}
        sent: list[tuple[torch.Tensor, Work]] = []
        ahead = 0
        # Grad mode as when it was recorded: some operators keep less where nothing would ask for gradients.
        with torch._C._AutoDispatchBelowAutograd():
            for place, turn in enumerate(self._turns):
                while ahead < min(place + _AHEAD + 1, len(self._turns)):
                    for tag, move in self._turns[ahead].receives:
                        asked[tag] = self._ask(tag, move)
                    ahead += 1
                for tag, move in turn.receives:
                    self._receive(move, *asked.pop(tag))
                self._compute(turn)
                sent += [self._send(tag, move) for tag, move in turn.sends]
                for storage in turn.drops:
                    self._forget(storage)
        self._pace.pay()
        for _, message in sent:
            message.wait()
        return TimedPasses()

    def gradients(self) -> Mapping[str, torch.Tensor]:
        """Of the parameters whose gradients this process has, after `run`."""
        return {name: self._tensor(part) for name, part in self._kept.items() if part.storage in self._storages}

    # --- operators ----------------------------------------------------------------------------------------------------

    def _compute(self, turn: _Turn) -> None:
        for call in turn.calls:
            args = [self._bind(value) for value in call.args]
            kwargs = {name: self._bind(value) for name, value in call.kwargs.items()}
            begun = time.perf_counter()
            out = call.function(*args, **kwargs)
            self._pace.owe(call.name, time.perf_counter() - begun)
            if call.made:
                self._keep(call, out)
        self._pace.pay()

    def _bind(self, value: object) -> object:
        if type(value) is StoredTensor:
            return self._tensor(value)
        if type(value) is list or type(value) is tuple:
            return [self._bind(item) for item in value]
        return value

    def _keep(self, call: RecordedCall, out: object) -> None:
        """Puts what a call returns where it was when the step was recorded.

        Raises:
            BadPlan: it has other strides, or another shape.
        """
        tensors = (
            [out] if isinstance(out, torch.Tensor) else [item for item in _flat(out) if isinstance(item, torch.Tensor)]
        )
        for part, tensor in zip(call.made, tensors, strict=True):
            if part.storage in call.reads:
                continue
            if tuple(tensor.shape) != part.shape or tensor.stride() != part.strides:
                raise BadPlan(reason=f"{call.name} returned another shape than when the step was recorded")
            self._storages[part.storage] = tensor.untyped_storage()
            self._remember(part, tensor)

    def _tensor(self, part: StoredTensor) -> torch.Tensor:
        tensor = self._tensors.get(part)
        if tensor is None:
            tensor = torch.empty(0, dtype=part.dtype)
            tensor.set_(self._storages[part.storage], part.offset, part.shape, part.strides)
            self._remember(part, tensor)
        return tensor

    def _remember(self, part: StoredTensor, tensor: torch.Tensor) -> None:
        self._tensors[part] = tensor
        self._parts.setdefault(part.storage, []).append(part)

    def _forget(self, storage: int) -> None:
        self._storages.pop(storage, None)
        for part in self._parts.pop(storage, ()):
            self._tensors.pop(part, None)

    # --- messages -----------------------------------------------------------------------------------------------------

    def _ask(self, tag: int, move: StorageMove) -> tuple[torch.Tensor, Work]:
        buffer = _buffer(move.bytes)
        work = torch.distributed.irecv(buffer, move.from_device, tag=tag)
        assert work is not None
        return buffer, work

    def _receive(self, move: StorageMove, buffer: torch.Tensor, work: Work) -> None:
        work.wait()
        (sent_at,) = struct.unpack("d", bytes(buffer[-STAMP_BYTES:].tolist()))
        wait_until(sent_at + self._machine.link_s(move.from_device, move.to_device, move.bytes))
        self._forget(move.storage)
        self._storages[move.storage] = buffer.untyped_storage()

    def _send(self, tag: int, move: StorageMove) -> tuple[torch.Tensor, Work]:
        buffer = _buffer(move.bytes)
        whole = torch.empty(0, dtype=torch.uint8).set_(self._storages[move.storage])
        buffer[: move.bytes].copy_(whole[: move.bytes])  # a later piece may write it while the message goes out
        buffer[-STAMP_BYTES:].copy_(
            torch.frombuffer(bytearray(struct.pack("d", time.perf_counter())), dtype=torch.uint8)
        )
        work = torch.distributed.isend(buffer, move.to_device, tag=tag)
        assert work is not None
        return buffer, work


def _buffer(size: int) -> torch.Tensor:
    """For a storage and the moment at which it was sent."""
    return torch.empty(-(-size // STAMP_BYTES) * STAMP_BYTES + STAMP_BYTES, dtype=torch.uint8)


def _flat(value: object) -> Sequence[object]:
    from torch.utils._pytree import tree_leaves

    leaves: Sequence[object] = tree_leaves(value)
    return leaves
