"""What was tried already: a line of JSON for each block of seeds, so that a run goes on where the last one ended."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Block:
    """Consecutive seeds and what came of them."""

    first: int
    count: int
    tested: int = 0
    """Compared with the reference."""
    refused: int = 0
    """Declined with a reason."""
    void: int = 0
    """Without a reference, or no valid model."""
    findings: list[str] = field(default_factory=list)
    """Folders, by name."""
    notes: Counter[str] = field(default_factory=Counter)
    """Reasons, and what was tried of what, counted."""

    def line(self) -> str:
        """As a line of JSON."""
        return json.dumps({**vars(self), "notes": dict(self.notes)})

    def add(self, other: Block) -> None:
        """Adds the figures of another block."""
        self.tested += other.tested
        self.refused += other.refused
        self.void += other.void
        self.findings += other.findings
        self.notes.update(other.notes)


class Ledger:
    """The blocks of one campaign in one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.total = Block(0, 0)
        self.next = 0
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    self._count(read(line))
                except (ValueError, TypeError):
                    continue  # cut short by the end of an earlier run

    def add(self, block: Block) -> None:
        """Keeps a block."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(block.line() + "\n")
        self._count(block)

    def _count(self, block: Block) -> None:
        self.total.add(block)
        self.next = max(self.next, block.first + block.count)


def read(line: str) -> Block:
    """A block from its line of JSON.

    Raises:
        ValueError, TypeError: it is none.
    """
    told = json.loads(line)
    return Block(**{**told, "notes": Counter(told["notes"])})


def words(blocks: Iterable[tuple[str, Block]]) -> str:
    """The figures of campaigns in one line."""
    return "; ".join(
        f"{name}: {b.tested} tested, {b.refused} refused, {b.void} void, {len(b.findings)} findings"
        for name, b in blocks
    )
