"""Calls whose arguments have been checked: which program runs arrays of these types and shapes.

Checking what a user gives against what the model takes, and finding the program of its shape, takes longer than a small model's
kernels do. Both follow from the types and shapes alone, so they are done once for each. Only plain numpy arrays are known so;
whatever else comes is checked each time.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence

import numpy as np

from bricolage.runtime.prepared import Prepared
from bricolage.work.values import ModelValue

_MOST = 64
"""Signatures that are remembered."""
_LARGEST_CONSTANT = 4096
"""Bytes that are compared in every call."""

Signature = tuple[tuple[np.dtype, tuple[int, ...]], ...]


class Ready:
    """Programs by the types and shapes of a model's inputs, as long as they are referenced elsewhere."""

    def __init__(self, names: Sequence[str]) -> None:
        """`names`: of the inputs, in order."""
        self._names = tuple(names)
        self._constants: dict[str, np.ndarray] = {}
        self._known: dict[Signature, tuple[weakref.ref[Prepared], tuple[int, ...] | None]] = {}

    def find(
        self, args: tuple[ModelValue, ...], named: Mapping[str, ModelValue]
    ) -> tuple[Prepared, Sequence[np.ndarray]] | None:
        """The program of a call and the arrays that it takes, in its order; None where the arguments have to be checked."""
        names = self._names
        if named:
            if args:
                return None
            given = named
        elif len(args) == 1 and type(args[0]) is dict:
            given = args[0]
        else:
            return self._of(args) if len(args) == len(names) else None
        if len(given) != len(names) and not self._adds_constants(given):
            return None
        try:
            return self._of([given[name] for name in names])
        except KeyError:
            return None

    def allow(self, name: str, array: np.ndarray) -> None:
        """Remembers the value of an input that never changes and that calls give all the same."""
        if array.dtype.kind != "O" and array.nbytes <= _LARGEST_CONSTANT:
            self._constants[name] = array

    def _adds_constants(self, given: Mapping[str, ModelValue]) -> bool:
        """Whether what is given in addition to inputs are those that never change, with the values that they have."""
        count = len(self._names)
        for name, constant in self._constants.items():
            value = given.get(name)
            if value is None:
                continue
            if type(value) is not np.ndarray or value.dtype != constant.dtype or value.shape != constant.shape:
                return False
            if value.tobytes() != constant.tobytes():
                return False
            count += 1
        return len(given) == count

    def _of(self, values: Sequence[ModelValue]) -> tuple[Prepared, Sequence[np.ndarray]] | None:
        for value in values:
            if type(value) is not np.ndarray:
                return None
        known = self._known.get(tuple([(value.dtype, value.shape) for value in values]))
        if known is None:
            return None
        prepared = known[0]()
        if prepared is None:
            return None
        return prepared, values if known[1] is None else [values[place] for place in known[1]]

    def add(self, arrays: Mapping[str, ModelValue], prepared: Prepared) -> None:
        """Remembers the program that runs checked arrays, given by name."""
        values = [arrays[name] for name in self._names]
        if not prepared.static or any(type(value) is not np.ndarray for value in values):
            return
        if len(self._known) >= _MOST:
            self._known.clear()
        wanted = tuple(self._names.index(info.name) for info in prepared.program.inputs)
        places = None if wanted == tuple(range(len(values))) else wanted
        self._known[tuple((value.dtype, value.shape) for value in values)] = weakref.ref(prepared), places

    def clear(self) -> None:
        """Forgets all."""
        self._known, self._constants = {}, {}
