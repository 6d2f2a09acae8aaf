"""Deadlines in a queue: earliest deadline first, and least laxity first.

The second is GENIE's order in the spirit of its abstract (Chen et al., DATE'19 and TPDS'20: "shortest waiting allowance first");
neither code nor data is public. Its allowance is deadline - now - predicted run time on the best placement; since now is the same
for all, the order among waiting jobs does not change with time.
"""

from __future__ import annotations

from bricolage.cluster.jobs import JobState
from bricolage.cluster.order_policies import OrderPolicy, Rank


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
