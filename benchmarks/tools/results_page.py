"""docs/results.md and the picture of README, from the newest run of each benchmark; `python -m benchmarks.tools.results_page`.

`docs/log/data/index.toml` names the runs; a run is a CSV file beside it. Every row of a run is shown. With `--check` nothing is
written, and the exit code is 1 where the page or the picture is another than the data make.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[2]
DATA = ROOT / "docs" / "log" / "data"
PAGE = ROOT / "docs" / "results.md"
PICTURE = ROOT / "docs" / "figures" / "as-it-comes.svg"
Row = Mapping[str, str]


@dataclass(frozen=True)
class ResultTable:
    """One question and its newest runs."""

    title: str
    about: str
    command: str
    runs: Mapping[str, str]
    """Processor → name of its CSV file."""
    layout: str = "columns"
    columns: Sequence[Sequence[str]] = field(default_factory=list)
    """Heading and column of the file; `ratio+` is the ratio with its interval."""
    mean: str = ""
    """The column whose geometric mean over all rows ends the table."""


def read_rows(name: str) -> list[Row]:
    """The rows of a run."""
    with (DATA / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def geometric_mean(values: Sequence[float]) -> float:
    """Of positive numbers."""
    return math.exp(sum(map(math.log, values)) / len(values))


def format_ratio(row: Row) -> str:
    """A ratio with its interval; bold where the interval lies above 1."""
    if not row["low"]:
        return row["ratio"]
    low, high = float(row["low"]), float(row["high"])
    ratio = f"{float(row['ratio']):.2f}"
    return f"{f'**{ratio}**' if low > 1 else ratio} [{low:.2f}, {high:.2f}]"


def _markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [headings, ["---"] * len(headings), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def untouched_table(table: ResultTable) -> list[str]:
    """Networks with what ships, call after call (steady) and after pauses (sparse)."""
    (run,) = table.runs.values()
    rows = read_rows(run)
    sparse = {row["network"]: row for row in rows if row["pattern"] == "sparse"}
    steady = [row for row in rows if row["pattern"] == "steady"]
    cells = [
        [
            row["network"],
            f"{row['other']}, {row['other_ms']}",
            f"{row['ships']}, {row['ms']}",
            format_ratio(row),
            format_ratio(sparse[row["network"]]),
        ]
        for row in steady
    ]
    means = [geometric_mean([float(row["ratio"]) for row in kind]) for kind in (steady, list(sparse.values()))]
    cells.append(["geometric mean", "", "", *(f"{mean:.2f}" for mean in means)])
    return _markdown(["network", "best tool, ms", "ships, ms", "steady", "sparse"], cells)


def race_table(table: ResultTable) -> list[str]:
    """Networks with one ratio for each run."""
    runs = {name: {row["network"]: row for row in read_rows(file)} for name, file in table.runs.items()}
    networks = list(next(iter(runs.values())))
    cells = []
    for network in networks:
        line = [network]
        for rows in runs.values():
            row = rows[network]
            line += [row["ships"], format_ratio(row)]
        cells.append(line)
    means: list[str] = []
    for rows in runs.values():
        means += ["", f"{geometric_mean([float(row['ratio']) for row in rows.values()]):.2f}"]
    headings = ["network"]
    for name in runs:
        headings += [f"ships ({name})", "ratio"]
    return _markdown(headings, [*cells, ["geometric mean", *means]])


def column_table(table: ResultTable) -> list[str]:
    """The columns that are asked for."""
    (run,) = table.runs.values()
    rows = read_rows(run)
    cells = [[format_ratio(row) if name == "ratio+" else row[name] for _, name in table.columns] for row in rows]
    if table.mean:
        mean = f"{geometric_mean([float(row[table.mean]) for row in rows]):.2f}"
        last = [mean if name.removesuffix("+") == table.mean else "" for _, name in table.columns]
        cells.append(["geometric mean", *last[1:]])
    return _markdown([heading for heading, _ in table.columns], cells)


_LAYOUTS = {"untouched": untouched_table, "race": race_table, "columns": column_table}


def render_page(index: Mapping[str, Any]) -> str:
    """docs/results.md."""
    processors: Mapping[str, str] = index["processors"]
    lines = [
        "# Results",
        "",
        "The newest run of each benchmark, all its rows. A ratio above 1 means that bricolage is faster. Brackets hold 95 %",
        "intervals; a ratio is bold where its interval lies above 1. Answers are checked against float64 in the same run.",
        "Ratios hold within a run; times do not carry over to other machines. [Older runs, floors and failures](log/index.md),",
        "[protocols](design/evidence.md).",
        "",
        *(f"* *{name}*: {text}." for name, text in processors.items()),
    ]
    for entry in index["table"]:
        table = ResultTable(**entry)
        where = ", ".join(table.runs)
        lines += ["", f"## {table.title}", "", f"{table.about} `{table.command}`, on {where}.", ""]
        lines += _LAYOUTS[table.layout](table)
    return "\n".join(lines) + "\n"


def render_picture(rows: Sequence[Row], processor: str) -> str:
    """Bars: for each network the time of the best tool on the untouched file, ours as a share of it."""
    steady = sorted((row for row in rows if row["pattern"] == "steady"), key=lambda row: -float(row["ratio"]))
    bar, left, width = 22, 150, 480
    height = 64 + bar * len(steady) + 34
    style = (
        "text{font:12px system-ui,sans-serif;fill:#24292f}.t{font-weight:600;font-size:14px}.s{fill:#57606a;font-size:11px}"
        ".o{fill:#c9d1d9}.b{fill:#1f883d}.n{fill:#8c959f}.w{fill:#bc4c00}"
        "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.s{fill:#9198a1}.o{fill:#3d444d}.b{fill:#3fb950}.n{fill:#768390}.w{fill:#db6d28}}"
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {height}" role="img" '
        'aria-label="Time of bricolage as a share of the best other tool, network by network">',
        f"<style>{style}</style>",
        '<text class="t" x="8" y="22">Time of one call, the best other tool on the untouched file = 1</text>',
        '<text class="s" x="8" y="40">× is its time over ours; green: interval of × above 1, orange: below 1, grey: neither</text>',
    ]
    for number, row in enumerate(steady):
        y = 54 + number * bar
        share = 1 / float(row["ratio"])
        kind = "b" if float(row["low"]) > 1 else "w" if float(row["high"]) < 1 else "n"
        parts += [
            f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">{escape(row["network"])}</text>',
            f'<rect class="o" x="{left}" y="{y + 2}" width="{width}" height="{bar - 6}"/>',
            f'<rect class="{kind}" x="{left}" y="{y + 2}" width="{width * min(share, 1.08):.1f}" height="{bar - 6}"/>',
            f'<text x="{left + width + 44}" y="{y + 14}">{float(row["ratio"]):.2f} ×</text>',
        ]
    below = 54 + bar * len(steady) + 20
    parts.append(f'<text class="s" x="8" y="{below}">{escape(processor)}; call after call; all rows of one run</text>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> int:
    """Writes, or checks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    index = tomllib.loads((DATA / "index.toml").read_text(encoding="utf-8"))
    texts = {
        PAGE: render_page(index),
        PICTURE: render_picture(read_rows(index["picture"]["run"]), index["processors"][index["picture"]["processor"]]),
    }
    stale = [path for path, text in texts.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        if check:
            print(f"{path.relative_to(ROOT)} is not what the data make: python -m benchmarks.tools.results_page")
        else:
            path.write_text(texts[path], encoding="utf-8")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
