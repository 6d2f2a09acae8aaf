"""What the benchmark of the agenda makes of its rows: the table, and the record that decisions leave things out by."""

from __future__ import annotations

import dataclasses

from benchmarks.agenda import Row, collect_log_lines, format_derived, table
from bricolage.costs.decision_log import VERSION, Attempt, Compiling, LogLine, read_lines, write_line
from bricolage.costs.models.track_record import TrackRecord, derive_record
from bricolage.plan.agenda_record import AgendaItem, ItemOutcome


def item(name: str, seconds: float) -> AgendaItem:
    outcome: ItemOutcome = "measured" if seconds else "unlikely"
    return AgendaItem(name, outcome, "so", 10.0, None, 0.05, 0.3, seconds)


def row(name: str, *everything: AgendaItem, lost: bool = False) -> Row:
    return Row(
        workload=name,
        kind="matrix",
        processor="here",
        operators=30,
        ships="quick f32",
        ms=2.0,
        seconds=20.0,
        everything_ships="other" if lost else "quick f32",
        everything_ms=1.5 if lost else 2.0,
        everything_s=90.0,
        regret=0.25 if lost else 0.0,
        regret_ci=(0.2, 0.3) if lost else (0.0, 0.0),
        agenda=(item("whole model on slow f32", 0.0),),
        everything=everything,
    )


def test_what_decisions_saw_and_how_long_backends_compiled_become_lines_of_the_log() -> None:
    known = TrackRecord((), {"slow": Compiling(4.0, 0.2), "never": Compiling(1.0, 0.1)})
    attempt = Attempt("mixtures", "key of one", "matrix", "quick", -0.2, 9.0, "here", None, 0.05, None, "one")
    rows = [
        dataclasses.replace(row("one", item("whole model on slow f32", 5.0)), log=(LogLine(VERSION, attempt=attempt),)),
        row("two", item("whole model on slow f32", 10.0)),
        row("three", item("whole model on slow f32", 2.0), item("kernel tuning", 0.0)),
    ]
    lines = collect_log_lines(rows, known)
    assert derive_record(lines) == TrackRecord(
        (), {"slow": Compiling(2.0, 0.1), "never": Compiling(1.0, 0.1)}, (attempt,)
    )
    assert list(read_lines(map(write_line, lines))) == lines


def test_what_decisions_read_is_derived_from_the_log() -> None:
    attempts = [Attempt("mixtures", f"n{n}", "matrix", "native", 0.1 * (n == 0)) for n in range(4)]
    again = [Attempt("mixtures", "n0", "matrix", "native", 0.1)] * 9
    text = format_derived(TrackRecord(attempts=(*attempts, *again, Attempt("schedules", "n0", "other", "native", 0.0))))
    assert text.splitlines()[2:] == [
        "| mixtures | native | matrix | 1 | 4 | 30% |",
        "| schedules | native | other | 0 | 1 | unknown |",
    ]


def test_the_table_says_what_was_lost() -> None:
    text = table([row("one"), row("two", lost=True)])
    assert "would have won in 1 of 2, by 25.0% at most" in text and "20 s in the middle, 20 s at most" in text
    assert text.splitlines()[2].startswith("| one | matrix | quick f32 | 2 | 20 |")
    assert row("two", lost=True).lost and not row("one").lost
