"""Jobs as processes of this machine. Devices are numbers that are given out: for one machine with several GPUs, or without any."""

from __future__ import annotations

from collections.abc import Sequence

from bricolage.cluster.engines.gangs import GangEngine, Node
from bricolage.cluster.engines.job_command import JobWork
from bricolage.cluster.engines.job_process import KeptProcess
from bricolage.cluster.job_engine import Gang


class LocalEngine(GangEngine[list[KeptProcess]]):
    """Every node of the cluster is this machine. When this process ends, jobs save and end."""

    def nodes(self) -> set[Node]:
        """All of them."""
        return set(self._free)

    def launch(
        self, gang: Gang, work: JobWork, attempt: int, devices: tuple[tuple[int, ...], ...]
    ) -> list[KeptProcess]:
        """One process for each node."""
        processes: list[KeptProcess] = []
        for rank, variables in enumerate(work.variables(gang, devices, attempt, "127.0.0.1")):
            lock, output = str(work.lock(rank)), str(work.output)
            processes.append(KeptProcess(work.command, str(work.directory), variables, lock, output, work.grace_s))
        return processes

    def exits(self, handle: list[KeptProcess]) -> Sequence[int | None]:
        """Of each process."""
        return [process.exit_code() for process in handle]

    def save(self, handle: list[KeptProcess]) -> None:
        """Asks all."""
        for process in handle:
            process.save()

    def kill(self, handle: list[KeptProcess]) -> None:
        """Ends all."""
        for process in handle:
            process.kill()
