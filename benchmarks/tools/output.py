"""What benchmarks keep while they run."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def keep(document: object, path: Path | None) -> None:
    """Writes a document as JSON, and the folder for it; nothing without a path. Called after each row, so that a run that is ended
    has what it measured."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=1), encoding="utf-8")


class ResultLines:
    """Results by name, each kept in a file as one line of JSON as soon as it is known: a run that was interrupted goes on where it
    stopped. Without a path they live as long as the process."""

    def __init__(self, path: Path | None) -> None:
        """Reads what the file has. A line that an interruption cut off is no result, and leaves the file."""
        self._path = path
        self.values: dict[str, list[Any]] = {}
        if path is None or not path.exists():
            return
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            path.write_bytes(whole)
        for line in whole.decode().splitlines():
            name, *values = json.loads(line)
            self.values[name] = values

    def add(self, name: str, *values: object) -> None:
        """Keeps a result; values are those of JSON."""
        self.values[name] = list(values)
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps([name, *values]) + "\n")

    def forget(self) -> None:
        """Begins again."""
        self.values.clear()
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def keep_table(rows: Sequence[Mapping[str, object]], path: Path | None) -> None:
    """Writes rows of the same columns, at least one, as docs/results.md reads them; nothing without a path."""
    if path is None:
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
