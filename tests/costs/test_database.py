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
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bricolage.costs.connection import VARIABLE
from bricolage.costs.database import FILE, IMPORTED, Database
from bricolage.costs.entries import (
    EXPIRY_S,
    OUTCOMES,
    UNSTORED,
    Cost,
    CostKey,
    Entry,
    TaskKey,
    TrialRecord,
    row_values,
)
from bricolage.costs.latency import Latency
from bricolage.costs.storage import postgresql, schema
from bricolage.costs.storage.sqlite import _Migrating
from bricolage.device.host import host
from bricolage.errors import BadOption, MissingLibrary, NewerCosts, UnreachableCosts
from bricolage.verify.compare import Deviation
from bricolage.work.config_space import TuningTask
from bricolage.work.implementation import Scalar
from bricolage.work.workload import OperatorWork, Workload
from tests.costs.postgresql_server import PostgresqlServer

KEY = CostKey("region", "backend", "1.0", "f32", "machine", 2, False)
OK = Cost("ok", Latency(1.0, 0.9, 1.2, 9), None, 0.5)


@pytest.fixture(params=["sqlite", "postgresql"])
def fresh(request: pytest.FixtureRequest, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Path | str]:
    """Empties the database that `Database()` opens, an SQLite file or a PostgreSQL database, and says where it is."""
    if request.param == "sqlite":

        def emptied() -> Path | str:
            for file in own_cache.glob(f"{FILE}*"):
                file.unlink()
            return own_cache / FILE

    else:
        server: PostgresqlServer = request.getfixturevalue("postgresql_server")
        monkeypatch.setenv(VARIABLE, server.url)
        emptied = server.emptied
    emptied()
    return emptied


@pytest.fixture
def both(fresh: Callable[[], Path | str]) -> None:
    """The test runs on an SQLite file and on a PostgreSQL database."""


def test_keys_are_as_they_have_been() -> None:
    """What was measured before is found again, and on other machines too."""
    key = CostKey("r", "native", "1", "f32", "9d67e25d93f3", 2, True, schema=5)
    assert key.digest() == "a9d504624de83ad24c44fce48d8d6d95"


def test_a_cost_comes_back_as_it_was(fresh: Callable[[], Path | str]) -> None:
    place = fresh()
    with Database() as database:
        assert database.place == str(place) or (database.place + str(place)).count("postgresql://") == 2
        assert database.get(KEY) is None
        database.put(KEY, OK)
        assert database.get(KEY) == OK
    with Database() as database:
        assert database.get(KEY) == OK


@pytest.mark.usefixtures("both")
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


@pytest.mark.usefixtures("both")
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


@pytest.mark.usefixtures("both")
@pytest.mark.parametrize("outcome", sorted(UNSTORED))
def test_what_says_nothing_of_the_candidate_is_not_kept(outcome: str) -> None:
    with Database() as database:
        database.put(KEY, Cost(outcome, None, None, 3.0, "because"))  # type: ignore[arg-type]
        assert database.get(KEY) is None and not list(database.entries())


@pytest.mark.usefixtures("both")
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


@pytest.mark.usefixtures("both")
def test_listing_filters() -> None:
    with Database() as database:
        database.put(KEY, OK)
        database.put(replace(KEY, backend="b"), Cost("refused", reason="no"))
        assert len(list(database.entries())) == 2
        assert [entry.key.backend for entry in database.entries(failures=True)] == ["b"]
        assert [entry.cost for entry in database.entries(backend="backend")] == [OK]
        assert not list(database.entries(region="elsewhere"))


@pytest.mark.usefixtures("both")
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


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.dictionaries(keys, costs, min_size=1, max_size=8))
def test_export_and_import_are_inverse(
    tmp_path: Path, fresh: Callable[[], Path | str], entries: dict[CostKey, Cost]
) -> None:
    (tmp_path / "one").unlink(missing_ok=True)
    with Database(tmp_path / "one") as one, Database(fresh()) as two:
        for key, cost in entries.items():
            one.put(key, cost)
        lines = list(one.export_lines())
        done = two.import_lines(lines)
        assert (done.added, done.improved, done.kept, done.bad) == (len(entries), 0, 0, ())
        assert list(two.export_lines()) == [line.replace(one.machine, IMPORTED) for line in lines]
        assert {key: two.get(key) for key in entries} == {
            key: replace(cost, foreign=True) for key, cost in entries.items()
        }
        assert two.import_lines(lines).kept == len(entries)


@pytest.mark.usefixtures("both")
def test_import_keeps_the_better_sampled_and_reports_bad_lines() -> None:
    with Database() as database:
        database.put(KEY, OK)
        (line,) = database.export_lines()
        assert database.prune(older_than_s=-60) == 1
        assert database.import_lines([line]).added == 1
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
        assert found == replace(OK, latency=Latency(1.1, 0.9, 1.2, 30), foreign=True)


@pytest.mark.usefixtures("both")
def test_what_other_machines_measured_is_a_hint_and_what_this_one_did_stays(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Database() as here:
        here.put_race("k", "ours")
        here.put_config("k", "anybody's")
        monkeypatch.setenv("BRICOLAGE_CACHE", str(tmp_path / "elsewhere"))
        place = os.environ.get(VARIABLE) or own_cache / FILE
        with Database(place) as there:
            assert there.machine != here.machine
            there.put(KEY, OK)
            there.put_deviation(KEY, "these", Deviation(0.0, 0.0))
            assert here.get(KEY) == replace(OK, foreign=True) and here.deviation(KEY, "these") is None
            assert (there.get_race("k"), there.get_config("k")) == (None, "anybody's")
            own = replace(OK, latency=Latency(2.0, 1.9, 2.2, 3))
            here.put(KEY, own)
            assert here.get(KEY) == own and there.get(KEY) == OK
            assert [(entry.machine, entry.cost.foreign) for entry in here.entries()] == [
                (one.machine, one is there) for one in sorted((here, there), key=lambda one: one.machine)
            ]
            (better,) = (line for line in there.export_lines() if there.machine in line)
        assert here.import_lines([better]).kept == 1 and here.get(KEY) == own


def test_a_file_of_the_first_version_is_taken_over(own_cache: Path) -> None:
    own_cache.mkdir(mode=0o700)
    with closing(_Migrating(sqlite3.connect(own_cache / FILE, isolation_level=None), "")) as old:
        schema._times(old, "")
        values = [KEY.digest(), *row_values(Entry(KEY, OK))[1:]]
        old.execute(f"INSERT INTO times VALUES ({', '.join('?' * len(values))})", values)
        old.execute("INSERT INTO deviations VALUES (?, ?, ?, ?, ?)", (KEY.digest(), "these", 0.5, 0.25, 1.0))
        old.execute("INSERT INTO races VALUES (?, ?, ?)", ("k", '"ours"', 1.0))
    for _ in range(2):
        with Database() as database:
            assert database.get(KEY) == OK
            assert database.deviation(KEY, "these") == Deviation(0.5, 0.25) and database.get_race("k") == "ours"


@pytest.mark.usefixtures("both")
def test_what_regions_compute_and_devices_are_travels_with_costs(tmp_path: Path) -> None:
    product = OperatorWork("MatMul", "float", (8, 4), 512, 256, 128, 128)
    described = Workload((product, replace(product, kind="Conv", kernel=(3, 3), groups=2)), 256, 128, 128)
    with Database() as database, Database(tmp_path / "other") as other:
        database.put(KEY, OK)
        database.describe(KEY, lambda: described, host())
        database.describe(KEY, lambda: replace(described, read=0), host())
        lines = list(database.export_lines())
        told = json.loads(lines[2])
        hostile = [
            {"describes": "r", "workload": {"operators": []}},
            {"describes": 1, "workload": told["workload"]},
            {"describes": "r", "workload": told["workload"] | {"read": -1}},
            {"describes": "d", "device": {"name": "cpu"}},
        ]
        done = other.import_lines([*lines, *map(json.dumps, hostile)])
        assert done.added == 1 and [number for number, _ in done.bad] == [4, 5, 6, 7]
        assert other.workloads() == {KEY.region: described} and other.devices() == {KEY.device: host()}
        other.prune(older_than_s=-60)
        assert not other.workloads() and not other.devices(), "of nothing that is measured"


@pytest.mark.usefixtures("both")
def test_a_later_version_s_database_is_left_alone() -> None:
    with Database() as database:
        database._storage.execute("INSERT INTO versions VALUES (99, 0.0)")
    with pytest.raises(NewerCosts, match="version 99"):
        Database()


@pytest.mark.parametrize(
    ("address", "error"),
    [
        ("mysql://user:secret@somewhere/costs", BadOption),
        ("secret", BadOption),
        ("postgresql://user:secret@localhost:1/costs", UnreachableCosts),
        ("postgresql://user:secret@localhost:99999999/costs", UnreachableCosts),
        ("postgresql://?nonsense=1", UnreachableCosts),
    ],
)
def test_addresses_that_lead_nowhere(address: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("psycopg")
    monkeypatch.setenv(VARIABLE, address)
    with pytest.raises(error) as told:
        Database()
    assert "secret" not in str(told.value)


def test_without_the_driver_it_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingLibrary, match="pip install 'psycopg"):
        Database("postgresql://localhost/costs")


def test_a_server_that_restarts_is_found_again_and_one_that_is_gone_costs_nothing_measured(
    postgresql_server: PostgresqlServer,
    own_cache: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Database(postgresql_server.emptied()) as database:
        database.put(KEY, OK)
        postgresql_server.stop()
        postgresql_server.start()
        database.put(replace(KEY, region="after a restart"), OK)
        assert len(list(database.entries())) == 2 and not caplog.text
        monkeypatch.setattr(postgresql, "_TRIES_S", (0.01, 0.01))
        postgresql_server.stop()
        try:
            with caplog.at_level(logging.WARNING):
                database.put(replace(KEY, region="later"), OK)
            assert "from now on costs are kept in" in caplog.text and database.place == str(own_cache / FILE)
            assert [entry.key.region for entry in database.entries()] == ["later"]
            with pytest.raises(UnreachableCosts):
                Database(postgresql_server.url)
        finally:
            postgresql_server.start()
    with Database(postgresql_server.url) as database, Database(own_cache / FILE) as kept:
        assert len(list(database.entries())) == 2
        assert database.import_lines(kept.export_lines()).added == 1


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
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with caplog.at_level(logging.WARNING), Database(tmp_path / "file" / "costs.sqlite") as database:
        database.put(KEY, OK)
        assert database.get(KEY) == OK
    assert "this run only" in caplog.text


@pytest.mark.usefixtures("both")
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
from bricolage.costs.database import Database
from tests.costs.test_database import KEY, OK
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
        encoding="utf-8",
    )


@pytest.mark.usefixtures("both")
def test_processes_share_a_database_and_a_killed_one_loses_nothing() -> None:
    writer = _writer("other", 60)
    victim = _writer("victim", 10**9)
    assert victim.stdout is not None
    said = [victim.stdout.readline() for _ in range(20)]
    os.kill(victim.pid, signal.SIGKILL)
    said += victim.stdout.readlines()
    victim.wait()
    victim.stdout.close()
    assert writer.stdout is not None
    assert len(writer.stdout.readlines()) == 60 and writer.wait() == 0
    writer.stdout.close()
    finished = sum(line.endswith("\n") for line in said)
    with Database() as database:
        regions = {entry.key.region for entry in database.entries()}
    assert {f"other {number}" for number in range(60)} <= regions
    assert {f"victim {number}" for number in range(finished)} <= regions


# --- trials -----------------------------------------------------------------------------------------------------------

PRODUCT = TuningTask("matmul-0", {"rows": (4, 6, 8), "pack": (True,)}, ("0.",), "abc", "matmul", {"m": 64, "n": 64})
TASK = TaskKey("abc", "native", "1.0", "f32", "a device", 2)


def trial(share: float | None, *choice: tuple[str, Scalar], reason: str = "") -> TrialRecord:
    return TrialRecord(choice, share, None if share is None else 2.0 * share, 5 if share else 0, reason)


@pytest.mark.usefixtures("both")
def test_trials_come_back_and_the_best_come_first() -> None:
    records = [
        trial(0.9, ("rows", 4)),
        trial(None, ("rows", 6), reason="no"),
        trial(1.2, ("pack", True)),
        trial(0.7, ("rows", 8)),
    ]
    with Database() as database:
        for record in records:
            database.put_trial(TASK, PRODUCT, record)
        database.put_trial(replace(TASK, threads=1), PRODUCT, trial(0.1, ("rows", 4)))
        database.put_trial(TASK, PRODUCT, trial(0.8, ("rows", 4)))  # once more
        assert sorted(database.trials(TASK), key=str) == sorted([trial(0.8, ("rows", 4)), *records[1:]], key=str)
        assert database.best_trials(TASK, 5) == [records[3], trial(0.8, ("rows", 4))], "none that is slower than usual"
        assert database.best_trials(TASK, 1) == [records[3]]
        assert database.has_trials("native", "1.0", "a device", 2)
        assert not database.has_trials("native", "2.0", "a device", 2)


@pytest.mark.usefixtures("both")
def test_the_nearest_workloads_come_first() -> None:
    """By the logarithms of their sizes; of this device and these threads before others."""
    with Database() as database:
        for name, sizes, device in (
            ("far", {"m": 4096, "n": 64}, "a device"),
            ("near", {"m": 128, "n": 64}, "a device"),
            ("elsewhere", {"m": 64, "n": 64}, "another device"),
            ("other sizes", {"elements": 4096}, "a device"),
        ):
            task = replace(PRODUCT, sizes=sizes)
            key = replace(TASK, workload=name, version="0.9", device=device)
            rows = {"far": 4, "near": 6, "elsewhere": 8, "other sizes": 4}[name]
            database.put_trial(key, task, trial(0.9, ("rows", rows), ("pack", True)))
            database.put_trial(key, task, trial(0.8, ("rows", rows)))
        database.put_trial(replace(TASK, workload="no gain"), PRODUCT, trial(1.1, ("pack", True)))
        database.put_trial(replace(TASK, workload="other backend", backend="tvm"), PRODUCT, trial(0.1, ("pack", True)))
        found = database.nearest_trials(TASK, PRODUCT, 5)
    assert [dict(one.choice)["rows"] for one in found] == [6, 4, 8] and all(one.foreign for one in found)


@pytest.mark.usefixtures("both")
def test_trials_travel_as_hints(own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Database() as here:
        here.put_trial(TASK, PRODUCT, trial(0.5, ("rows", 4)))
        lines = list(here.export_lines())
        assert len(lines) == 1
    with Database(tmp_path / "other.sqlite") as there:
        monkeypatch.setattr(there, "machine", "another machine")
        done = there.import_lines(
            [*lines, lines[0].replace("0.5", "-0.5"), lines[0].replace('"rounds": 5', '"rounds": "5"')]
        )
        assert [number for number, _ in done.bad] == [2, 3]
        assert there.trials(TASK) == []
        assert there.best_trials(TASK, 3) == [replace(trial(0.5, ("rows", 4)), foreign=True)]
        assert list(there.export_lines()) == lines
        there.prune(versions={"native": "2.0"})
        assert there.best_trials(TASK, 3) == []


def test_trials_of_another_form_are_left_out(own_cache: Path) -> None:
    with Database() as database:
        database.put_trial(TASK, PRODUCT, trial(0.5, ("rows", 4)))
        with closing(sqlite3.connect(own_cache / FILE)) as raw, raw:
            raw.execute("UPDATE trials SET choice = ?", ('{"rows": 4}',))
        assert database.trials(TASK) == [] == database.best_trials(TASK, 1)
        with closing(sqlite3.connect(own_cache / FILE)) as raw, raw:
            raw.execute("UPDATE trials SET choice = ?, sizes = ?", ('[["rows", 4]]', "[]"))
        assert database.nearest_trials(replace(TASK, workload="like it"), PRODUCT, 1) == []
