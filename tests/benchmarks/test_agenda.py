"""What the benchmark of the agenda makes of its rows: the table, and the record that decisions leave things out by."""

from __future__ import annotations

from benchmarks.agenda import Row, recorded, table, written
from bricolage.codec import decode, parse
from bricolage.perf.track_record import Attempt, Compiling, NetworkTimes, TrackRecord
from bricolage.plan.agenda import AgendaItem


def item(name: str, seconds: float, *, expected: float = 10.0, most: float = 0.3, gained: float = 0.0) -> AgendaItem:
    return AgendaItem(name, "measured" if seconds else "left out", most, "so", expected, seconds, gained)


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
        agenda=(item("whole model on slow f32", 0.0, most=0.01),),
        everything=everything,
        times={"quick f32": 2.0, "slow f32": 9.0},
        incumbent="quick",
    )


def test_times_attempts_and_compilations_become_the_record() -> None:
    known = TrackRecord(
        (NetworkTimes("one", "matrix", "here", {"old f32": 1.0}), NetworkTimes("one", "matrix", "elsewhere", {})),
        {"slow": Compiling(4.0, 0.2), "never": Compiling(1.0, 0.1)},
    )
    rows = [
        row("one", item("whole model on slow f32", 5.0), item("placements", 9.0, gained=0.2)),
        row("two", item("whole model on slow f32", 10.0), item("rewritten graph", 3.0, gained=0.25), lost=True),
        row("three", item("whole model on slow f32", 2.0), item("kernel tuning", 0.0)),
    ]
    found = recorded(rows, known)
    assert {(one.network, one.processor) for one in found.networks} == {
        ("one", "elsewhere"), ("one", "here"), ("two", "here"), ("three", "here")
    }  # fmt: skip
    assert next(one for one in found.networks if one.processor == "here").ms == {"quick f32": 2.0, "slow f32": 9.0}
    assert list(found.attempts) == [
        Attempt("mixtures", "one", "matrix", "quick", 0.0),  # what it gained was within the noise of the race
        Attempt("rewritten graphs", "two", "matrix", "quick", 0.25),
    ]
    assert found.compiling == {"slow": Compiling(2.0, 0.1), "never": Compiling(1.0, 0.1)}
    assert decode(TrackRecord, parse(written(found).encode()), "record") == found
    assert recorded(rows, found) == found, "a file that is recorded twice counts once"


def test_the_table_says_what_was_lost() -> None:
    text = table([row("one"), row("two", lost=True)])
    assert "would have won in 1 of 2, by 25.0% at most" in text and "20 s in the middle, 20 s at most" in text
    assert text.splitlines()[2].startswith("| one | matrix | quick f32 | 2 | 20 |")
    assert row("two", lost=True).lost and not row("one").lost
