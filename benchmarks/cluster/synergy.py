"""Synergy over FIFO beside FIFO with each job's part of a node's processors and memory, on its authors' profiles.

`--data models.json`: speeds of twelve models by processors and memory (`msr-fiddle/synergy`, MIT), as JSON. Jobs need one device;
their lengths are those of Gavel's generator, since Philly's are not here; their models are drawn from images, language and speech
as `SPLIT` says. Nodes have 8 devices, 24 processors and 500 GB.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bricolage.cluster.adaptive import HostProfile
from bricolage.cluster.event_loop import EventLoop
from bricolage.cluster.jobs import TrainingJob, WorkPhase
from bricolage.cluster.machines import ClusterSpec, NodeGroup
from bricolage.cluster.policy_catalogue import find_policy

CPUS = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 9.0, 12.0, 24.0)
GB = (20.0, 62.5, 125.0, 187.5, 500.0)
MODELS = (
    ("alexnet_1", "res18_1", "res50_1", "mobilenet_1", "shufflenet_1"),
    ("gnmt_1", "transformer_1", "lstm_1"),
    ("m5_1", "deepspeech_1"),
)
SPLIT = (20, 70, 10)
LOADS = (6.0, 9.0, 12.0)
"""Jobs an hour."""


@dataclass(frozen=True)
class SynergyRow:
    """Mean completion time of the jobs in the middle, hours."""

    what: str
    split: str
    jobs_per_hour: float
    fifo_hours: float
    synergy_hours: float
    ratio: float
    """FIFO's by Synergy's."""


def profiles(path: Path) -> dict[str, HostProfile]:
    """Of each model on one device; what is not monotone in the file is raised to what less processors or memory give."""
    found = {}
    for name, one in json.loads(path.read_text(encoding="utf-8")).items():
        rows = [[float(value) for value in row] for row in one["tput"]]
        if len(rows[0]) != len(GB):
            continue
        for r, row in enumerate(rows):
            for c in range(len(row)):
                row[c] = max(row[c], row[c - 1] if c else 0.0, rows[r - 1][c] if r else 0.0, 1e-3)
        found[name] = HostProfile(CPUS, GB, tuple(tuple(row) for row in rows))
    return found


def rows(path: Path, jobs: int, nodes: int = 16, seed: int = 0, split: tuple[int, ...] = SPLIT) -> Iterator[SynergyRow]:
    """At each load; the first and the last fifth of the jobs fill the cluster and let it run empty."""
    known = profiles(path)
    spec = ClusterSpec((NodeGroup("v100", nodes, 8, cpus=24.0, host_gb=500.0),), round_s=300.0)
    for load in LOADS:
        rng, now, some = random.Random(seed), 0.0, list[TrainingJob]()
        for number in range(jobs):
            now += rng.expovariate(load * nodes / 16 / 3600.0)
            minutes = 10 ** (rng.uniform(1.5, 3.0) if rng.random() < 0.8 else rng.uniform(3.0, 4.0))
            model = rng.choice(rng.choices(MODELS, split)[0])
            phases = (WorkPhase(60.0 * minutes, {"v100": 1.0}),)
            some.append(TrainingJob(f"j{number}", now, phases, kind=model, host=known[model]))
        hours = {}
        for name in ("fifo", "synergy"):
            entry = find_policy(name)
            found = EventLoop(some, spec, entry.make(some, spec), entry.estimator(0.0, 0), False).run()
            middle = found.states[jobs // 5 : -jobs // 5]
            hours[name] = sum(state.finish_s - state.job.submit_s for state in middle) / len(middle) / 3600.0
        told = ",".join(map(str, split))
        yield SynergyRow("synergy", told, load, hours["fifo"], hours["synergy"], hours["fifo"] / hours["synergy"])
