"""Orders of a queue that need a job alone: by submission, by deadline, shortest first.

First in, first out, strict and with EASY backfilling, is what Slurm's and most clusters' schedulers do today.

Least laxity is GENIE's order in the spirit of its abstract (Chen et al., DATE'19 and TPDS'20: "shortest waiting allowance first");
neither code nor data is public. Its allowance is deadline - now - predicted run time on the best placement; since now is the same
for all, the order among waiting jobs does not change with time.

Shortest first are the classical bounds that predictions are compared with, and their deployable form. SJF and SRTF know how long
jobs take (oracles). QSSF (Quasi-Shortest-Service-First: Hu, Sun, Yan, Wen, Zhang, Helios, SC'21,
`S-Lab-System-Group/HeliosArtifact`) predicts it from users and names; it orders by predicted duration times devices, without
preemption, with strict head of line. Which of these a policy is depends on the estimates that it is given.
"""

from __future__ import annotations

from bricolage.cluster.jobs import JobState
from bricolage.cluster.order_policies import OrderPolicy, Rank


class Fifo(OrderPolicy):
    """By time of submission. A job that does not fit blocks those behind it."""

    blocking = True

    def rank(self, state: JobState, now: float) -> Rank:
        """Its place in the history."""
        del now
        return (float(state.number),)


class EasyBackfill(Fifo):
    """The same with a reservation for the first one, and who does not delay it may start."""

    backfills = True


class EarliestDeadline(OrderPolicy):
    """By deadline, with preemption; jobs without one come last, by submission."""

    preemptive = True

    def rank(self, state: JobState, now: float) -> Rank:
        """Its deadline."""
        del now
        return state.job.deadline_s, float(state.number)


class LeastLaxity(OrderPolicy):
    """By deadline less predicted run time, without preemption: what waits longest-suffering comes first."""

    def rank(self, state: JobState, now: float) -> Rank:
        """Deadline less the seconds that it is believed to take on its fastest kind."""
        del now
        return state.job.deadline_s - state.left_s(state.kinds[0]), float(state.number)


class ShortestJob(OrderPolicy):
    """Shortest job first, without preemption."""

    blocking = True

    def rank(self, state: JobState, now: float) -> Rank:
        """Seconds that it is believed to take."""
        del now
        return state.left_s(state.kinds[0]), float(state.number)


class ShortestRemaining(OrderPolicy):
    """Shortest remaining time first, with preemption. Ties go to the earlier submission."""

    preemptive = True
    falls = True

    def rank(self, state: JobState, now: float) -> Rank:
        """Seconds that are believed to be left on its fastest kind."""
        del now
        return state.left_s(state.kinds[0]), float(state.number)


class QuasiShortestService(OrderPolicy):
    """Smallest predicted duration times devices first, without preemption."""

    blocking = True

    def rank(self, state: JobState, now: float) -> Rank:
        """Device-seconds that it is believed to need."""
        del now
        return state.left_s(state.kinds[0]) * state.job.devices, float(state.number)
