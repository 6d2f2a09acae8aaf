"""Inputs that never change, as a plan records them: their values stand in the model, as defaults that no call overrides."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bricolage.plan.field_types import Count, Duration

_SHOWN = 16
"""Elements that stand in words."""


@dataclass(frozen=True)
class ConstantInput:
    """An input of the model that was folded into a constant."""

    name: str
    position: Count
    """Among the inputs that a call may give by position."""
    value: str
    """In words (`words_of`)."""

    def __str__(self) -> str:
        return f"{self.name} = {self.value}"


def check_constants(constants: Sequence[ConstantInput], optional: Collection[str], inputs: int) -> None:
    """Whether constant inputs are among those that a call may leave out and no graph takes, at places among as many `inputs`.

    Raises:
        ValueError
    """
    for entry in constants:
        if entry.name not in optional or entry.position >= inputs + len(constants):
            raise ValueError(f"the constant input '{entry.name[:60]}' is none that a call may leave out")
    if len({constant.position for constant in constants}) < len(constants):
        raise ValueError("two constant inputs are at one position")


def words_of(array: np.ndarray) -> str:
    """The elements of an array: `16000`, `[1, 2, 3]`; of many the first, and how many there are."""
    elements = [
        json.dumps(bool(element)) if array.dtype.kind == "b" else str(element) for element in array.reshape(-1)[:_SHOWN]
    ]
    if array.size > _SHOWN:
        shape = "×".join(map(str, array.shape))
        return f"[{', '.join(elements)}, ...] ({array.size:,} elements, {array.dtype.name} {shape})"
    return _format_nested(iter(elements), array.shape)


def _format_nested(elements: Iterator[str], shape: tuple[int, ...]) -> str:
    if not shape:
        return next(elements)
    return f"[{', '.join(_format_nested(elements, shape[1:]) for _ in range(shape[0]))}]"


def same_value(array: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays of one type and shape hold the same numbers; NaN counts as one."""
    if array.dtype != other.dtype or array.shape != other.shape:
        return False
    same = np.asarray(array == other)
    return bool((same if array.dtype.kind in "biu" else same | ((array != array) & (other != other))).all())


@dataclass(frozen=True)
class ConstantGain:
    """What folding an input would remove that decides control flow and nothing else."""

    name: str
    value: str
    """In words, as the user gave it; empty where no inputs were given, and the other fields are of no value then."""
    decided: Count
    """If operators that hang on it, ..."""
    operators: tuple[Count, Count] = (0, 0)
    """... and operators before and after, those in branches included."""
    implementation: str = ""
    """Who ran the folded graph fastest, as a whole; empty where that was not measured."""
    median_ms: Duration | None = None
    """Its time, measured apart from the race."""
