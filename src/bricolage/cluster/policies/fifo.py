"""First in, first out: strict, and with EASY backfilling, which is what Slurm's and most clusters' schedulers do today."""

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
