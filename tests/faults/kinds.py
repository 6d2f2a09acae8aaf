"""The kinds of faults. Each is a function of a place, a source of randomness, and how long an undisturbed run takes."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from bricolage import errors
from bricolage.backends import registry
from bricolage.costs.database import Database
from bricolage.device.host import host
from bricolage.measure.measurer import Measurer
from bricolage.measure.pool import Pool
from bricolage.measure.probes import relu_region, vector
from bricolage.measure.specs import CandidateSpec, Limits, RegionTask, TimingPolicy
from bricolage.plan.program_step import Step
from bricolage.work.implementation import Implementation, KernelConfig
from tests.faults.place import Broken, Place, Victim
from tests.faults.power import power_cut
from tests.measure import rogues

Fault = Callable[[Place, random.Random, float], None]
_FINE = (errors.OK,)


def _at_a_moment(victim: Victim, dice: random.Random, usual_s: float) -> bool:
    """Waits for a random moment of the victim's life; False if it was over before."""
    return victim.running_for(dice.uniform(0.0, 1.1 * usual_s))


# --- kills and signals ----------------------------------------------------------------------------------------------


def kill_parent(place: Place, dice: random.Random, usual_s: float) -> None:
    """`kill -9` of the process itself, at any moment."""
    victim = place.optimize()
    if _at_a_moment(victim, dice, usual_s):
        os.kill(victim.pid, signal.SIGKILL)
        victim.wait()
    place.check()
    place.check_next_start()


def kill_worker(place: Place, dice: random.Random, usual_s: float) -> None:
    """`kill -9` (or another signal) of some worker, up to three times in a run. The run goes on to its end, and no failure
    is booked."""
    victim = place.optimize()
    for _ in range(dice.randint(1, 3)):
        if not victim.running_for(time.monotonic() - victim.began + dice.uniform(0.0, 0.7 * usual_s)):
            break
        with suppress(psutil.Error, IndexError):
            workers = [
                one
                for one in psutil.Process(victim.pid).children(recursive=True)
                if one.status() != psutil.STATUS_ZOMBIE
            ]
            dice.choice(workers).send_signal(dice.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
    code = victim.wait()
    if code not in (*_FINE, errors.NO_BACKEND):  # killed in all attempts, the only backend is lost for this run
        raise Broken(f"it ends with {code}: {victim.words()}")
    place.check()
    _no_failures(place)
    place.check_next_start()


def end_parent(place: Place, dice: random.Random, usual_s: float) -> None:
    """SIGTERM, SIGHUP or Ctrl-C (once or twice) of the process, which then cleans up after itself."""
    number = dice.choice([signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGINT])
    victim = place.optimize()
    if victim.running_for(dice.uniform(0.15, 1.1) * usual_s):  # not before the command has begun to listen
        os.kill(victim.pid, number)
        if (
            number == signal.SIGINT
            and dice.random() < 0.5
            and victim.running_for(time.monotonic() - victim.began + 0.3)
        ):
            os.kill(victim.pid, number)
        code = victim.wait()
        fine = (*_FINE, 130) if number == signal.SIGINT else (*_FINE, 128 + number)
        if code not in fine:
            raise Broken(f"after {number.name} it ends with {code}: {victim.words()}")
        if "Traceback" in victim.words():
            raise Broken(f"after {number.name} it complains: {victim.words()}")
        left = [*place.cache.glob("work/*"), *place.temporary.iterdir()]
        if left:
            raise Broken(f"after {number.name} it leaves {left}")
    place.check()
    place.check_next_start()


def concurrent(place: Place, dice: random.Random, usual_s: float) -> None:
    """Two to eight runs on one cache, some of them killed."""
    victims = [place.optimize(name=f"out-{number}") for number in range(dice.choice([2, 2, 2, 3, 3, 4, 8]))]
    doomed = [victim for victim in victims if dice.random() < 0.3]
    for victim in doomed:
        if victim.running_for(time.monotonic() - victim.began + dice.uniform(0, usual_s)):
            os.kill(victim.pid, signal.SIGKILL)
    for victim in victims:
        code = victim.wait()
        if victim not in doomed and code not in _FINE:
            raise Broken(f"one of {len(victims)} ends with {code}: {victim.words()}")
    place.check()
    place.check_next_start()


# --- disks and clocks -----------------------------------------------------------------------------------------------


@contextmanager
def _small_disk(folder: Path, kilobytes: int) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=False)


def can_mount() -> bool:
    """Whether file systems can be mounted here."""
    return sys.platform.startswith("linux") and os.getuid() == 0 and shutil.which("mount") is not None


def disk_full(place: Place, dice: random.Random, usual_s: float) -> None:
    """The cache's disk is too small for the run, by more or less."""
    del usual_s
    size = int(4 * 1.6 ** dice.uniform(0, 11))  # 4 KB to 700 KB
    disk = place.root / "disk"
    with _small_disk(disk, size):
        on_disk = Place(place.root, disk / "cache")
        victim = on_disk.optimize()
        code = victim.wait()
        if code not in (*_FINE, errors.USAGE):
            raise Broken(f"with {size} KB it ends with {code}: {victim.words()}")
        if code == errors.USAGE and "cannot be written" not in victim.words():
            raise Broken(f"with {size} KB it says: {victim.words()}")
        subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
        on_disk.check()
        on_disk.check_next_start()


def read_only(place: Place, dice: random.Random, usual_s: float) -> None:
    """The cache cannot be written, from the beginning or from some moment on."""
    disk = place.root / "disk"
    with _small_disk(disk, 65536):
        on_disk = Place(place.root, disk / "cache")
        if dice.random() < 0.5:
            on_disk.check_next_start()
        victim = None
        if dice.random() < 0.5:
            victim = on_disk.optimize("--replan")
            _at_a_moment(victim, dice, usual_s)
            with suppress(subprocess.CalledProcessError):  # while something is open for writing it may be refused
                subprocess.run(["mount", "-o", "remount,ro", disk], check=True, capture_output=True)
        else:
            subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
            victim = on_disk.optimize("--replan")
        code = victim.wait()
        if code not in (*_FINE, errors.USAGE):
            raise Broken(f"it ends with {code}: {victim.words()}")
        if code == errors.USAGE and "cannot be written" not in victim.words():
            raise Broken(f"it says: {victim.words()}")
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
        on_disk.check()
        on_disk.check_next_start()


def clock_steps(place: Place, dice: random.Random, usual_s: float) -> None:
    """The wall clock jumps by up to 60 days, forwards and backwards, while a run is at work."""
    steps = [(dice.uniform(0, usual_s), dice.uniform(-60, 60) * 86400.0) for _ in range(3)]

    def before() -> None:
        real, began = time.time, time.monotonic()

        def wrong() -> float:
            passed = time.monotonic() - began
            return real() + sum(by for at, by in steps if passed >= at)

        time.time = wrong

    victim = place.optimize(before=before)
    code = victim.wait()
    if code not in _FINE:
        raise Broken(f"it ends with {code}: {victim.words()}")
    place.check()
    place.check_next_start()


# --- candidates that misbehave --------------------------------------------------------------------------------------


def memory_limit(place: Place, dice: random.Random, usual_s: float) -> None:
    """Workers exceed the memory that the user allows, that of the reference among them. Without the limit, the next run is as if
    nothing had happened."""
    del usual_s
    victim = place.optimize("--memory-limit", str(dice.randint(64, 90)))
    code = victim.wait()
    if code not in (*_FINE, errors.NO_BACKEND, errors.INACCURATE):
        raise Broken(f"it ends with {code}: {victim.words()}")
    place.check()
    _no_failures(place)
    place.check_next_start()


_OUTCOMES = {
    "hangs": "timed-out",
    "leaks": "out-of-memory",
    "segfaults": "crashed",
    "segfaults-later": "crashed",
    "exits": "crashed",
    "raises": "failed",
    "killed": "lost",
    "honest": "ok",
}


def rogue_candidates(place: Place, dice: random.Random, usual_s: float) -> None:
    """Candidates that hang, take memory without end, crash or are killed, beside one that works: each gets its outcome."""
    del usual_s
    chosen = [*dice.sample([name for name in _OUTCOMES if name != "honest"], 3), "honest"]

    def act() -> None:
        found = _measure(place, chosen)
        slow = found.get("leaks") == "timed-out"  # taking memory takes time, too
        if found != {name: "timed-out" if name == "leaks" and slow else _OUTCOMES[name] for name in chosen}:
            raise Broken(str(found))

    victim = place.run(act)
    if victim.wait() != 0:
        raise Broken(victim.words())
    place.check()
    place.check_next_start()


def _measure(place: Place, names: list[str]) -> dict[str, str]:
    """Outcomes of rogues, in the process of a victim."""
    from bricolage.measure import pool as pools

    pools._START_GRACE_S = 0.0
    rogues.register_all()
    region = relu_region(place.root, "x", "y", 256)
    steps = [Step(Implementation(name, KernelConfig("99" if name == "killed" else "0.1")), region) for name in names]
    specs = tuple(CandidateSpec("relu", (step,), ("y",), 1, False, host()) for step in steps)
    inputs, expected = vector(place.root, ("x",), 256), vector(place.root, ("y",), 256, rectified=True)
    task = RegionTask(inputs, expected, 1e-6, specs, "these")
    with Database() as database, Pool(memory_limit=500 << 20) as pool:
        policy = TimingPolicy(rounds=3, most_rounds=3, seconds=2.0)
        limits = Limits(12.0, 12.0)  # starting a process takes seconds on a busy machine
        costs = Measurer(database, pool, place.root, policy=policy, limits=limits, cores=2).measure([task])
    registry._sources.cache_clear()
    return {spec.title: cost.outcome for spec, cost in costs.items()}


def _no_failures(place: Place) -> None:
    """Nothing that was done to a run is on record against a candidate."""
    if not place.database.exists():
        return
    with Database(place.database) as database:
        failures = [entry.cost for entry in database.entries(failures=True)]
    booked = [cost.reason for cost in failures if cost.outcome != "refused"]  # that is the backend's own word
    if booked:
        raise Broken(f"failures are booked: {booked}")


KINDS: dict[str, tuple[Fault, float]] = {
    "kill -9 of the process": (kill_parent, 0.10),
    "kill of workers": (kill_worker, 0.08),
    "SIGTERM, SIGHUP, Ctrl-C": (end_parent, 0.07),
    "power cut": (power_cut, 0.60),
    "disk full": (disk_full, 0.04),
    "read-only cache": (read_only, 0.02),
    "clock steps": (clock_steps, 0.02),
    "memory limit": (memory_limit, 0.02),
    "hanging, leaking, crashing candidates": (rogue_candidates, 0.02),
    "two to eight runs on one cache": (concurrent, 0.03),
}
"""By name, with the part of all injections that each has."""
NEEDS_MOUNT = frozenset({"disk full", "read-only cache"})
