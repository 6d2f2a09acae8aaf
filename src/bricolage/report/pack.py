"""What is in a pack: a table for the terminal, and a page with the report of each target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table

from bricolage._version import __version__
from bricolage.plan.pack import Pack, PackEntry
from bricolage.report import words
from bricolage.report.pages import fill_template
from bricolage.report.tables import plain_table

_HEADS = ("Target", "Precision", "Threads", "Memory", "Ships", "Error", "Run", "Took", "From")
_KINDS = ("left", "left", "left", "right", "fold", "right", "right", "right")
"""Of the columns for the terminal, which leave out the last."""


def pack_table(found: Pack) -> Table:
    """A row for each target, in the order of the file."""
    rows = [_cells(entry)[: len(_KINDS)] for entry in found.entries]
    return plain_table(list(zip(_HEADS, _KINDS, strict=False)), rows)


def pack_page(name: str, entries: Sequence[PackEntry], pages: Mapping[str, str]) -> str:
    """One HTML page that loads nothing: the table, and each target's own report.

    Args:
        name: of the pack.
        entries: targets, in the order of the page.
        pages: HTML of each target's report, by its name.
    """
    rows = [(entry.target.name, _cells(entry, _interval(entry)), pages[entry.target.name]) for entry in entries]
    return fill_template("pack.html.j2", {}, name=name, heads=_HEADS, rows=rows, version=__version__)


def _interval(entry: PackEntry) -> str:
    """Of a predicted time; empty of one that was measured."""
    if entry.predicted_ms is None:
        return ""
    low, high = entry.predicted_ms
    return f" ({low:.3g}–{high:.3g})"


def _cells(entry: PackEntry, interval: str = "") -> list[str]:
    target = entry.target
    run = words.MISSING if entry.median_ms is None else f"{entry.median_ms:.3g} ms"
    return [
        target.name,
        entry.precision or target.precision,
        f"{entry.threads}, {target.isa}" if target.isa else str(entry.threads),
        words.size(entry.resident_bytes) if entry.resident_bytes else words.MISSING,
        entry.ships or words.MISSING,
        words.MISSING if entry.error is None else f"{entry.error:.1e}",
        run if entry.predicted_ms is None else f"~{run}{interval}",
        f"{entry.seconds:.0f} s",
        entry.parent or words.MISSING,
    ]
