"""A compiled program as several threads call it: each copies its tensors in and out while another one runs."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from time import monotonic

import numpy as np

from bricolage.backends import registry
from bricolage.errors import NotEnoughMemory
from bricolage.runtime.program import BoundProgram, Program
from bricolage.runtime.spans import RunSpan
from bricolage.work.values import ModelValue

_SETS = 2
"""Of buffers: one that runs, and one that is filled or emptied meanwhile."""
Turn = AbstractContextManager[object]


@dataclass(frozen=True)
class Part:
    """Rows of one request among those that are run together."""

    arrays: Mapping[str, np.ndarray]
    rows: int
    """Along the first axis of every input and output."""


class Prepared:
    """A program with its buffers. Calls take turns, and only the run itself is a turn: tensors are copied in before it, and out
    after it, with a second set of buffers that is made when two callers meet for the first time."""

    def __init__(self, program: Program, backends: frozenset[str], turn: Turn) -> None:
        """`backends` are those that it runs on; `turn` is held for each run.

        Raises:
            NotEnoughMemory: see `Program.bind`.
        """
        self.program, self.backends = program, backends
        self._turn: Turn = nullcontext() if program.takes_turns else turn
        self._most = 1 if program.scheduled else _SETS  # a schedule has threads of its own with every set
        self._sets = [program.bind()] if program.static else []
        self._unbound = program.unbound()
        self._free = list(self._sets)
        self._returned, self._waiting = threading.Condition(), 0
        self.used = monotonic()
        """When it was last asked to run."""

    @property
    def static(self) -> bool:
        """Whether shapes are known before it runs, so that it has buffers."""
        return bool(self._sets)

    def run(self, arrays: Mapping[str, ModelValue], spans: list[RunSpan] | None = None) -> dict[str, ModelValue]:
        """Outputs by name, fresh; `spans` takes what ran when."""
        if spans is None or not self._sets:
            results = self.run_in_order([arrays[info.name] for info in self.program.inputs])
            return dict(zip((info.name for info in self.program.outputs), results, strict=True))
        bound = self._take_buffers()
        try:
            for name, buffer in bound.inputs.items():
                buffer[...] = arrays[name]
            with self._turn:
                spans += bound.traced()
            return {name: buffer.copy() for name, buffer in bound.outputs.items()}
        finally:
            self._give(bound)

    def run_in_order(self, arrays: Sequence[ModelValue]) -> Sequence[ModelValue]:
        """As `run`, for arrays in the order of the program's inputs; outputs in theirs. The overhead of a call is here and in
        `Ready`: some three microseconds."""
        if self._unbound is not None:
            self.used = monotonic()
            for array in arrays:
                if not (type(array) is np.ndarray and array.flags.carray and array.dtype.isnative):
                    arrays = [_laid_out(value) for value in arrays]
                    break
            with self._turn:
                return self._unbound(arrays)
        bound = self._take_buffers()
        try:
            for buffer, array in zip(bound.reads, arrays, strict=True):
                buffer[...] = array
            with self._turn:
                if bound.answer is not None:
                    return bound.answer()
                bound.run()
            return [buffer.copy() for buffer in bound.writes]
        finally:
            self._give(bound)

    def run_together(self, parts: Sequence[Part]) -> list[dict[str, ModelValue]]:
        """Outputs of each part. The rows that are left over are filled with the last one; all that the program computes of them is
        thrown away. For programs whose rows do not depend on each other; where shapes are known only at run time, one part after
        another."""
        if not self._sets:
            return [self.run(part.arrays) for part in parts]
        bound = self._take_buffers()
        try:
            for name, buffer in bound.inputs.items():
                first = 0
                for part in parts:
                    np.copyto(buffer[first : first + part.rows], part.arrays[name])
                    first += part.rows
                buffer[first:] = buffer[first - 1]
            with self._turn:
                bound()
            part_outputs: list[dict[str, ModelValue]] = []
            first = 0
            for part in parts:
                part_outputs.append({n: array[first : first + part.rows].copy() for n, array in bound.outputs.items()})
                first += part.rows
            return part_outputs
        finally:
            self._give(bound)

    def _take_buffers(self) -> BoundProgram:
        """A set of buffers that no other call uses."""
        self.used = monotonic()
        try:
            return self._free.pop()  # without a lock, which costs more than the rest
        except IndexError:
            pass
        with self._returned:
            self._waiting += 1  # before looking: who gives one back after that will tell
            try:
                while True:
                    try:
                        return self._free.pop()
                    except IndexError:
                        if len(self._sets) >= self._most or not self._make():
                            self._returned.wait()
            finally:
                self._waiting -= 1

    def _make(self) -> bool:
        """One more set; tensors between regions share the memory of the first one's, since only one set runs at a time."""
        try:
            self._sets.append(self.program.bind(arena=self._sets[0].arena))
        except (NotEnoughMemory, MemoryError):
            self._most = len(self._sets)
            return False
        self._free.append(self._sets[-1])
        return True

    def _give(self, bound: BoundProgram) -> None:
        self._free.append(bound)
        if self._waiting:
            with self._returned:
                self._returned.notify()

    @property
    def lives(self) -> bool:
        """Whether it can be run in a forked process."""
        return not self.program.scheduled and all(
            registry.get(backend).after_fork == "lives" for backend in self.backends
        )

    def after_fork(self, turn: Turn) -> None:
        """In a forked process, where no thread holds `turn`: those that used buffers may be gone."""
        self._turn = nullcontext() if self.program.takes_turns else turn
        self._returned, self._waiting = threading.Condition(), 0
        self._free = list(self._sets)


def _laid_out(value: ModelValue) -> ModelValue:
    """An array as backends read it: C-contiguous, aligned, in the machine's byte order; else a copy. What is no array as it is."""
    if type(value) is not np.ndarray:
        return value
    dtype, flags = value.dtype, value.flags
    if flags.c_contiguous and flags.aligned and dtype.isnative:
        return value
    return np.array(value, dtype if dtype.isnative else dtype.newbyteorder("="), order="C")
