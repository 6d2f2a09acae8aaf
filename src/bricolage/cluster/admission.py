"""Quotas of queues: which jobs a policy gets to see. Those with which a queue would exceed its quota are held back, in order."""

from __future__ import annotations

from collections.abc import Iterable

from bricolage.cluster.jobs import JobState, TrainingJob
from bricolage.cluster.machines import QueueQuota


class Admission:
    """Devices that queues may have at a time, and who waits for them. A queue without a quota is always admitted."""

    def __init__(self, quotas: Iterable[QueueQuota]) -> None:
        self._most = {one.queue: one.devices for one in quotas}
        self._used = dict.fromkeys(self._most, 0)
        self._held_back: dict[str, list[JobState]] = {queue: [] for queue in self._most}

    def most(self, job: TrainingJob) -> int | None:
        """What its queue may have; None without a quota."""
        return self._most.get(job.queue)

    def admits(self, state: JobState) -> bool:
        """Whether a job that comes is admitted; one that holds devices already always is. Else it is held back."""
        queue = state.job.queue
        if queue not in self._most:
            return True
        if not state.held and self._used[queue] + state.job.devices > self._most[queue]:
            self._held_back[queue].append(state)
            return False
        self._used[queue] += state.job.devices
        return True

    def forgets(self, state: JobState) -> bool:
        """Whether a job that is not wanted any more was held back; then nothing else has to be told of it."""
        back = self._held_back.get(state.job.queue, [])
        if state in back:
            back.remove(state)
            return True
        return False

    def freed(self, state: JobState) -> list[JobState]:
        """Who is admitted now that an admitted job is over."""
        queue = state.job.queue
        if queue not in self._most:
            return []
        self._used[queue] -= state.job.devices
        back, found = self._held_back[queue], list[JobState]()
        while back and self._used[queue] + back[0].job.devices <= self._most[queue]:
            self._used[queue] += back[0].job.devices
            found.append(back.pop(0))
        return found
