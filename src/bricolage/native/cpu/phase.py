"""One function of a generated module: its lines, and the memory that it is given."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from bricolage.native.cpu.sharing import ParallelRange
from bricolage.native.fuse.kernel_plan import Buffer


@dataclass
class ConstantBlock:
    """Constant data of a region, one block; every tensor starts at a multiple of 64 bytes."""

    arrays: list[tuple[int, np.ndarray]] = field(default_factory=list)
    size: int = 0
    dry: bool = False
    """Whether nothing is made: for who wants to see the code alone."""
    made: dict[object, np.ndarray] = field(default_factory=dict)
    """What was made by key: libraries of one plan may share it."""
    asked: Counter[int] = field(default_factory=Counter)
    """How often what lies at an offset has been asked for."""
    _known: dict[object, int] = field(default_factory=dict)
    _alike: dict[object, list[tuple[int, np.ndarray]]] = field(default_factory=lambda: defaultdict(list))

    def add(self, key: object, make: Callable[[], object]) -> int:
        """Offset in bytes of what `make` makes, once for each key. What holds the same bytes is kept once: the steps of a
        recurrence, and the layers of some networks, share their weights."""
        if key not in self._known:
            self._known[key] = self._placed(key, make)
        self.asked[self._known[key]] += 1
        return self._known[key]

    def _placed(self, key: object, make: Callable[[], object]) -> int:
        if self.dry:
            self.size += 64
            return self.size - 64
        if key not in self.made:
            self.made[key] = np.ascontiguousarray(make()).reshape(-1).view(np.uint8)
        raw = self.made[key]
        alike = self._alike[raw.size, raw[:256].tobytes()]
        position = next((offset for offset, other in alike if np.array_equal(other, raw)), None)
        if position is None:
            position = self.size
            alike.append((position, raw))
            self.arrays.append((position, raw))
            self.size += -(-raw.size // 64) * 64
        return position


@dataclass(frozen=True)
class TensorOperand:
    """Memory of tensors that a function is given: from which element of which memory on, and of which type."""

    storage: tuple[str, int]
    """("input", position), ("output", position) or ("arena", number)."""
    dtype: str
    offset: int
    """Elements from the start of it."""


@dataclass(frozen=True)
class ConstantOperand:
    """Constant data that a function is given."""

    offset: int
    """Bytes from the start of the region's constants."""


MemoryOperand = TensorOperand | ConstantOperand

_GIVEN = ("input", "output", "arena")
"""Kinds of memory that a function is given. It declares all other kinds itself."""


class FunctionMemory:
    """The memory operands of one function, which become its parameters `m0`, `m1` and so on in the order in which they are asked
    for. What has been asked for once is known by the same name again, so that functions that do the same have the same text."""

    def __init__(self, weights: ConstantBlock) -> None:
        self.weights = weights
        """Where constants that the function reads are put."""
        self._operands: dict[MemoryOperand, str] = {}

    @property
    def operands(self) -> tuple[MemoryOperand, ...]:
        """In the order of the parameters."""
        return tuple(self._operands)

    def pointer(self, buffer: Buffer, start: int = 0) -> str:
        """The start of a buffer, or some elements start, as C."""
        operand = tensor_operand(buffer, start)
        return self._name_operand(operand) if buffer.storage[0] in _GIVEN else local(buffer)

    def constant(self, offset: int) -> str:
        """The start of constant data at `offset` bytes as C."""
        return self._name_operand(ConstantOperand(offset))

    def _name_operand(self, operand: MemoryOperand) -> str:
        return self._operands.setdefault(operand, f"m{len(self._operands)}")


def tensor_operand(buffer: Buffer, start: int = 0) -> TensorOperand:
    """The operand by which a function is given a buffer from some elements start on."""
    return TensorOperand(buffer.storage, buffer.dtype, buffer.offset + start)


def local(buffer: Buffer) -> str:
    """The name of a pointer to a buffer that a function declares itself."""
    storage, number = buffer.storage
    return f"{storage}_{number}_{buffer.dtype}_{buffer.offset}"


@dataclass
class Phase:
    """A function `(operands ..., own, shared, at)` of a loop that threads share; they meet between the phases of a kernel."""

    lines: list[str]
    """The iterations from `begin` to `end`: any part of the loop, and what one needs it sets up itself."""
    share: ParallelRange
    operands: tuple[MemoryOperand, ...] = ()
    """The memory that the lines call `m0`, `m1` and so on."""
    thread_scratch: int = 0
    """Bytes of scratch memory that each thread needs."""
    shared_scratch: int = 0
    """Bytes of scratch memory that the threads share."""
    helpers: dict[str, str] = field(default_factory=dict)
    """Functions that it calls, by name."""
