"""The least and the largest that a value can hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import onnx_ir as ir

DETAIL = 1024
"""Elements up to which the parts of a value have ranges of their own."""
Array = np.ndarray


@dataclass(frozen=True)
class ValueRange:
    """What a value may hold."""

    low: Array
    high: Array
    below: frozenset[str] = frozenset()
    """Symbolic sizes that every element is less than."""

    @staticmethod
    def of(low: object, high: object, below: frozenset[str] = frozenset()) -> ValueRange:
        """From numbers or arrays. NaN, as of infinities that cancel, says nothing."""
        lows, highs = np.asarray(low, np.float64), np.asarray(high, np.float64)
        return ValueRange(np.where(np.isnan(lows), -np.inf, lows), np.where(np.isnan(highs), np.inf, highs), below)

    @property
    def hull(self) -> ValueRange:
        """One range for all elements."""
        return ValueRange(
            np.asarray(self.low.min(initial=np.inf)), np.asarray(self.high.max(initial=-np.inf)), self.below
        )

    @property
    def known(self) -> bool:
        """Whether it has two ends."""
        return bool(np.isfinite(self.low).all() and np.isfinite(self.high).all())


UNKNOWN = ValueRange.of(-np.inf, np.inf)


def of_constant(array: Array) -> ValueRange:
    """Of the elements of a constant."""
    if array.dtype.kind not in "biuf" or not array.size:
        return ValueRange.of(0, 0) if not array.size else UNKNOWN
    if array.size <= DETAIL:
        return ValueRange.of(array, array)
    return ValueRange.of(array.min(), array.max())


class Asked(Protocol):
    """What knows the ranges of values."""

    def of(self, value: ir.Value | None) -> ValueRange:
        """Of a value, with what is known of its parts."""

    def hull(self, value: ir.Value | None) -> ValueRange:
        """One for all elements of a value."""


Transfer = Callable[[Asked, ir.Node], ValueRange]
