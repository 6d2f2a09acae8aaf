"""A cluster that is served by the command line's own process, on Ray nodes or as processes of this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.cluster_real.workload import GROUPS, Planned
from bricolage.base.codec import encode
from bricolage.cluster.machines import ClusterSpec, NodeGroup
from bricolage.cluster.serve.spool import ask
from bricolage.errors import NoAnswer, NotServed

_ROOT = Path(__file__).parents[2]
_START_S = 120.0
_STARTS = 3
"""Of a node."""


def _started(make: Callable[[], Any]) -> Any:
    """A Ray node, which is given 30 s to start: on a busy machine it may take several attempts."""
    for _ in range(_STARTS - 1):
        with suppress(Exception):  # Ray has no class of its own for this
            return make()
    return make()


class RayNodes:
    """A Ray cluster of processes of this machine, whose nodes offer the devices as resources."""

    def __init__(self, groups: Sequence[NodeGroup] = GROUPS) -> None:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        from ray.cluster_utils import Cluster

        self._variables = {"PYTHONPATH": os.pathsep.join([str(_ROOT / "src"), str(_ROOT)])}
        head = {"num_cpus": 0, "include_dashboard": False, "env_vars": self._variables}
        self._cluster = _started(lambda: Cluster(initialize_head=True, head_node_args=head))
        self.nodes = [self._add(group.kind, group.devices) for group in groups for _ in range(group.nodes)]
        self.words = ("--ray", str(self._cluster.address))

    def _add(self, kind: str, devices: int) -> tuple[str, int, Any]:
        node = {"num_cpus": 1, "resources": {kind: devices}, "env_vars": self._variables}
        return kind, devices, _started(lambda: self._cluster.add_node(**node))

    def lose(self, number: int) -> None:
        """Kills a node's processes."""
        self._cluster.remove_node(self.nodes[number][2], allow_graceful=False)

    def bring_back(self, number: int) -> None:
        """Another node of the same devices."""
        kind, devices, _ = self.nodes[number]
        self.nodes[number] = self._add(kind, devices)

    def close(self) -> None:
        """Ends it."""
        self._cluster.shutdown()


class LocalNodes:
    """Processes of this machine."""

    words: tuple[str, ...] = ()
    nodes: tuple[()] = ()

    def lose(self, number: int) -> None:
        """There are no nodes to lose."""
        raise NotImplementedError

    bring_back = lose

    def close(self) -> None:
        """Nothing was started."""


Nodes = RayNodes | LocalNodes


@dataclass
class Driver:
    """The process that serves."""

    state: Path
    words: Sequence[str]
    process: subprocess.Popen[bytes] | None = field(default=None)

    def start(self) -> None:
        """Until it answers."""
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT / "src"), str(_ROOT)])}
        command = [sys.executable, "-m", "bricolage", "cluster", "serve", *self.words, "--state", str(self.state)]
        self.process = subprocess.Popen(command, env=variables, stdin=subprocess.DEVNULL)
        end = time.monotonic() + _START_S
        while True:
            try:
                ask(self.state, {"list": {}}, timeout_s=_START_S)
                return
            except (NotServed, NoAnswer):
                if self.process.poll() is not None or time.monotonic() > end:
                    raise
                time.sleep(0.2)

    def kill(self) -> None:
        """Without a word."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """As a supervisor would."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(120)


@contextmanager
def serving(folder: Path, cluster: ClusterSpec, policy: str, nodes: Nodes) -> Iterator[Driver]:
    """Serves in a fresh folder."""
    folder.mkdir(parents=True)
    (folder / "cluster.json").write_text(json.dumps(encode(cluster)))
    words = ["--cluster", str(folder / "cluster.json"), "--policy", policy, *nodes.words]
    driver = Driver(folder / "state", words)
    try:
        driver.start()
        yield driver
    finally:
        driver.end()


def submit(driver: Driver, jobs: Sequence[Planned], meanwhile: Callable[[], object] = lambda: None) -> None:
    """Each at its time; `meanwhile` is called in between."""
    begin = time.monotonic()
    for one in jobs:
        while time.monotonic() < begin + one.at_s:
            meanwhile()
            time.sleep(0.05)
        ask(driver.state, {"submit": [encode(one.spec)]})


def rows(driver: Driver) -> list[dict[str, Any]]:
    """The jobs as they stand."""
    found: Any = ask(driver.state, {"list": {}})["jobs"]
    return list(found)


def wait(driver: Driver, seconds: float, meanwhile: Callable[[], object] = lambda: None) -> list[dict[str, Any]]:
    """Until all jobs are over."""
    end = time.monotonic() + seconds
    while True:
        found = rows(driver)
        if all(row["finish_s"] is not None or row["state"].split(":")[0] in ("failed", "cancelled") for row in found):
            return found
        if time.monotonic() > end:
            left = [(row["name"], row["state"]) for row in found if row["finish_s"] is None]
            raise TimeoutError(f"after {seconds:.0f} s these are not over: {left}")
        meanwhile()
        time.sleep(0.2)


def turns(state: Path) -> list[dict[str, Any]]:
    """The log's turns."""
    lines = (state / "log").read_text(encoding="utf-8").splitlines()
    return [record for record in (json.loads(line)["record"] for line in lines) if "opened" not in record]


__all__ = ["Driver", "LocalNodes", "Nodes", "RayNodes", "rows", "serving", "submit", "turns", "wait"]
