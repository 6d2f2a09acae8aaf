from __future__ import annotations

import json
import logging
import math
import os
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bricolage.measure.database import FILE, Database
from bricolage.measure.entries import EXPIRY_S, OUTCOMES, UNSTORED, Cost, CostKey
from bricolage.measure.statistics import Latency
from bricolage.verify.compare import Deviation

KEY = CostKey("region", "backend", "1.0", "f32", "machine", 2, False)
OK = Cost("ok", Latency(1.0, 0.9, 1.2, 9), None, 0.5)


def test_a_cost_comes_back_as_it_was(own_cache: Path) -> None:
    with Database() as database:
        assert database.path == own_cache / FILE
        assert database.get(KEY) is None
        database.put(KEY, OK)
        assert database.get(KEY) == OK
    with Database() as database:
        assert database.get(KEY) == OK


def test_everything_in_the_key_tells_costs_apart() -> None:
    others = [
        replace(KEY, region="r"),
        replace(KEY, backend="b"),
        replace(KEY, version="2"),
        replace(KEY, config="bf16"),
        replace(KEY, device="d"),
        replace(KEY, threads=1),
        replace(KEY, alone=True),
        replace(KEY, schema=KEY.schema + 1),
    ]
    with Database() as database:
        database.put(KEY, OK)
        assert [database.get(other) for other in others] == [None] * len(others)


@pytest.mark.parametrize("outcome", [one for one in OUTCOMES if one not in ("ok", *UNSTORED)])
def test_failures_keep_their_reason_and_bad_luck_expires(outcome: str) -> None:
    old = Cost(outcome, None, None, 3.0, "because", date=time.time() - EXPIRY_S - 1)  # type: ignore[arg-type]
    with Database() as database:
        database.put(KEY, replace(old, date=time.time()))
        found = database.get(KEY)
        assert found is not None and (found.outcome, found.reason) == (outcome, "because")
        database.put(KEY, old)
        assert (database.get(KEY) is None) == (outcome != "refused")
        database.put(KEY, replace(old, date=time.time() + 7200))
        assert (database.get(KEY) is None) == (outcome != "refused"), "the clock was wrong then, or is now"


@pytest.mark.parametrize("outcome", sorted(UNSTORED))
def test_what_says_nothing_of_the_candidate_is_not_kept(outcome: str) -> None:
    with Database() as database:
        database.put(KEY, Cost(outcome, None, None, 3.0, "because"))  # type: ignore[arg-type]
        assert database.get(KEY) is None and not list(database.entries())


def test_accuracy_is_kept_for_one_set_of_weights_and_inputs() -> None:
    with Database() as database:
        assert database.deviation(KEY, "these") is None
        database.put_deviation(KEY, "these", Deviation(math.inf, math.inf))
        database.put_deviation(KEY, "others", Deviation(1e-7, 0.0))
        assert database.deviation(KEY, "these") == Deviation(math.inf, math.inf)
        assert database.deviation(KEY, "others") == Deviation(1e-7, 0.0)
        assert database.deviation(replace(KEY, config="bf16"), "these") is None
        assert database.get(KEY) is None, "an error says nothing of time"
        database.put(KEY, replace(OK, error=0.5))
        assert database.get(KEY) == OK, "nor a time of errors"
        database.put(replace(KEY, region="r"), Cost("wrong", None, 0.5, 0.0, "far off"))
        assert database.get(replace(KEY, region="r")) is None
        assert all("error" not in line.replace('"error": null', "") for line in database.export_lines())


def test_listing_filters() -> None:
    with Database() as database:
        database.put(KEY, OK)
        database.put(replace(KEY, backend="b"), Cost("refused", reason="no"))
        assert len(list(database.entries())) == 2
        assert [entry.key.backend for entry in database.entries(failures=True)] == ["b"]
        assert [entry.cost for entry in database.entries(backend="backend")] == [OK]
        assert not list(database.entries(region="elsewhere"))


def test_pruning_takes_what_was_asked_for_and_the_expired() -> None:
    now = replace(OK, date=time.time())  # OK is as old as this process, which may have run other tests for minutes
    with Database() as database:
        for number in range(4):
            database.put(replace(KEY, region=f"{number}"), now)
        database.put(replace(KEY, region="old"), replace(OK, date=time.time() - 1000))
        database.put(replace(KEY, region="v2", version="2.0"), now)
        database.put(replace(KEY, region="h2", device="far"), now)
        database.put(replace(KEY, region="crash"), Cost("crashed", date=time.time() - EXPIRY_S - 1))
        database.put(replace(KEY, region="schema", schema=KEY.schema - 1), now)
        assert database.prune() == 2
        assert database.prune(older_than_s=500) == 1
        assert database.prune(versions={"backend": "1.0", "other": "9"}) == 1
        assert database.prune(device="machine") == 1
        database.put(replace(KEY, region="refused"), Cost("refused"))
        assert database.prune() == 0
        assert database.prune(failures=True) == 1
        assert len(list(database.entries())) == 4


latencies = st.lists(st.floats(1e-5, 1e5), min_size=1, max_size=20).map(Latency.of)
texts = st.text(st.characters(exclude_categories=["C"]), min_size=1, max_size=20)
keys = st.builds(
    CostKey, texts, texts, texts, texts, texts, st.integers(1, 512), st.booleans(), schema=st.just(KEY.schema)
)
costs = st.one_of(
    st.builds(
        Cost,
        st.just("ok"),
        latencies,
        st.none(),
        st.floats(0, 99),
        st.just(""),
        st.booleans(),
        st.floats(1, 2e9),
        disturbed=st.booleans(),
    ),
    st.builds(
        Cost,
        st.just("refused"),
        st.none(),
        st.none(),
        st.floats(0, 99),
        texts,
        date=st.floats(1, 2e9),
    ),
)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.dictionaries(keys, costs, min_size=1, max_size=8))
def test_export_and_import_are_inverse(tmp_path: Path, entries: dict[CostKey, Cost]) -> None:
    for name in ("one", "two"):
        (tmp_path / name).unlink(missing_ok=True)
    with Database(tmp_path / "one") as one, Database(tmp_path / "two") as two:
        for key, cost in entries.items():
            one.put(key, cost)
        lines = list(one.export_lines())
        done = two.import_lines(lines)
        assert (done.added, done.improved, done.kept, done.bad) == (len(entries), 0, 0, ())
        assert list(two.export_lines()) == lines
        assert {key: two.get(key) for key in entries} == entries
        assert two.import_lines(lines).kept == len(entries)


def test_import_keeps_the_better_sampled_and_reports_bad_lines() -> None:
    with Database() as database:
        database.put(KEY, OK)
        (line,) = database.export_lines()
        better = json.loads(line)
        better["cost"]["latency"] |= {"samples": 30, "median_ms": 1.1}
        worse = json.loads(line)
        worse["cost"]["latency"]["samples"] = 2
        broken = [dict(json.loads(line)) for _ in range(4)]
        broken[0]["cost"] = dict(broken[0]["cost"], outcome="splendid")
        broken[1]["key"] = dict(broken[1]["key"], threads=-1)
        del broken[2]["key"]["region"]
        broken[3]["cost"] = dict(broken[3]["cost"], latency={**better["cost"]["latency"], "low_ms": 2.0})
        lines = [json.dumps(worse), json.dumps(better), "", "not json", "[]", "{}", *map(json.dumps, broken)]
        done = database.import_lines(lines)
        assert (done.added, done.improved, done.kept) == (0, 1, 1)
        assert [number for number, _ in done.bad] == [4, 5, 6, 7, 8, 9, 10]
        assert "splendid" in done.bad[3][1] and "threads" in done.bad[4][1] and "region" in done.bad[5][1]
        found = database.get(KEY)
        assert found is not None and found.latency == Latency(1.1, 0.9, 1.2, 30)


def test_a_broken_file_is_moved_aside(own_cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    own_cache.mkdir()
    (own_cache / FILE).write_bytes(b"this is no database" * 1000)
    with caplog.at_level(logging.WARNING), Database() as database:
        database.put(KEY, OK)
        assert database.get(KEY) == OK
    assert "broken" in caplog.text
    assert [path.read_bytes()[:7] for path in own_cache.glob(f"{FILE}.corrupt-*")] == [b"this is"]


def test_damage_that_shows_later_is_survived_as_well(own_cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Database() as database:
        for number in range(500):
            database.put(replace(KEY, region=f"{number:05}" * 20), OK)
    with Database() as database:
        sqlite3.connect(own_cache / FILE).execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        data = bytearray((own_cache / FILE).read_bytes())
        data[4096:] = b"\xff" * (len(data) - 4096)
        (own_cache / FILE).write_bytes(data)
        database.put(KEY, OK)
        assert len(list(database.entries())) in (1, 501)
    with caplog.at_level(logging.WARNING), Database() as database:
        database.put(KEY, OK)
        assert database.get(KEY) == OK
    assert list(own_cache.glob(f"{FILE}.corrupt-*"))


def test_a_folder_that_cannot_be_written_costs_only_the_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    with caplog.at_level(logging.WARNING), Database(tmp_path / "file" / "costs.sqlite") as database:
        database.put(KEY, OK)
        assert database.get(KEY) == OK
    assert "this run only" in caplog.text


def test_races_and_boundaries_are_kept_under_any_key() -> None:
    with Database() as database:
        assert database.get_race("a") is None
        database.put_race("a", {"winner": ["x", 1.5]})
        database.put_race("a", {"winner": ["y", 2.5]})
        database.put_transfer("a", {"ms": 0.1})
        assert database.get_race("a") == {"winner": ["y", 2.5]}
        assert database.get_transfer("a") == {"ms": 0.1} and database.get_transfer("b") is None


WRITER = """
import sys
from dataclasses import replace
from bricolage.measure.database import Database
from tests.measure.test_database import KEY, OK
with Database() as database:
    for number in range(int(sys.argv[2])):
        database.put(replace(KEY, region=f"{sys.argv[1]} {number}"), OK)
        print(number, flush=True)
"""


def _writer(name: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, name, str(count)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )


def test_processes_share_the_file_and_a_killed_one_loses_nothing() -> None:
    writers = [_writer(name, 150) for name in "abc"]
    victim = _writer("victim", 10**9)
    assert victim.stdout is not None
    said = [victim.stdout.readline() for _ in range(60)]
    os.kill(victim.pid, signal.SIGKILL)
    said += victim.stdout.readlines()
    victim.wait()
    victim.stdout.close()
    for writer in writers:
        assert writer.stdout is not None
        assert len(writer.stdout.readlines()) == 150 and writer.wait() == 0
        writer.stdout.close()
    finished = sum(line.endswith("\n") for line in said)
    with Database() as database:
        regions = {entry.key.region for entry in database.entries()}
    assert {f"{name} {number}" for name in "abc" for number in range(150)} <= regions
    assert {f"victim {number}" for number in range(finished)} <= regions
