"""Ten faults for every change (`make faults` injects hundreds); and the checks find what they look for."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bricolage.costs.database import Database
from bricolage.costs.entries import Cost, CostKey
from tests.faults import place as places
from tests.faults.kinds import KINDS, kill_parent, power_cut
from tests.faults.place import Broken, Place

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it reads /proc")
_ROOT = Path(__file__).parents[2]


def test_ten_faults(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    command = [sys.executable, "-m", "tests.faults", "--slice", "--state", str(tmp_path)]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False, encoding="utf-8")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "faults: 10 injected, 0 broken, 0 skipped" in done.stdout.splitlines()[-1]
    again = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True, encoding="utf-8")
    assert again.stdout.splitlines()[-1] == done.stdout.splitlines()[-1] and "fine" not in again.stdout, "it goes on"


def test_every_kind_has_its_part() -> None:
    assert sum(share for _, share in KINDS.values()) == pytest.approx(1.0)


def test_a_lost_measurement_is_found(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with Database(place.database) as database:
        database.put(CostKey("r", "b", "1", "f32", "d", 1, False), Cost("refused", reason="no"))
    place.check()
    place.acknowledged.write_text("0123\n", encoding="utf-8")
    with pytest.raises(Broken, match="1 of 1 finished measurements are lost"):
        place.check()


def test_a_log_that_loses_what_was_finished_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every second region, nothing is put at all."""
    put = Database.put

    def forgetful(database: Database, key: CostKey, cost: Cost) -> None:
        if not key.region.endswith(tuple("13579")):
            put(database, key, cost)

    monkeypatch.setattr(Database, "put", forgetful)
    with pytest.raises(Broken, match="finished measurements are lost"):
        for number in range(20):
            power_cut(Place(tmp_path / str(number)), random.Random(number), 1.0)


def test_a_damaged_database_is_found(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with Database(place.database) as database:
        for number in range(300):
            database.put(CostKey(f"{number}", "b", "1", "f32", "d", 1, False), Cost("refused", reason="x" * 500))
    data = bytearray(place.database.read_bytes())
    data[8192:40960] = os.urandom(32768)
    place.database.write_bytes(data)
    with pytest.raises(Broken, match="the database is damaged"):
        place.check()


def test_a_torn_artifact_and_an_orphan_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path)
    place.artifact().write_bytes(b"PK\x03\x04 torn")
    with pytest.raises(Broken, match="a torn artifact"):
        place.check()
    place.artifact().unlink()
    monkeypatch.setattr(places, "_GRACE_S", 0.5)
    orphan = subprocess.Popen(["sleep", "60"], env={**os.environ, "BRICOLAGE_FAULTS": place.token})
    try:
        while not place.workers():  # a moment after `exec`, the kernel does not show its environment yet
            time.sleep(0.01)
        with pytest.raises(Broken, match="orphans"):
            place.check()
    finally:
        orphan.kill()
        orphan.wait()


@pytest.mark.slow
def test_a_folder_left_behind_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bricolage.base.scratch.sweep", lambda *_: None)
    with pytest.raises(Broken, match="left behind"):
        for number in range(10):
            kill_parent(Place(tmp_path / str(number)), random.Random(number), 5.0)
