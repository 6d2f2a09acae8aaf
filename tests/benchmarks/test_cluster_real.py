"""Jobs that train, on processes of this machine and on a Slurm: what a death costs, and what is said of it. The benchmark does the
same on Ray nodes."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from benchmarks.cluster_real import kills
from benchmarks.cluster_real.served import LocalNodes
from benchmarks.cluster_real.slurm_daemons import NoSlurm, local_slurm
from benchmarks.cluster_real.workload import drawn

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

from benchmarks.cluster_real import network_jobs, network_trainer, on_slurm  # noqa: E402
from benchmarks.cluster_real.side_by_side import Beside, same_order  # noqa: E402


def test_the_same_seed_draws_the_same_jobs() -> None:
    assert drawn(24, 1) == drawn(24, 1) and drawn(24, 1) != drawn(24, 2)
    assert {job.spec.devices for job in drawn(24, 1)} == {1, 2, 4}


@pytest.mark.slow
def test_kills_lose_no_job_and_no_saved_step(tmp_path: Path) -> None:
    found = kills.run(tmp_path, LocalNodes(), count=6, kills=4, every_s=2.0, seed=3)
    assert found.kills == {"job": 2, "driver": 2}
    assert (found.lost, found.wrong, found.checkpoints_lost) == (0, 0, 0)


_DIES = "echo 7 > x/steps; echo out of luck; exit 3"


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """As many as before."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return network_jobs.write_digits(tmp_path_factory.mktemp("digits"))


@pytest.mark.parametrize("network", network_trainer.NETWORKS)
def test_networks_learn(network: str, digits: Path) -> None:
    training = network_trainer.Training(network, digits, 0)
    losses = [training.step() for _ in range(40)]
    assert np.mean(losses[-5:]) < 0.9 * np.mean(losses[:5])


def test_a_killed_training_goes_on_from_its_checkpoint(digits: Path, tmp_path: Path) -> None:
    """The process is killed once its checkpoint holds steps. The next one begins there, and ends with the weights of a run that was
    not disturbed."""
    rate, steps = 100.0, 400
    job = network_jobs.Planned(0.0, 5, network_jobs.training_spec("x", "perceptron", 5, steps, 1, rate, digits))
    variables = {
        **os.environ,
        **job.spec.environment,
        "BRICOLAGE_CHECKPOINT": str(tmp_path),
        "BRICOLAGE_PROGRESS": str(tmp_path / "progress"),
        "BRICOLAGE_GANG": "1",
    }
    process = subprocess.Popen(job.spec.command, env=variables | {"BRICOLAGE_STEPS": "1000000"})
    until = time.monotonic() + 60.0
    while not (tmp_path / "progress").exists() or int((tmp_path / "progress").read_text()) < 3:
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    saved = int((tmp_path / "steps").read_text())
    assert saved >= 3
    job = replace(job, spec=replace(job.spec, steps=float(saved + 20)))
    subprocess.run(job.spec.command, env=variables | {"BRICOLAGE_STEPS": str(saved + 20)}, check=True)
    assert (tmp_path / "timing").read_text().startswith('{"steps": 20,'), "it did what was left, and no more"
    assert network_jobs.trained_right(job, tmp_path, digits)


def test_paces_are_steps_by_seconds_of_all_that_measured_them(digits: Path, tmp_path: Path) -> None:
    jobs = network_jobs.pace_jobs(digits)
    folders = [tmp_path / job.spec.name for job in jobs]
    for number, folder in enumerate(folders):
        folder.mkdir()
        (folder / "timing").write_text(f'{{"steps": {10 * (number + 1)}, "seconds": 2.0}}')
    rates = network_jobs.rates_of(jobs, folders)
    assert set(rates) == {(network, devices) for network in network_trainer.NETWORKS for devices in (1, 2)}
    assert rates["perceptron", 1] == (10 + 20) / 4.0
    again = network_jobs.drawn_networks(9, 1, rates, digits)
    assert again == network_jobs.drawn_networks(9, 1, rates, digits)
    assert {job.spec.devices for job in again} == {1, 2}
    assert all(4.0 < job.spec.steps / job.spec.rates[network_jobs.CORE] < 21.0 for job in again)


def test_the_order_of_policies_is_that_of_both_means() -> None:
    def row(policy: str, real: float, simulated: float) -> Beside:
        return Beside(policy, 1.0, real, 0, 1.0, simulated, 0, 0.0, 0.0, 0.0)

    assert same_order([row("a", 1.0, 5.0), row("b", 2.0, 6.0)])
    assert not same_order([row("a", 1.0, 7.0), row("b", 2.0, 6.0)])


def test_a_job_that_dies_on_slurm_is_named_with_the_steps_that_it_saved(digits: Path) -> None:
    with TemporaryDirectory(prefix="slurm") as folder:
        try:
            with local_slurm(Path(folder), 1, kind=network_jobs.CORE) as slurm:
                spec = network_jobs.training_spec("x", "perceptron", 0, 50, 1, 10.0, digits)
                job = network_jobs.Planned(0.0, 0, replace(spec, command=("sh", "-c", _DIES)))
                number = on_slurm.submit_training(slurm, job)
                slurm.call("scontrol", "release", str(number))
                with pytest.raises(
                    RuntimeError, match=r"job x ended as failed \(out of luck\); its checkpoint holds 7 steps"
                ):
                    for _ in range(200):
                        on_slurm.check_alive(slurm, {number: "x"})
                        time.sleep(0.05)
        except NoSlurm as error:
            pytest.skip(f"no Slurm can be started here: {error}")
