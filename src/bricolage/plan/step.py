"""A step of a program: a region file and who runs it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bricolage.work.implementation import Implementation


@dataclass(frozen=True)
class Step:
    """The region model at `path`, to be compiled by an implementation."""

    implementation: Implementation
    path: Path
