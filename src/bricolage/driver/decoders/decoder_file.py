"""A user's own file of a decoder, as it is raced untouched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class FileCall:
    """One call of a file with a cache, the last of a text."""

    inputs: Mapping[str, np.ndarray]
    """Tokens, the cache that the file itself made of those in front, and what follows from their numbers."""
    outputs: tuple[tuple[str, tuple[int, ...]], ...]
    """Names and shapes, in the file's order. Logits end in [judged, vocabulary]."""
    logits: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the logits."""
        return dict(self.outputs)[self.logits]


@dataclass(frozen=True)
class DecoderFile:
    """An ONNX file whose inputs and outputs are its cache."""

    path: Path
    nbytes: int
    """Of the file, and of those that hold its weights."""
    record: Callable[[Sequence[Sequence[int]]], FileCall]
    """Runs calls that continue one text, and says what the last one takes and gives. Raises BackendFailed."""
