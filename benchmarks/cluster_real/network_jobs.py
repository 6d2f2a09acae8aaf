"""Jobs that train real networks on the cores of this machine, at the pace that was measured: one kind of device, one node of two.

A device is a thread of a core; a gang of two trains one network on both. Nothing is waited for: rates are what steps take while
the other device trains, too.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.cluster_real import network_trainer
from benchmarks.cluster_real.workload import Planned
from bricolage.cluster.machines import ClusterSpec, NodeGroup
from bricolage.cluster.serve.submission import JobSpec

CORE = "core"
GROUPS = (NodeGroup(CORE, 1, 2),)
ROUND_S = 20.0
Rates = Mapping[tuple[str, int], float]
"""Steps a second, by network and devices."""
_MEASURED_S = 4.0
"""Of each job whose pace is measured, roughly."""


def network_cluster(start_s: float = 0.0, restart_s: float = 0.0) -> ClusterSpec:
    """The devices, with what a start and a restart take."""
    return ClusterSpec(GROUPS, start_s=start_s, restart_s=restart_s, round_s=ROUND_S)


def write_digits(folder: Path) -> Path:
    """scikit-learn's 1,797 digits as a file for the jobs."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    digits = load_digits()
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "digits.npz", images=digits.images, labels=digits.target)
    return folder / "digits.npz"


def training_spec(name: str, network: str, seed: int, steps: int, devices: int, rate: float, digits: Path) -> JobSpec:
    """A job of some steps, with the rate in which the policy believes."""
    variables = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return JobSpec(
        name,
        float(steps),
        (sys.executable, network_trainer.__file__, network, str(digits), str(seed)),
        devices=devices,
        kind=f"{network} on {devices}",
        rates={CORE: rate},
        directory=str(Path(__file__).parent),
        environment=dict.fromkeys(variables, str(devices)) | {"OMP_WAIT_POLICY": "PASSIVE"},
    )


def drawn_networks(count: int, seed: int, rates: Rates, digits: Path, mean_s: float = 3.0) -> list[Planned]:
    """Jobs of 5 to 20 s at the rates that were measured, each third on two devices."""
    rng = random.Random(seed)
    networks, at, jobs = list(network_trainer.NETWORKS), 0.0, list[Planned]()
    for number in range(count):
        devices = 2 if number % 3 == 2 else 1
        network = networks[number % len(networks)] if devices == 1 else rng.choice(networks)
        rate = rates[network, devices]
        steps = max(1, round(5.0 * 4.0 ** rng.random() * rate))
        spec = training_spec(f"job-{number:02}", network, number, steps, devices, rate, digits)
        jobs.append(Planned(at, number, spec))
        at += rng.expovariate(1.0 / mean_s)
    return jobs


def pace_jobs(digits: Path) -> list[Planned]:
    """Jobs whose pace is to be measured, all there at once: of each network two that train side by side, then one on both devices.
    How many steps are some seconds is tried in this process before."""
    jobs = list[Planned]()
    for network in network_trainer.NETWORKS:
        training = network_trainer.Training(network, digits, 0)
        for _ in range(3):
            training.step()
        begin = time.monotonic()
        for _ in range(20):
            training.step()
        rate = 20.0 / (time.monotonic() - begin)
        for devices in (1, 1, 2):
            spec = training_spec(
                f"pace-{len(jobs)}", network, len(jobs), round(_MEASURED_S * rate), devices, rate, digits
            )
            jobs.append(Planned(0.0, len(jobs), spec))
    return sorted(jobs, key=lambda job: job.spec.devices)


def rates_of(jobs: Sequence[Planned], checkpoints: Sequence[Path]) -> dict[tuple[str, int], float]:
    """Steps a second of each network on each number of devices, from what the jobs left beside their checkpoints."""
    steps, seconds = dict[tuple[str, int], float](), dict[tuple[str, int], float]()
    for job, checkpoint in zip(jobs, checkpoints, strict=True):
        timing = json.loads((checkpoint / "timing").read_text())
        key = job.spec.command[2], job.spec.devices
        steps[key] = steps.get(key, 0.0) + timing["steps"]
        seconds[key] = seconds.get(key, 0.0) + timing["seconds"]
    return {key: steps[key] / seconds[key] for key in steps}


def trained_right(job: Planned, checkpoint: Path, digits: Path) -> bool:
    """Whether a checkpoint holds all steps, and the weights of a run that was not disturbed, but for the rounding of threads."""
    training = network_trainer.Training(job.spec.command[2], digits, job.seed)
    while training.steps < job.spec.steps:
        training.step()
    wanted = {name: value.clone() for name, value in training.model.state_dict().items()}
    training.steps = 0
    training.restore(checkpoint)
    state = training.model.state_dict()
    return training.steps == job.spec.steps and all(
        bool(np.allclose(state[name].numpy(), value.numpy(), rtol=1e-3, atol=1e-4)) for name, value in wanted.items()
    )


def losses_of(checkpoint: Path) -> tuple[float, float]:
    """The first and the last loss of the last attempt."""
    first, last = json.loads((checkpoint / "losses").read_text())
    return float(first), float(last)
