"""Which jobs a policy gets to see: not those with which a queue would exceed its quota, and not those that come after others that
are not over. They are held back, in order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bricolage.cluster.jobs import JobState, TrainingJob
from bricolage.cluster.machines import QueueQuota


class Admission:
    """Devices that queues may have at a time, and who waits for them; jobs that others wait for. A queue without a quota is always
    admitted."""

    def __init__(self, quotas: Iterable[QueueQuota], jobs: Sequence[TrainingJob] = ()) -> None:
        """`jobs`: those that may be waited for. Who is not among them counts as over."""
        self._most = {quota.queue: quota.devices for quota in quotas}
        self._used = dict.fromkeys(self._most, 0)
        self._held_back: dict[str, list[JobState]] = {queue: [] for queue in self._most}
        wanted = {name for job in jobs for name in job.after}
        self._behind: dict[str, list[JobState]] = {job.name: [] for job in jobs if job.name in wanted}
        """By name of a job that is not over, who comes after it."""

    def most(self, job: TrainingJob) -> int | None:
        """What its queue may have; None without a quota."""
        return self._most.get(job.queue)

    def admits(self, state: JobState) -> bool:
        """Whether a job that comes is admitted; one that holds devices already always is. Else it is held back."""
        before = next((name for name in state.job.after if name in self._behind), "")
        if before and not state.held:
            self._behind[before].append(state)
            return False
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
        for back in (
            self._held_back.get(state.job.queue, []),
            *(self._behind[n] for n in state.job.after if n in self._behind),
        ):
            if state in back:
                back.remove(state)
                return True
        return False

    def freed(self, state: JobState) -> list[JobState]:
        """Who is admitted now that an admitted job is over."""
        queue, admitted = state.job.queue, list[JobState]()
        if queue in self._most:
            self._used[queue] -= state.job.devices
            back = self._held_back[queue]
            while back and self._used[queue] + back[0].job.devices <= self._most[queue]:
                self._used[queue] += back[0].job.devices
                admitted.append(back.pop(0))
        return admitted + [follower for follower in self._behind.pop(state.job.name, ()) if self.admits(follower)]
