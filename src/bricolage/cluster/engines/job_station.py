"""What runs on a node of a Ray cluster: one actor that starts the node's processes of jobs and knows how they ended. It outlives
the driver, so that jobs go on while there is none, and tells the next one what runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bricolage.cluster.engines.job_process import KeptProcess


class JobStation:
    """The actor. Processes have names: job, attempt and rank."""

    def __init__(self) -> None:
        self._processes: dict[str, KeptProcess] = {}
        self._devices: dict[str, tuple[int, ...]] = {}
        self._slots: list[tuple[str, int]] = []

    def slots(self, given: Sequence[tuple[str, int]] | None = None) -> list[tuple[str, int]]:
        """Which nodes of the cluster's file this one is; of what a driver has said, the next one hears."""
        if given is not None:
            self._slots = list(given)
        return self._slots

    def start(
        self,
        name: str,
        devices: Sequence[int],
        command: Sequence[str],
        directory: str,
        variables: Mapping[str, str],
        lock: str,
        output: str,
        grace_s: float,
    ) -> str:
        """Starts a process; why it cannot be, or nothing."""
        try:
            Path(lock).parent.joinpath("checkpoint").mkdir(parents=True, exist_ok=True)
            self._processes[name] = KeptProcess(command, directory, variables, lock, output, grace_s)
        except OSError as error:
            return str(error)
        self._devices[name] = tuple(devices)
        return ""

    def look(self) -> dict[str, int | None]:
        """The exit code of each process, None while it runs."""
        return {name: process.exit_code() for name, process in self._processes.items()}

    def devices(self) -> dict[str, tuple[int, ...]]:
        """Of each process that runs, or whose end is not told yet."""
        return self._devices

    def save(self, name: str) -> None:
        """Asks a process to save and to end."""
        if name in self._processes:
            self._processes[name].save()

    def kill(self, name: str) -> None:
        """Ends a process at once."""
        if name in self._processes:
            self._processes[name].kill()

    def forget(self, name: str) -> None:
        """A process has ended, and everybody knows."""
        self._processes.pop(name, None)
        self._devices.pop(name, None)
