"""`Step`: one region of a plan as it is compiled: which backend, which variant, which file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Step:
    """A region model on disk and who runs it. Steps are wired by tensor names, which a region keeps from its graph."""

    backend: str
    variant: str
    path: Path
