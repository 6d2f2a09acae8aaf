"""Served clusters for tests."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bricolage.cluster.engines.local import LocalEngine
from bricolage.cluster.machines import ClusterSpec
from bricolage.cluster.serve.service import MakeEngine, Service
from bricolage.cluster.serve.spool import ask
from tests.cluster.serve import trainer

LIMIT_S = 60.0
"""After which a test fails, however slow the machine."""


def job(name: str, steps: int, devices: int = 1, pause: float = 0.01, fail_at: int = -1, **more: Any) -> dict[str, Any]:
    """A submission of a trainer that takes `pause` seconds a step."""
    command = [sys.executable, "-I", "-S", trainer.__file__, str(pause), str(fail_at)]
    told = {"name": name, "command": command, "steps": steps, "devices": devices, "rates": {"a": 1.0 / pause}}
    return {**told, "directory": str(Path(trainer.__file__).parent), **more}


def weight(state: Path, name: str) -> tuple[float, int]:
    """What a job has trained, and its steps."""
    word, _, count = (state / "jobs" / name / "checkpoint" / "weight").read_text().partition(" ")
    return float.fromhex(word), int(count)


def saved(state: Path, name: str) -> int:
    """Steps that a job has saved."""
    try:
        return weight(state, name)[1]
    except FileNotFoundError:
        return 0


def serving(
    state: Path,
    cluster: ClusterSpec,
    policy: str,
    talk: Callable[[], object],
    make: MakeEngine = LocalEngine,
    until_idle: bool = True,
) -> Mapping[str, Any]:
    """Serves while `talk` runs, and then until all jobs are over. Returns the states of the jobs by name."""
    service = Service(state, cluster, policy, make)
    failed: list[BaseException] = []

    def speak() -> None:
        try:
            talk()
        except BaseException as error:
            failed.append(error)

    thread, end = threading.Thread(target=speak), time.monotonic() + LIMIT_S
    thread.start()
    try:
        service.serve(
            lambda: (
                time.monotonic() > end or (not thread.is_alive() and (service.idle or not until_idle or bool(failed)))
            )
        )
    finally:
        service.close()
        thread.join()
    if failed:
        raise failed[0]
    assert time.monotonic() < end, "the jobs did not end"
    return {one.job.name: one for one in service.loop.states}


def submit(state: Path, *jobs: dict[str, Any]) -> list[str]:
    """Submits; names."""
    found: Any = ask(state, {"submit": list(jobs)})["submitted"]
    return list(found)


def listed(state: Path) -> dict[str, Any]:
    """Rows by name."""
    found: Any = ask(state, {"list": {}})["jobs"]
    return {row["name"]: row for row in found}


def until(told: Callable[[], object]) -> None:
    """Waits for it to be so."""
    end = time.monotonic() + LIMIT_S
    while not told():
        assert time.monotonic() < end
        time.sleep(0.02)
