"""Links of a bandwidth between processes of one machine: namespaces of the network, joined by a bridge, held by `tc`.

Each process has a network of its own with one interface; a switch joins them. Token buckets (`tbf`) hold what an interface sends to
a bandwidth, and what the switch sends to it. That needs root, iproute2 and a Linux kernel with veth, bridge and tbf. All that is
made here carries the number of this process in its name, and is removed in the end, or by the next one where this one is killed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from bricolage.device.device import Link

_NETWORK = "10.213.7"
_PORT = 29411
GOODPUT = 0.94
"""Of a bandwidth, what TCP over Ethernet frames of 1,500 bytes hands over."""
BANDWIDTHS = {"10gbit": 10e9, "1gbit": 1e9, "400mbit": 400e6}
"""Bits a second."""


@dataclass(frozen=True)
class PlanProcesses:
    """Processes that run a plan in networks."""

    seconds: float
    """For the race."""
    timeout_s: float
    pipelines: int
    """That take part."""
    host: int = 1
    """Processes in each network: a host, inside which messages are not held."""
    apart: bool = False
    """Whether each has a core of its own, and no other."""


class NoNetworks(Exception):
    """This machine does not let networks be made; the message says why."""


def link_of(bandwidth: str) -> Link:
    """As a plan sees it."""
    return Link(("0", "1"), BANDWIDTHS[bandwidth] / 8e9 * GOODPUT)


class Networks:
    """So many networks of one interface each, joined at a bandwidth."""

    def __init__(self, count: int, bandwidth: str) -> None:
        """Raises NoNetworks where that is not allowed here."""
        self.names = [f"bricolage-{os.getpid()}-{number}" for number in range(count)]
        self._hub = f"bricolage-{os.getpid()}-hub"
        missing = [one for one in ("ip", "tc") if shutil.which(one) is None]
        if missing or os.geteuid() != 0:
            raise NoNetworks(f"{' and '.join(missing)} is missing" if missing else "only root may make networks")
        _sweep()
        try:
            self._make(bandwidth)
        except NoNetworks:
            self.close()
            raise

    def __enter__(self) -> Networks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _make(self, bandwidth: str) -> None:
        bits = BANDWIDTHS[bandwidth]
        # What may be sent at once: of a millisecond, so that a message is not done before the bucket is empty.
        bucket = ["tbf", "rate", bandwidth, "burst", str(max(64_000, int(bits / 8e3))), "latency", "200ms"]
        for one in (self._hub, *self.names):
            _run("ip", "netns", "add", one)
        _run("ip", "-n", self._hub, "link", "add", "switch", "type", "bridge")
        _run("ip", "-n", self._hub, "link", "set", "switch", "up")
        for number, one in enumerate(self.names):
            port = f"port{number}"
            _run("ip", "-n", self._hub, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", one)
            _run("ip", "-n", self._hub, "link", "set", port, "master", "switch", "up")
            _run("ip", "-n", one, "addr", "add", f"{self.address(number)}/24", "dev", "eth0")
            _run("ip", "-n", one, "link", "set", "lo", "up")
            _run("ip", "-n", one, "link", "set", "eth0", "up")
            _run("ip", "netns", "exec", one, "tc", "qdisc", "add", "dev", "eth0", "root", *bucket)
            _run("ip", "netns", "exec", self._hub, "tc", "qdisc", "add", "dev", port, "root", *bucket)

    def close(self) -> None:
        """Removes the networks."""
        for one in (*self.names, self._hub):
            subprocess.run(["ip", "netns", "del", one], capture_output=True, check=False)

    def inside(self, number: int) -> list[str]:
        """How a command begins that runs in one of the networks."""
        return ["ip", "netns", "exec", self.names[number]]

    @staticmethod
    def address(number: int) -> str:
        """Of one of the networks, as the others see it."""
        return f"{_NETWORK}.{number + 1}"

    def run_plan(self, folder: Path, processes: PlanProcesses) -> None:
        """Runs a plan; its folder gets `result.json`.

        Raises:
            RuntimeError: a process fails, or the plan takes more than ten times `timeout_s`.
        """
        started: list[subprocess.Popen[str]] = []
        arguments = ["--seconds", str(processes.seconds), "--timeout", str(processes.timeout_s)]
        arguments += ["--pipelines", str(processes.pipelines)]
        count = processes.host * len(self.names)
        try:
            for rank in range(count):
                own = {
                    "RANK": str(rank),
                    "WORLD_SIZE": str(count),
                    "MASTER_ADDR": self.address(0),
                    "MASTER_PORT": str(_PORT),
                    "GLOO_SOCKET_IFNAME": "eth0",
                }
                core = ["taskset", "-c", str(rank)] if processes.apart else []
                command = [*self.inside(rank // processes.host), *core, sys.executable, "-m", "bricolage.train"]
                started.append(
                    subprocess.Popen(
                        [*command, "run", str(folder), *arguments],
                        env={**os.environ, **own},
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.PIPE,
                        text=True,
                    )
                )
            self._wait(started, 10 * processes.timeout_s)
        finally:
            for one in started:
                one.kill()
                one.wait()

    @staticmethod
    def _wait(started: Sequence[subprocess.Popen[str]], limit_s: float) -> None:
        for rank, one in enumerate(started):
            try:
                _, told = one.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                raise RuntimeError(f"rank {rank} has not ended after {limit_s:.0f} s") from None
            if one.returncode:
                raise RuntimeError(f"rank {rank} fails: {told.strip()[-600:]}")


def _sweep() -> None:
    """Removes what killed processes have left."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
    for name in (line.split()[0] for line in listed.splitlines() if line):
        made = re.fullmatch(r"bricolage-(\d+)-\w+", name)
        if made is not None and not Path("/proc", made[1]).exists():
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoNetworks(f"'{' '.join(command[:6])} ...' fails: {done.stderr.strip()[:200]}")
