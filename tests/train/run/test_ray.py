"""Plans on the nodes of a Ray cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")

from bricolage.errors import TrainingWorkerFailed
from bricolage.train.run.document import write_plan
from bricolage.train.run.launch_plan import read_result
from bricolage.train.run.ray_launch import run_on_ray
from tests.ray_nodes import imports, ray_network
from tests.train.run.made import plan


@pytest.mark.slow  # a cluster of two nodes takes ten seconds
def test_two_nodes_run_a_plan_and_a_process_that_dies_is_told(tmp_path: Path) -> None:
    made = plan(2, layers=2)
    here = replace(made, devices=replace(made.devices, here=False))
    (tmp_path / "bad").mkdir()
    write_plan(here, tmp_path)
    write_plan(replace(here, step=replace(here.step, batch="code.py:dying")), tmp_path / "bad")
    with ray_network() as network:
        with pytest.raises(TrainingWorkerFailed, match="has 0 processors for 2 processes"):
            run_on_ray(tmp_path, network.address, seconds=0.1)
        for _ in range(2):
            network.add_node(num_cpus=1, env_vars=imports())
        found = run_on_ray(tmp_path, network.address, seconds=0.1, timeout_s=60.0)
        assert found == read_result(tmp_path)
        assert set(found.measured) == {"pipeline", "data parallel", "single process"}
        assert all(one.accepted for one in found.checks.values()) and not found.failures
        with pytest.raises(TrainingWorkerFailed):
            run_on_ray(tmp_path / "bad", network.address, seconds=0.1, timeout_s=20.0)
