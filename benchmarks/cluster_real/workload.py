"""Jobs that come one after another to a small cluster of two kinds of devices."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cluster_real import trainer
from bricolage.cluster.machines import ClusterSpec, NodeGroup
from bricolage.cluster.serve.submission import JobSpec

FAST, SLOW = "fast", "slow"
ROUND_S = 10.0
GROUPS = (NodeGroup(FAST, 2, 2), NodeGroup(SLOW, 2, 2, speed=0.6))
"""Eight devices on four nodes."""
_STEP_S = 0.05
"""On a fast device."""


@dataclass(frozen=True)
class Planned:
    """A job, and when it is submitted."""

    at_s: float
    seed: int
    spec: JobSpec


def cluster(start_s: float = 0.0, restart_s: float = 0.0) -> ClusterSpec:
    """The devices, with what a start and a restart take."""
    return ClusterSpec(GROUPS, start_s=start_s, restart_s=restart_s, round_s=ROUND_S)


def drawn(count: int, seed: int, mean_s: float = 2.0) -> list[Planned]:
    """Jobs of 5 to 30 s on fast devices, most of one device, some of two and four; slow devices have 0.4 to 0.8 of the rate."""
    rng = random.Random(seed)
    at, found = 0.0, []
    for number in range(count):
        slower = rng.uniform(0.4, 0.8)
        pace = {FAST: _STEP_S, SLOW: _STEP_S / slower}
        seconds = 5.0 * 6.0 ** rng.random()
        devices = rng.choices((1, 2, 4), (14, 7, 3))[0]
        command = (sys.executable, trainer.__file__, str(number), *(f"{kind}={one}" for kind, one in pace.items()))
        spec = JobSpec(
            f"job-{number:02}",
            float(round(seconds / _STEP_S)),
            command,
            devices=devices,
            rates={kind: 1.0 / one for kind, one in pace.items()},
            directory=str(Path(__file__).parent),
            environment={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        )
        found.append(Planned(at, number, spec))
        at += rng.expovariate(1.0 / mean_s)
    return found
