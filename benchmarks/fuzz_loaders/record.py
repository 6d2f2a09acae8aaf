"""How far a fuzzer has come, and what it found."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

_BATCH = 500
"""Inputs between two notes of how many were tried."""


@dataclass(frozen=True)
class Finding:
    """What a loader should not have done."""

    what: str
    trace: str
    data: bytes
    """The decisions that led there."""


class Record:
    """How many inputs were tried, and what was found, in a folder that outlives the process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / "tried.json"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "findings").mkdir(exist_ok=True)
        (folder / "corpus").mkdir(exist_ok=True)
        self._path = folder / "trying"
        self._path.touch()
        self._current = self._path.open("r+b", buffering=0)
        self.tried = json.loads(self._file.read_text(encoding="utf-8"))["tried"] if self._file.exists() else 0

    def trying(self, data: bytes) -> None:
        """Before an input: should the process end on it, `ended` finds it."""
        self._current.seek(0)
        self._current.write(len(data).to_bytes(4, "little") + data)

    def ended(self, how: str) -> None:
        """The process that tried the last input ended on it."""
        raw = self._path.read_bytes()
        data = raw[4 : 4 + int.from_bytes(raw[:4], "little")]
        self.keep(Finding(f"the process ended: {how} {hashlib.sha256(data).hexdigest()[:8]}", "", data))

    def count(self) -> None:
        """One more input."""
        self.tried += 1
        if self.tried % _BATCH == 0:
            self.note()

    def note(self) -> None:
        """Writes down how many there were."""
        partial = self._file.with_suffix(".partial")
        partial.write_text(json.dumps({"tried": self.tried}), encoding="utf-8")
        partial.replace(self._file)

    def keep(self, finding: Finding) -> None:
        """Writes down a finding, one of each kind."""
        last = finding.trace.strip().splitlines()[-1:] if finding.trace else []
        where = [line for line in finding.trace.splitlines() if line.lstrip().startswith("File ")][-1:]
        name = hashlib.sha256("".join([finding.what.split(" took")[0], *where]).encode()).hexdigest()[:12]
        target = self._folder / "findings" / name
        if not target.exists():
            target.write_bytes(finding.data)
            target.with_suffix(".txt").write_text(f"{finding.what}\n{finding.trace}", encoding="utf-8")
            print(f"finding {name}: {finding.what} {' '.join(last)[:200]}", flush=True)

    def findings(self) -> list[Path]:
        """Inputs that were found, and those on which a process ended."""
        return [path for path in sorted((self._folder / "findings").iterdir()) if path.suffix != ".txt"]
