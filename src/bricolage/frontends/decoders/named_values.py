"""Values by name, each of the type that is expected there: keys of GGUF files and of JSON files."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bricolage.errors import NotALanguageModel

_LONGEST_JSON = 1 << 28
"""Bytes of a JSON file that is read."""


class NamedValues:
    """What a file says, looked up with a type. None counts as left out."""

    def __init__(self, path: Path, values: Mapping[str, object]) -> None:
        self.path, self.values = path, values

    def _wrong(self, key: str, expected: str) -> NotALanguageModel:
        has = "lacks" if self.values.get(key) is None else "has something else at"
        return NotALanguageModel(path=self.path, reason=f"it {has} the key '{key}', {expected}")

    def _look_up(self, key: str, default: object) -> object:
        value = self.values.get(key)
        return default if value is None else value

    def integer(self, key: str, default: int | None = None, most: int | None = None) -> int:
        """At least 0, and at most `most`."""
        value = self._look_up(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self._wrong(key, "an integer")
        if most is not None and value > most:
            raise NotALanguageModel(path=self.path, reason=f"'{key}' is {value}, more than {most}")
        return value

    def optional_integer(self, key: str) -> int | None:
        """None where it is not there."""
        return None if self.values.get(key) is None else self.integer(key)

    def number(self, key: str, default: float | None = None) -> float:
        """A finite float."""
        value = self._look_up(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, "a number")
        try:
            number = float(value)
        except OverflowError:
            raise self._wrong(key, "a number") from None
        if not math.isfinite(number):
            raise self._wrong(key, "a finite number")
        return number

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._look_up(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A text."""
        value = self._look_up(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, "a text")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """Texts; none where it is not there."""
        value = self._look_up(key, ())
        if not isinstance(value, tuple | list) or not all(isinstance(text, str) for text in value):
            raise self._wrong(key, "texts")
        return tuple(value)

    def array(self, key: str, dtype: type) -> np.ndarray | None:
        """Numbers; None where it is not there."""
        value = self._look_up(key, None)
        if value is None:
            return None
        if not isinstance(value, np.ndarray):
            raise self._wrong(key, "numbers")
        return value.astype(dtype)

    def within(self, key: str) -> NamedValues:
        """The values of a JSON object in this one; none where it is not there."""
        value = self._look_up(key, {})
        if not isinstance(value, dict):
            raise self._wrong(key, "an object")
        return NamedValues(self.path, value)


def read_json(path: Path) -> NamedValues:
    """The object in a JSON file; an empty one where there is no such file.

    Raises:
        NotALanguageModel: it holds no JSON object.
    """
    if not path.is_file():
        return NamedValues(path, {})
    try:
        if path.stat().st_size > _LONGEST_JSON:
            raise NotALanguageModel(path=path, reason=f"its JSON has more than {_LONGEST_JSON} bytes")
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise NotALanguageModel(path=path, reason=f"it is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise NotALanguageModel(path=path, reason="it is no JSON object")
    return NamedValues(path, value)
