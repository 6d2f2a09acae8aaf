"""One injection by its seed and number: its kind and its moments follow from these alone."""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.faults.kinds import KINDS, NEEDS_MOUNT, can_mount
from tests.faults.place import Broken, Place

QUICK = "power cut"
"""The kind that starts no process."""
SLICE = (*["power cut"] * 7, "kill -9 of the process", "kill of workers", "SIGTERM, SIGHUP, Ctrl-C")
"""Ten injections of a minute's work at most, for every change."""


@dataclass(frozen=True)
class Result:
    """What came of an injection; `broken` says what did not hold."""

    number: int
    kind: str
    broken: str
    seconds: float
    skipped: bool = False


def kind_of(seed: int, number: int) -> str:
    """The kind of an injection."""
    return random.Random(f"{seed} {number} kind").choices(list(KINDS), [share for _, share in KINDS.values()])[0]


def usual_seconds(folder: Path) -> float:
    """How long an undisturbed run takes here and now."""
    with tempfile.TemporaryDirectory(prefix="usual-", dir=folder.resolve()) as name:
        victim = Place(Path(name)).optimize()
        victim.wait()
        return time.monotonic() - victim.began


def inject(seed: int, number: int, folder: Path, usual_s: float, kind: str = "") -> tuple[Result, float]:
    """The injection, and how long runs take meanwhile. The place of one that is broken is kept for a look."""
    kind = kind or kind_of(seed, number)
    began = time.monotonic()
    if kind in NEEDS_MOUNT and not can_mount():
        return Result(number, kind, "", 0.0, skipped=True), usual_s
    root = Path(tempfile.mkdtemp(prefix=f"fault-{number}-", dir=folder.resolve()))
    broken = ""
    try:
        KINDS[kind][0](Place(root), random.Random(f"{seed} {number}"), usual_s)
    except Broken as error:
        broken = str(error)
    if not broken:
        shutil.rmtree(root, ignore_errors=True)
    took = time.monotonic() - began
    if kind.startswith("kill -9"):  # a run that was cut short, and a whole one
        usual_s = 0.8 * usual_s + 0.2 * took * 0.6
    return Result(number, kind, broken, round(took, 1)), usual_s
