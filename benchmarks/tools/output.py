"""What benchmarks keep while they run."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path


def keep(document: object, path: Path | None) -> None:
    """Writes a document as JSON, and the folder for it; nothing without a path. Called after each row, so that a run that is ended
    has what it measured."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=1), encoding="utf-8")


def keep_table(rows: Sequence[Mapping[str, object]], path: Path | None) -> None:
    """Writes rows of the same columns, at least one, as docs/results.md reads them; nothing without a path."""
    if path is None:
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
