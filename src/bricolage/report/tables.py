"""Results as plain text tables. They fit 80 columns; colour only on a terminal, and never where NO_COLOR is set."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bricolage import errors
from bricolage.base.options import Options
from bricolage.plan.plan import Bucket, Plan
from bricolage.plan.race_outcome import Contestant
from bricolage.report import agenda_rows, headline, words

MOST_ROWS = 8
"""Contestants that are shown by default."""
WIDE = 110
"""From this many columns on, reasons stand in the table; below, under it."""


def plain_table(columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[str | Text]], title: str = "") -> Table:
    """A table without vertical lines. `columns` are (heading, "left" | "right" | "fold"); "fold" may wrap."""
    table = Table(
        box=None, title=title or None, title_justify="left", title_style="bold", pad_edge=False, padding=(0, 2, 0, 0)
    )
    for heading, kind in columns:
        fold = kind == "fold"
        table.add_column(heading, justify="right" if kind == "right" else "left", no_wrap=not fold, overflow="fold")
    for row in rows:
        table.add_row(*(plain_text(cell) if isinstance(cell, str) else cell for cell in row))
    return table


def plain_text(text: str, style: str = "") -> Text:
    """Text of the model's or the user's as it is: no markup, no control characters that a terminal would obey."""
    return Text(errors.plain(text), style)


def result(plan: Plan, width: int, ships: bool = True) -> RenderableType:
    """Header, then contestants and verdict of every bucket. Without `ships` it is a mere comparison."""
    parts: list[RenderableType] = [header(plan)]
    for bucket in plan.buckets:
        parts += [Text(""), contestants(bucket, width), Text(""), verdict_text(bucket, ships)]
        parts += map(plain_text, agenda_rows.sentences(bucket))
        parts += [plain_text(busy)] if (busy := words.disturbance(bucket)) else []
    return Group(*parts)


def decision(bucket: Bucket, width: int, *, verbose: bool = False) -> RenderableType:
    """One bucket's verdict and contestants, what was unusual about the inputs and the machine, and what a wider tolerance would
    take. Without `verbose` only the fastest contestants, and what was left out in a line."""
    table = contestants(bucket, width, most=None if verbose else MOST_ROWS)
    parts: list[RenderableType] = [verdict_text(bucket), Text(""), table]
    notes = [*words.inputs(bucket), *words.reference_lines(bucket)]
    notes += [
        line for line in (words.other_pattern(bucket), words.accuracy(bucket), *words.quantised_lines(bucket)) if line
    ]
    notes += words.dropped_for_accuracy(bucket)
    notes += agenda_rows.sentences(bucket) if verbose else agenda_rows.short_sentences(bucket)
    notes += [line for line in (words.disturbance(bucket), words.provisional(bucket)) if line]
    return Group(*parts, Text(""), *map(plain_text, notes), Text(""))


def stages(bucket: Bucket) -> RenderableType:
    """Where the time went, stage by stage, and how much of the budget was kept free for each."""
    heads = [("Stage", "left"), ("Seconds", "right"), ("Kept free", "right")]
    rows = [
        [name, f"{seconds:.1f}", f"{share:.1f}" if (share := bucket.record.shares.get(name, 0.0)) else words.MISSING]
        for name, seconds in bucket.record.seconds.items()
    ]
    rows.append(["all", f"{sum(bucket.record.seconds.values()):.1f}", ""])
    return plain_table(heads, rows, title=words.format_shape(bucket.program.sizes))


def short_header(plan: Plan) -> RenderableType:
    """What was measured, and on what, in a line."""
    options = plan.provenance.options
    threads = words.count(options.threads, "thread")
    constants = f"; constant {', '.join(map(str, plan.constants))}" if plan.constants else ""
    text = f"{plan.model}: {_precision(options)}, {options.effort}, {threads}; {plan.provenance.hardware}{constants}"
    return plain_text(text, "dim")


def _precision(options: Options) -> str:
    return options.precision + ("" if options.tolerance is None else f", tolerance {options.tolerance:g}")


def header(plan: Plan) -> RenderableType:
    """What was measured, and on what."""
    origin = plan.provenance
    versions = ", ".join(f"{name} {version}" for name, version in origin.versions.items())
    lines = (
        ("model", plan.model),
        ("hardware", f"{origin.hardware}; {words.count(origin.options.threads, 'thread')} used"),
        ("versions", f"bricolage {origin.bricolage}, {versions}" if versions else f"bricolage {origin.bricolage}"),
        ("precision", f"{_precision(origin.options)}; effort {origin.options.effort}, seed {origin.options.seed}"),
        *((("constant", ", ".join(map(str, plan.constants))),) if plan.constants else ()),
    )
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in lines:
        grid.add_row(name, plain_text(value))
    return grid


def contestants(bucket: Bucket, width: int, most: int | None = None) -> RenderableType:
    """Contestants with their time, interval, speed-up over the best other tool and over the best single configuration, error, match
    and reason: all of them, or the `most` that `words.rank_contestants` has first; what ships is always among them."""
    wide = width >= WIDE
    predicted = words.is_predicted(bucket)
    heads = [("Contestant", "fold"), ("Predicted" if predicted else "Median", "right")]
    heads += [("From-to" if predicted else "95 % interval", "right")]
    heads += (
        [(words.other_title(bucket).replace(" ", "\n", 1), "right")] if wide and bucket.race.pattern is not None else []
    )
    heads += [("Over\ntool", "right"), ("Over\nsingle", "right")]
    heads += [("Error", "right"), ("Match", "left")] + ([("Reason", "fold")] if wide else [])
    everyone = words.rank_contestants(bucket)
    ranked = everyone[:most] if most is not None else everyone
    ranked += [contestant for contestant in everyone[len(ranked) :] if contestant.name == bucket.race.chosen]
    rows = [_row(bucket, contestant, wide) for contestant in ranked]
    table = plain_table(heads, rows, title=words.format_shape(bucket.program.sizes))
    hidden = len(everyone) - len(ranked)
    parts: list[RenderableType] = [table]
    if hidden:
        parts.append(plain_text(f"  and {hidden} slower or refused ones (-v lists them)", "dim"))
    notes = [c for c in ranked if c.reason] if not wide else []
    if notes:
        lines = [plain_text(f"{c.name}: ", "bold").append_text(plain_text(c.reason)) for c in notes]
        parts += [Text(""), *(Padding(line, (0, 0, 0, 2)) for line in lines)]
    return Group(*parts) if len(parts) > 1 else table


def _row(bucket: Bucket, contestant: Contestant, wide: bool) -> list[str | Text]:
    ships = contestant.name == bucket.race.chosen
    style = "bold green" if ships else "" if contestant.accepted else "dim"
    over = (headline.over_other(bucket, contestant), headline.over_single(bucket, contestant))
    match = words.match(contestant)
    cells: list[str | Text] = [
        plain_text(("> " if ships else "  ") + contestant.name, style),
        Text(words.shown_time(contestant), style),
        words.shown_interval(contestant),
        *([words.milliseconds(contestant.other_pattern_ms)] if wide and bucket.race.pattern is not None else []),
        *(words.MISSING if gain is None else gain.short for gain in over),
        words.error(words.shown_error(contestant)),
        Text(match, {"yes": "green", "no": "red"}.get(match, "")),
    ]
    return [*cells, contestant.reason] if wide else cells


def verdict_text(bucket: Bucket, ships: bool = True) -> Text:
    """The result in two figures."""
    sentence = headline.verdict(bucket) if ships else headline.race_standing(bucket)
    line = plain_text(sentence, style="bold green" if headline.good_news(bucket) else "bold")
    if bucket.record.interrupted:
        line.append(
            "\ninterrupted: this is the best plan found until then; the same command goes on from there", "bold"
        )
    return line


def render_text(renderable: RenderableType, width: int = 100) -> str:
    """As plain text without colours."""
    console = Console(width=width, color_system=None, force_terminal=False, highlight=False)
    with console.capture() as captured:
        console.print(renderable)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"
