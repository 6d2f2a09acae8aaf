"""What is in a pack, as a table for the terminal."""

from __future__ import annotations

from rich.table import Table

from bricolage.plan.pack import Pack, PackEntry
from bricolage.report import words
from bricolage.report.tables import plain_table


def table(found: Pack) -> Table:
    """A row for each target, in the order of the file."""
    heads = [("Target", "left"), ("Precision", "left"), ("Threads", "right"), ("ISA", "left"),
             ("Memory", "right"), ("From", "left"), ("Run", "right"), ("Took", "right")]  # fmt: skip
    return plain_table(heads, [_cells(entry) for entry in found.entries])


def _cells(entry: PackEntry) -> list[str]:
    target = entry.target
    run = words.MISSING if entry.median_ms is None else f"{entry.median_ms:.3g} ms"
    held = words.size(entry.resident_bytes) if entry.resident_bytes else words.MISSING
    return [
        target.name, target.precision, str(entry.threads), target.isa or "all", held, entry.parent or words.MISSING, run,
        f"{entry.seconds:.0f} s",
    ]  # fmt: skip
