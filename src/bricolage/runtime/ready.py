"""Calls whose arguments have been checked: which program runs arrays of these types and shapes.

Checking what a user gives against what the model takes, and finding the program of its shape, takes longer than a small model's
kernels do. Both follow from the types and shapes alone, so they are done once for each. Plain numpy arrays are looked up as they
are; torch tensors and numbers become arrays first, which copies nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bricolage.plan.plan import TensorSpec
from bricolage.runtime import signature
from bricolage.runtime.prepared import Prepared
from bricolage.work.values import ModelValue

_MOST = 64
"""Signatures that are remembered."""
_TEXT = "U"
"""In the place of a type, for texts of any length: numpy has a type for each length."""
_LARGEST_CONSTANT = 4096
"""Bytes that are compared in every call."""

Signature = tuple[Hashable, ...]


ReadyCall = tuple[Prepared, Sequence[ModelValue], bool]
"""A program, the arrays that it takes, in its order, and whether an argument was a torch tensor, as the answers are to be then."""


class _Known(NamedTuple):
    """What runs arrays of a signature."""

    prepared: weakref.ref[Prepared]
    places: tuple[int, ...] | None
    """Of the program's inputs among the model's inputs and then `more`; None where they are the model's."""
    more: tuple[ModelValue, ...]
    """Values of inputs that have defaults."""


class Ready:
    """Programs by the types and shapes of a model's inputs, as long as they are referenced elsewhere."""

    def __init__(self, inputs: Sequence[TensorSpec]) -> None:
        """`inputs`: in order, without those that have defaults. Calls that give one of those are always checked."""
        self._inputs = tuple(inputs)
        self._names = tuple(spec.name for spec in inputs)
        self._constants: dict[str, np.ndarray] = {}
        self._known: dict[Signature, _Known] = {}

    def find(self, args: Sequence[ModelValue], named: Mapping[str, ModelValue]) -> ReadyCall | None:
        """The program of a call and the arrays that it takes, in its order; None where the arguments have to be checked."""
        names = self._names
        if named:
            if args:
                return None
            given = named
        elif len(args) == 1 and type(args[0]) is dict:
            given = args[0]
        elif len(args) == len(names):
            return self._of(args)
        else:
            together = len(args) == 1 and type(args[0]) in (list, tuple) and len(args[0]) == len(names)
            return self._of(args[0]) if together else None
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

    def _of(self, values: Sequence[ModelValue]) -> ReadyCall | None:
        for value in values:
            if type(value) is not np.ndarray:
                return self._of_others(values)
        entry = self._known.get(tuple([(value.dtype, value.shape) for value in values]))
        if entry is None:
            return self._of_others(values)
        reference, places, more = entry
        prepared = reference()
        if prepared is None:
            return None
        return prepared, values if places is None else _place_values(values, more, places), False

    def _of_others(self, values: Sequence[ModelValue]) -> ReadyCall | None:
        """The same of values that are not all arrays of the model's types and shapes, and may yet become such."""
        arrays = [_as_array(spec, value) for spec, value in zip(self._inputs, values, strict=True)]
        entry = self._known.get(_signature(arrays))
        prepared = None if entry is None else entry.prepared()
        if entry is None or prepared is None:
            return None
        torch = any(signature.is_torch_tensor(value) for value in values)
        return prepared, arrays if entry.places is None else _place_values(arrays, entry.more, entry.places), torch

    def add(self, arrays: Mapping[str, ModelValue], prepared: Prepared) -> None:
        """Remembers the program that runs checked values, given by name: those of the inputs, and defaults as they are."""
        values = [arrays[name] for name in self._names]
        more = {info.name: arrays[info.name] for info in prepared.program.inputs if info.name not in self._names}
        order = (*self._names, *more)
        wanted = tuple(order.index(info.name) for info in prepared.program.inputs)
        if len(self._known) >= _MOST:
            self._known.clear()
        places = None if wanted == tuple(range(len(values))) else wanted
        self._known[_signature(values)] = _Known(weakref.ref(prepared), places, tuple(more.values()))

    def clear(self) -> None:
        """Forgets all."""
        self._known, self._constants = {}, {}


def _place_values(
    values: Sequence[ModelValue], more: Sequence[ModelValue], places: Sequence[int]
) -> Sequence[ModelValue]:
    ends = (*values, *more)
    return [ends[place] for place in places]


def _signature(values: Sequence[ModelValue]) -> Signature:
    return tuple([_form(value) for value in values])


def _form(value: ModelValue) -> Hashable:
    """Type and shape of an array; a type is all that is known of another value."""
    if type(value) is not np.ndarray:
        return type(value), None
    return (_TEXT if value.dtype.kind == _TEXT else value.dtype), value.shape


def _as_array(spec: TensorSpec, value: ModelValue) -> ModelValue:
    """What a caller gives for a tensor as an array, if that needs no look at its parts; anything else as it is."""
    if not signature.is_tensor(spec):
        return value
    if isinstance(value, np.generic | int | float) or signature.is_torch_tensor(value):
        value = signature.as_array(value, spec)
    return signature.expand_scalar(spec, value) if type(value) is np.ndarray else value
