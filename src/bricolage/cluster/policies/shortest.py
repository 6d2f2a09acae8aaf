"""Shortest first: the classical bounds that predictions are compared with, and their deployable form.

SJF and SRTF know how long jobs take (oracles). QSSF (Quasi-Shortest-Service-First: Hu, Sun, Yan, Wen, Zhang, Helios, SC'21,
`S-Lab-System-Group/HeliosArtifact`) predicts it from users and names; it orders by predicted duration times devices, without
preemption, with strict head of line. Which of these a policy is depends on the estimates that it is given.
"""

from __future__ import annotations

from bricolage.cluster.jobs import JobState
from bricolage.cluster.order_policies import OrderPolicy, Rank


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
