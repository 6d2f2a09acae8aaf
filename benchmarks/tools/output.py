"""What benchmarks keep while they run."""

from __future__ import annotations

import json
from pathlib import Path


def keep(document: object, path: Path | None) -> None:
    """Writes a document as JSON, and the folder for it; nothing without a path. Called after each row, so that a run that is ended
    has what it measured."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=1), encoding="utf-8")
