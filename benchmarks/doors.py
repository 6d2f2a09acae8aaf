"""Every system that bricolage unites: the command that reaches its method, what it claimed, what ours gives, and the ratio.

    python -m benchmarks.doors
    python -m benchmarks.doors --json
    python -m benchmarks.doors --write          # docs/reference/systems.md

`docs/log/data/doors.toml` has a row for each system. `ours` is either computed from a recorded run, a CSV file of that folder, or
a number that the cited section of the log must hold word by word: a row whose section lost it fails. A ratio above 1 says that
ours is better than what was claimed; it stands where both are the same quantity, or the row says what differs.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from benchmarks.tools.results_page import DATA, ROOT, geometric_mean, read_rows

ROWS = DATA / "doors.toml"
PAGE = ROOT / "docs" / "reference" / "systems.md"
_LOG = ROOT / "docs" / "log" / "2026-11"


@dataclass(frozen=True)
class Door:
    """A row of the table."""

    system: str
    """Names and venues."""
    command: str
    """Of bricolage, as a user types it; empty where there is none."""
    benchmark: str
    """What measures ours."""
    claim: str
    """In words, with what it was measured on."""
    claimed: float | None
    """The number of the claim; None where it has none that can be compared."""
    ours: float | None
    about: str
    """What the number of ours is, and on which processor where it is a time."""
    ratio: float | None
    source: str
    """File and section of the log, or the file of the run."""


def read_doors() -> list[Door]:
    """The rows, their ratios computed.

    Raises:
        ValueError: a section of the log does not hold the number that a row cites, or there is no such section or run.
    """
    rows = tomllib.loads(ROWS.read_text(encoding="utf-8"))["row"]
    return [_read_door(row) for row in rows]


def _read_door(row: Mapping[str, Any]) -> Door:
    ours, source = _find_figure(row)
    claimed, better = row.get("claimed"), row.get("better", "higher")
    return Door(
        row["system"],
        row.get("command", ""),
        row.get("benchmark", ""),
        row["claim"],
        claimed,
        ours,
        row["about"],
        _ratio(ours, claimed, better),
        source,
    )


def _find_figure(row: Mapping[str, Any]) -> tuple[float | None, str]:
    if "run" in row:
        names = re.compile(row.get("rows", ".*"))
        values = [float(line[row["column"]]) for line in read_rows(row["run"]) if names.fullmatch(line["network"])]
        if not values:
            raise ValueError(f"{row['system']}: the run {row['run']} has no such rows")
        return round(geometric_mean(values), 3), f"data/{row['run']}"
    if "log" not in row:
        return None, ""
    page, _, anchor = row["log"].partition("#")
    text = _section((_LOG / page).read_text(encoding="utf-8"), anchor)
    if text is None:
        raise ValueError(f"{row['system']}: {page} has no section '{anchor}'")
    figure = str(row["ours"])
    if not re.search(rf"(?<![\d.,]){re.escape(figure)}(?![\d]|[.,]\d)", text):
        raise ValueError(f"{row['system']}: {row['log']} does not say {figure}")
    return float(figure.replace(",", "")), f"2026-11/{row['log']}"


def _section(text: str, anchor: str) -> str | None:
    """What stands under a heading, down to the next one that is no deeper; None where there is none."""
    if not anchor:
        return text
    lines = text.split("\n")
    for start, line in enumerate(lines):
        if line.startswith("#") and _slug(line) == anchor:
            depth = len(line) - len(line.lstrip("#"))
            ends = (n for n in range(start + 1, len(lines)) if re.match(rf"#{{1,{depth}}} ", lines[n]))
            return "\n".join(lines[start : next(ends, len(lines))])
    return None


def _slug(heading: str) -> str:
    """A heading's anchor, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lstrip("#").strip().lower()).replace(" ", "-")


def _ratio(ours: float | None, claimed: float | None, better: Literal["higher", "lower", "none"]) -> float | None:
    if ours is None or claimed is None or better == "none":
        return None
    first, second = (ours, claimed) if better == "higher" else (claimed, ours)
    return round(first / second, 3) if second else math.inf


def render_page(doors: list[Door]) -> str:
    """docs/reference/systems.md."""
    lines = [
        "# Systems and their methods",
        "",
        "bricolage unites methods of these systems. Each row names the command that reaches the method, what the system claimed,",
        "and what the method gives here. `python -m benchmarks.doors --write` makes this page.",
        "The ratio compares both numbers; above 1, ours is better. It is empty where they are different quantities.",
        "",
        "| system | command | its claim | here | ratio | source |",
        "|---|---|---|---|---:|---|",
    ]
    for door in doors:
        command = f"`{door.command}`" if door.command else "-"
        ratio = "" if door.ratio is None else f"{door.ratio:.2f}"
        link = f"[log](../log/{door.source})" if door.source else ""
        lines.append(f"| {door.system} | {command} | {door.claim} | {door.about} | {ratio} | {link} |")
    return "\n".join([*lines, ""])


def main() -> int:
    """Prints or writes the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.doors", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    arguments = parser.parse_args()
    doors = read_doors()
    if arguments.json:
        print(json.dumps([asdict(door) for door in doors], indent=1))
    elif arguments.write:
        PAGE.write_text(render_page(doors), encoding="utf-8")
    else:
        for door in doors:
            ratio = "" if door.ratio is None else f"{door.ratio:.2f}"
            print(f"{door.system:44} {door.command:34} {door.claimed!s:>10} {door.ours!s:>10} {ratio:>7}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
