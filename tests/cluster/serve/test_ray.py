"""Jobs on real Ray nodes: processes of this machine whose devices are declared."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bricolage.cluster.engines.ray_cluster import RayEngine
from bricolage.cluster.machines import ClusterSpec, NodeGroup
from bricolage.cluster.serve.spool import ask
from bricolage.errors import EngineUnusable, UnreachableCluster
from tests.cluster.making import one_kind
from tests.cluster.serve.making import job, listed, saved, serving, submit, until, weight
from tests.cluster.serve.trainer import trained
from tests.ray_nodes import ROOT, imports, ray_network

ray = pytest.importorskip("ray", reason="ray is not installed")


@contextmanager
def driver(state: Path, address: str, policy: str) -> Iterator[subprocess.Popen[bytes]]:
    """A driver of its own, which is killed at the end."""
    words = [sys.executable, "-c", DRIVER, str(state), address, policy]
    process = subprocess.Popen(words, cwd=ROOT)
    try:
        until(lambda: (state / "serving").exists())
        yield process
    finally:
        process.kill()
        process.wait()


DRIVER = """
import sys
from functools import partial
from pathlib import Path
from bricolage.cluster.engines.ray_cluster import RayEngine
from bricolage.cluster.serve.service import Service
from tests.cluster.making import one_kind
state = Path(sys.argv[1])
Service(state, one_kind(2), sys.argv[3], partial(RayEngine, sys.argv[2], state)).serve()
"""


def right(state: Path, **jobs: int) -> None:
    """Every job has done each step once."""
    for name, steps in jobs.items():
        assert weight(state, name) == (trained(steps), steps), name


@pytest.mark.slow  # ten seconds; the same jobs on processes of this machine are in test_service.py
def test_jobs_outlive_their_driver_and_give_way_under_the_next(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with ray_network({"resources": {"a": 2}}) as network:
        with driver(state, network.address, "srtf"):
            submit(state, job("long", 1_000_000, devices=2))
            until(lambda: listed(state)["long"]["state"] == "running")
        before = saved(state, "long")
        until(lambda: saved(state, "long") > before)  # nobody drives

        def talk() -> None:
            assert listed(state)["long"]["state"] in ("starting", "running")
            assert (state / "jobs" / "long" / "progress-1").exists(), "it was found, not started again"
            submit(state, job("short", 20))
            until(lambda: listed(state)["short"]["state"] == "finished")
            until(lambda: listed(state)["long"]["state"] == "running")
            ask(state, {"cancel": "long"})

        make: Any = partial(RayEngine, network.address, state)
        states = serving(state, one_kind(2), "srtf", talk, make)
        assert states["long"].restarts == 1
    value, done = weight(state, "long")
    assert value == trained(done) and done > before
    right(state, short=20)


def busy(node: str) -> bool:
    """Whether devices of a node are reserved."""
    from ray.util import placement_group_table

    return any(node in facts["bundles_to_node_id"].values() for facts in placement_group_table().values())


@pytest.mark.slow
def test_a_node_that_vanishes_is_replaced_by_one_that_was_to_spare(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with ray_network() as network:
        nodes = [network.add_node(num_cpus=1, resources={"a": 2}, env_vars=imports()) for _ in range(3)]

        def talk() -> None:
            submit(state, job("gang", 300, devices=4))
            until(lambda: saved(state, "gang") >= 50)
            used = {one["NodeID"] for one in ray.nodes() if one["Resources"].get("a") and busy(one["NodeID"])}
            network.remove_node(next(one for one in nodes if one.node_id in used), allow_graceful=False)

        make: Any = partial(RayEngine, network.address, state)
        states = serving(state, one_kind(2, nodes=2), "srtf", talk, make)
        assert states["gang"].restarts >= 1
    right(state, gang=300)


@pytest.mark.slow
def test_clusters_that_offer_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreachableCluster):
        opened(tmp_path / "none", one_kind(1), "127.0.0.1:1")
    with ray_network() as network, pytest.raises(EngineUnusable, match="2 a"):
        opened(tmp_path / "other", ClusterSpec((NodeGroup("a", 1, 2),)), network.address)


def opened(state: Path, cluster: ClusterSpec, address: str) -> None:
    from bricolage.cluster.serve.service import Service

    Service(state, cluster, "fifo", partial(RayEngine, address, state))
