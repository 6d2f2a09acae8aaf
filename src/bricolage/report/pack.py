"""What is in a pack: a table for the terminal, and a page with the report of each target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table

from bricolage._version import __version__
from bricolage.plan.pack import Pack, PackEntry
from bricolage.report import words
from bricolage.report.pages import fill_template
from bricolage.report.tables import plain_table

_HEADS = [("Target", "left"), ("Precision", "left"), ("Threads", "right"), ("ISA", "left"),
          ("Memory", "right"), ("From", "left"), ("Run", "right"), ("Took", "right")]  # fmt: skip


def pack_table(found: Pack) -> Table:
    """A row for each target, in the order of the file."""
    return plain_table(_HEADS, [_cells(entry) for entry in found.entries])


def pack_page(name: str, entries: Sequence[PackEntry], pages: Mapping[str, str]) -> str:
    """One HTML page that loads nothing: the table, and each target's own report.

    Args:
        name: of the pack.
        entries: targets, in the order of the page.
        pages: HTML of each target's report, by its name.
    """
    rows = [(entry.target.name, _cells(entry), pages[entry.target.name]) for entry in entries]
    return fill_template(
        "pack.html.j2", {}, name=name, heads=[head for head, _ in _HEADS], rows=rows, version=__version__
    )


def _cells(entry: PackEntry) -> list[str]:
    target = entry.target
    run = words.MISSING if entry.median_ms is None else f"{entry.median_ms:.3g} ms"
    if entry.predicted_ms is not None:
        low, high = entry.predicted_ms
        run = f"~{run} ({low:.3g}–{high:.3g})"
    held = words.size(entry.resident_bytes) if entry.resident_bytes else words.MISSING
    return [
        target.name, target.precision, str(entry.threads), target.isa or "all", held, entry.parent or words.MISSING, run,
        f"{entry.seconds:.0f} s",
    ]  # fmt: skip
