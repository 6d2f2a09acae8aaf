"""Tiresias (Gu, Chowdhury, Shin, Zhu, Jeon, Qian, Liu, Guo, NSDI'19; `SymbioticLab/Tiresias` @959f9b0): least attained service.

Service is devices times time. Queues have limits on it; a job starts in the first and is demoted when its service reaches the
limit. Inside a queue 2D-LAS is first in, first out. 2D-Gittins takes the largest index first there: the probability that a
job ends within the next `delta` of service, over the service expected to be spent in that delta, given the distribution of past
services. The published code divides by the mean of whole services in the window instead of the service beyond what was attained;
here it is the latter, as the paper defines it.

Promotion: who has waited `knob` times as long as it has run goes back to the first queue, both clocks at zero. Tiresias learns a
gang's need of consolidation from its messages; here placement always takes the fewest nodes.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

from bricolage.cluster.jobs import JobState
from bricolage.cluster.order_policies import OrderPolicy, Rank

LIMITS = (3250.0, 7200.0, 18000.0)
"""Device-seconds: the defaults of the published code."""


class LeastAttained(OrderPolicy):
    """2D-LAS in queues."""

    preemptive = True

    def __init__(self, limits: Sequence[float] = LIMITS, knob: float = math.inf) -> None:
        self.limits = tuple(limits)
        self.knob = knob
        self._from: dict[int, tuple[float, float]] = {}

    def queue(self, state: JobState) -> int:
        """From 0, by what it has attained since it was last promoted."""
        return bisect_right(self.limits, state.attained_s - self._from.get(state.number, (0.0, 0.0))[0] + 1e-6)

    def rank(self, state: JobState, now: float) -> Rank:
        """Its queue, then its place inside."""
        del now
        return float(self.queue(state)), *self._inside(state), float(state.number)

    def _inside(self, state: JobState) -> Rank:
        del state
        return ()

    def next_change(self, state: JobState, now: float, running: bool) -> float:
        """When it is demoted, or promoted."""
        attained, ran = self._from.get(state.number, (0.0, 0.0))
        queue = self.queue(state)
        if running:
            limit = self._limit(state, queue)
            return now + max((limit - (state.attained_s - attained)) / state.job.devices, 1e-6)
        if queue and self.knob < math.inf:
            return max(state.waits_since_s + self.knob * (state.run_s - ran), now + 1e-6)
        return math.inf

    def _limit(self, state: JobState, queue: int) -> float:
        del state
        return self.limits[queue] if queue < len(self.limits) else math.inf

    def reorder(self, state: JobState, now: float) -> None:
        """Promotes a job that has waited for long enough."""
        ran = state.run_s - self._from.get(state.number, (0.0, 0.0))[1]
        if not state.held and self.queue(state) and now - state.waits_since_s >= self.knob * ran - 1e-6:
            self._from[state.number] = (state.attained_s, state.run_s)


def gittins_index(services: Sequence[float], attained: float, delta: float) -> float:
    """Probability of an end within `delta` of service over the service expected to be spent in it, beyond `attained`.

    Args:
        services: total services of past jobs, ascending.
        attained: what the job has had.
        delta: the window.
    """
    first = bisect_right(services, attained)
    left = len(services) - first
    if not left:
        return 0.0
    within = services[first : bisect_right(services, attained + delta)]
    # A job that does not end within the window spends all of it.
    spent = sum(service - attained for service in within) + (left - len(within)) * delta
    return len(within) / spent if spent else math.inf


class Gittins(LeastAttained):
    """2D-Gittins in queues, given the services of past jobs: their distribution, not which job has which."""

    def __init__(self, services: Sequence[float], limits: Sequence[float] = LIMITS, knob: float = math.inf) -> None:
        super().__init__(limits, knob)
        self.services = sorted(services)
        self._steps = 8

    def _inside(self, state: JobState) -> Rank:
        queue = self.queue(state)
        delta = self.limits[queue] if queue < len(self.limits) else math.inf
        index = gittins_index(self.services, state.attained_s, min(delta, 1e12))
        return (-index, *super()._inside(state))

    def _limit(self, state: JobState, queue: int) -> float:
        """Ranks move with each second of service; they are looked at again after an eighth of a queue."""
        end = super()._limit(state, queue)
        start = self.limits[queue - 1] if queue else 0.0
        width = ((end if end < math.inf else 2 * start) - start) / self._steps
        attained = state.attained_s - self._from.get(state.number, (0.0, 0.0))[0]
        return min(end, start + (math.floor((attained - start) / width + 1e-9) + 1) * width)
