"""The log of decisions: lines come back as they were, and each that is unusable says why and costs no other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bricolage.costs.database import Database
from bricolage.costs.decision_log import (
    VERSION,
    Attempt,
    Compiling,
    LogLine,
    NetworkTimes,
    UnusableLine,
    read_lines,
    write_line,
)
from bricolage.graph.network_kind import NetworkKind


def attempt(network: str = "k", kind: NetworkKind = "matrix", gain: float = 0.1) -> LogLine:
    return LogLine(
        VERSION, attempt=Attempt("mixtures", network, kind, "native", gain, 12.5, "a processor", (0.0, 0.2), 0.3)
    )


LINES = (
    attempt(),
    LogLine(VERSION, times=NetworkTimes("k", "matrix", "a processor", {"native f32": 1.5}, "a network")),
    LogLine(VERSION, compiling=("xla", Compiling(2.0, 0.1))),
)


def test_lines_come_back_as_they_were() -> None:
    assert list(read_lines(map(write_line, LINES))) == list(LINES)


@given(st.integers(1, len(write_line(LINES[0])) - 1))
def test_a_line_that_is_cut_anywhere_costs_itself_alone(end: int) -> None:
    texts = [write_line(LINES[1]), write_line(LINES[0])[:end], write_line(LINES[2])]
    first, cut, last = read_lines(texts)
    assert (first, last) == (LINES[1], LINES[2])
    assert isinstance(cut, UnusableLine) and cut.number == 2 and cut.reason


def test_a_line_of_another_version_is_told() -> None:
    later = json.loads(write_line(attempt())) | {"version": VERSION + 1, "news": 1}
    (line,) = read_lines([json.dumps(later)])
    assert line == UnusableLine(1, f"it is of version {VERSION + 1}, and this bricolage reads {VERSION}")


def test_a_key_that_another_graph_has_is_told() -> None:
    first, second = read_lines(map(write_line, (attempt(), attempt(kind="recurrent"))))
    assert first == attempt()
    assert isinstance(second, UnusableLine) and "recurrent network whose key is that of another graph" in second.reason
    (alone,) = read_lines([write_line(attempt())], {"k": "convolutional"})
    assert isinstance(alone, UnusableLine)


@pytest.mark.parametrize("content", ["[]", "7", "{}", '{"version": true}', '{"version": 1, "attempt": {"way": 3}}'])
def test_what_is_no_line_is_told(content: str) -> None:
    (line,) = read_lines([content])
    assert isinstance(line, UnusableLine)


def test_the_database_keeps_each_line_once_and_in_order(tmp_path: Path) -> None:
    with Database(tmp_path / "costs.sqlite") as database:
        database.add_decision([*LINES, attempt()])
        database.add_decision([attempt(gain=0.2)])
        assert list(database.decision_log()) == [*LINES, attempt(gain=0.2)]
        database.prune(older_than_s=1000.0)
        assert len(list(database.decision_log())) == 4
        database.prune(older_than_s=-1000.0)
        assert not list(database.decision_log())


def test_it_travels_with_costs(tmp_path: Path) -> None:
    with Database(tmp_path / "one.sqlite") as one, Database(tmp_path / "other.sqlite") as other:
        one.add_decision(LINES)
        other.add_decision([LINES[0]])
        exported = list(one.export_lines())
        imported = other.import_lines([*exported, exported[0][:40]])
        assert (imported.added, imported.kept, len(imported.bad)) == (2, 1, 1)
        assert sorted(map(write_line, other.decision_log())) == sorted(map(write_line, LINES))
        wrong = json.dumps({"decision": json.loads(write_line(attempt(kind="other")))})
        later = json.dumps({"decision": json.loads(write_line(attempt())) | {"version": 9}})
        reasons = [reason for _, reason in other.import_lines([wrong, later]).bad]
        assert "another graph" in reasons[0] and "version 9" in reasons[1]
