"""Kills of drivers, nodes and jobs while jobs run: none may be lost, and no step that a checkpoint held."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from benchmarks.cluster_real import trainer
from benchmarks.cluster_real.served import Driver, Nodes, rows, serving, submit, wait
from benchmarks.cluster_real.workload import Planned, cluster, drawn
from bricolage.cluster.engines.job_command import number_in

_LONGEST_S = 900.0
_AWAY_S = 3.0
"""After so long another node takes the place of a killed one."""


@dataclass(frozen=True)
class Killed:
    """What became of the jobs."""

    jobs: int
    kills: dict[str, int]
    """Of each thing, how many."""
    lost: int
    """Jobs that have not finished."""
    wrong: int
    """Jobs that ended with other weights than an undisturbed run."""
    checkpoints_lost: int
    """Times at which a checkpoint held fewer steps than before."""
    restarts: int
    seconds: float


class _Killer:
    """Kills one thing after another, and watches checkpoints."""

    def __init__(self, driver: Driver, nodes: Nodes, kills: int, every_s: float, seed: int) -> None:
        self.driver, self.nodes, self.every_s = driver, nodes, every_s
        words = ["job", "driver", "node"] if nodes.nodes else ["job", "driver"]
        self.plan = [words[number % len(words)] for number in range(kills)]
        self.rng = random.Random(seed)
        self.rng.shuffle(self.plan)
        self.done = dict.fromkeys(words, 0)
        self.next = time.monotonic() + every_s
        self.back: tuple[float, int] | None = None
        self.saved: dict[Path, float] = {}
        self.lost = 0

    def look(self) -> None:
        """Called again and again."""
        self._watch()
        now = time.monotonic()
        if self.back is not None and now > self.back[0]:
            self.nodes.bring_back(self.back[1])
            self.back = None
        if self.plan and now > self.next:
            what = self.plan[-1]
            if self._kill(what):
                self.plan.pop()
                self.done[what] += 1
                self.next = time.monotonic() + self.every_s
                print(f"killed a {what}; {len(self.plan)} to come", file=sys.stderr, flush=True)

    def _kill(self, what: str) -> bool:
        if what == "driver":
            self.driver.kill()
            self.driver.start()
            return True
        if what == "node":
            if self.back is not None:
                return False
            number = self.rng.randrange(len(self.nodes.nodes))
            self.nodes.lose(number)
            self.back = time.monotonic() + _AWAY_S, number
            return True
        running = [row["name"] for row in rows(self.driver) if row["state"] == "running"]
        if not running:
            return False
        wanted = str(self.driver.state / "jobs" / self.rng.choice(running) / "checkpoint")
        found = False
        for process in psutil.process_iter(["cmdline", "environ"]):
            words = " ".join(process.info["cmdline"] or ())
            if (process.info["environ"] or {}).get("BRICOLAGE_CHECKPOINT") == wanted and "supervisor.py" not in words:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
                    found = True
        return found

    def _watch(self) -> None:
        for path in (self.driver.state / "jobs").glob("*/checkpoint/steps"):
            steps = number_in(path)
            if steps is not None:
                self.lost += steps < self.saved.get(path, 0.0)
                self.saved[path] = steps


def run(folder: Path, nodes: Nodes, count: int, kills: int, every_s: float, seed: int) -> Killed:
    """Runs the jobs under a preemptive policy, with kills in between."""
    jobs = drawn(count, seed)
    begin = time.monotonic()
    with serving(folder / "kills", cluster(1.0, 1.0), "srtf", nodes) as driver:
        killer = _Killer(driver, nodes, kills, every_s, seed)
        submit(driver, jobs, killer.look)
        found = wait(driver, _LONGEST_S, killer.look)
        wrong = sum(not _right(driver, job) for job in jobs)
    over = sum(row["finish_s"] is not None for row in found)
    restarts = sum(row["restarts"] for row in found)
    return Killed(count, killer.done, count - over, wrong, killer.lost, restarts, time.monotonic() - begin)


def _right(driver: Driver, job: Planned) -> bool:
    weights, steps = trainer.load(driver.state / "jobs" / job.spec.name / "checkpoint", job.seed)
    wanted = trainer.trained(job.seed, int(job.spec.steps))
    return steps == job.spec.steps and all(np.array_equal(weights[name], wanted[name]) for name in wanted)
