"""Values by key, each of the type that is expected there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bricolage.errors import NotALanguageModel
from bricolage.frontends.decoders.gguf_file import GgufValue


class Keys:
    """Values of the expected types."""

    def __init__(self, path: Path, values: Mapping[str, GgufValue]) -> None:
        self.path, self.values = path, values

    def _wrong(self, key: str, expected: str) -> NotALanguageModel:
        has = "lacks" if key not in self.values else "has something else at"
        return NotALanguageModel(path=self.path, reason=f"it {has} the key '{key}', {expected}")

    def integer(self, key: str, default: int | None = None) -> int:
        """At least 0."""
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self._wrong(key, "an integer")
        return value

    def optional_integer(self, key: str) -> int | None:
        """None where it is not there."""
        return self.integer(key) if key in self.values else None

    def number(self, key: str, default: float | None = None) -> float:
        """A finite float."""
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self._wrong(key, "a number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A text."""
        value = self.values.get(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, "a text")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """Texts; none where it is not there."""
        value = self.values.get(key, ())
        if not isinstance(value, tuple) or not all(isinstance(text, str) for text in value):
            raise self._wrong(key, "texts")
        return tuple(str(text) for text in value)

    def array(self, key: str, dtype: type) -> np.ndarray | None:
        """Numbers; None where it is not there."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, np.ndarray):
            raise self._wrong(key, "numbers")
        return value.astype(dtype)
