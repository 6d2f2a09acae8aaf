"""Power cuts on the cost database: copies of its files as a disk may hold them at some moment.

What is written to the log is in order there (each commit waits for the disk), up to some byte; of a checkpoint, which copies pages
from the log into the database, any subset of the pages may have arrived while the log still holds them all.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
import struct
from contextlib import closing
from pathlib import Path

from bricolage.costs.database import FILE, Database
from bricolage.costs.entries import Cost, CostKey
from bricolage.costs.latency import Latency
from bricolage.verify.compare import Deviation
from tests.faults.place import Broken, Place

_HEADER, _FRAME = 32, 24


def power_cut(place: Place, dice: random.Random, usual_s: float) -> None:
    """Measurements are put; the power goes at some byte of the log, or in the middle of a checkpoint. All that was finished
    by then is there when the database is opened again, and it can be written to."""
    del usual_s
    live = place.root / "live" / FILE
    database = Database(live)
    ends: list[tuple[str, int]] = []
    log = live.with_name(f"{FILE}-wal")
    for number in range(dice.randint(1, 30)):
        key = CostKey(f"region {number}", "backend", "1.0", "f32", "machine", 2, False)
        database.put(
            key, Cost("ok", Latency(1.0 + number, 0.9, 99.0, 9), None, 0.5, reason="x" * dice.randint(0, 3000))
        )
        database.put_deviation(key, "these", Deviation(1e-7, 0.0))
        ends.append((key.digest(), log.stat().st_size))
    cut = place.root / "cut"
    cut.mkdir()
    if dice.random() < 0.25:
        finished = [digest for digest, _ in ends]
        _in_a_checkpoint(live, cut / FILE, dice)
    else:
        at = _somewhere(log, dice)
        finished = [digest for digest, end in ends if end <= at]
        shutil.copy(live, cut / FILE)
        (cut / log.name).write_bytes(log.read_bytes()[:at] + bytes(dice.randint(0, 1) * dice.randint(0, 5000)))
    database.close()
    with Database(cut / FILE) as found:
        known = {entry.key.digest() for entry in found.entries()}
        after = CostKey("after", "backend", "1.0", "f32", "machine", 2, False)
        found.put(after, Cost("refused", reason="it goes on"))
        if found.get(after) is None:
            raise Broken("the database takes nothing any more")
    if list(cut.glob("*.corrupt-*")):
        raise Broken("the database counts as damaged")
    if lost := set(finished) - known:
        raise Broken(f"{len(lost)} of {len(finished)} finished measurements are lost")
    with closing(sqlite3.connect(cut / FILE)) as connection:
        if connection.execute("PRAGMA integrity_check").fetchone() != ("ok",):
            raise Broken("the database is damaged")


def _somewhere(log: Path, dice: random.Random) -> int:
    """A byte of the log: the end of a frame, or anywhere."""
    data = log.read_bytes()
    (page,) = struct.unpack(">I", data[8:12])
    frames = range(_HEADER, len(data) + 1, _FRAME + page)
    return dice.choice(frames) if dice.random() < 0.6 else dice.randint(0, len(data))


def _in_a_checkpoint(live: Path, cut: Path, dice: random.Random) -> None:
    """The files as they are when a checkpoint has copied some pages, and perhaps a part of one."""
    log = live.with_name(f"{FILE}-wal")
    whole = cut.with_name("whole")
    shutil.copy(live, whole)
    shutil.copy(log, whole.with_name("whole-wal"))
    shutil.copy(log, cut.with_name(log.name))
    before = live.read_bytes()
    with closing(sqlite3.connect(whole)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    after = whole.read_bytes()
    (page,) = struct.unpack(">H", after[16:18])
    data = bytearray(after[: max(len(before), dice.randint(0, len(after)))])
    data[: len(before)] = before
    for start in range(0, len(data), page):
        if dice.random() < 0.5:
            end = min(start + (page if dice.random() < 0.8 else dice.randint(1, page)), len(data))
            data[start:end] = after[start:end]
    cut.write_bytes(data)
    for path in cut.parent.glob("whole*"):
        path.unlink()
