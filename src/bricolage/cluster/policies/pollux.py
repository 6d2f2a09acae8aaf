"""Pollux (Qiao, Choe, Jayaram Subramanya, Neiswanger, Ho, Zhang, Ganger, Xing, OSDI'21; `petuum/adaptdl`, Apache-2.0): the
numbers of devices whose speed-ups have the largest power mean.

A job's speed-up is its speed relative to that on its own number of devices; one that is moved counts less by the restart factor
(age - restarts * cost) / (age + cost). The power mean of exponent -1 is harmonic: who has little counts most. Speeds are goodput at
the best batch size where a job has a profile (`adaptive.py`), else throughput. A job without devices counts with a small speed-up
instead of none, so that a mean can be taken where not all fit.

The published search is genetic, 100 allocations over 100 generations. With a negative exponent the largest mean is the least sum of
powers, to which each job adds what its own devices say: an integer programme, whose best is the best of all allocations.
"""

from __future__ import annotations

from dataclasses import dataclass

from bricolage.cluster.jobs import JobState
from bricolage.cluster.policies.elastic import Adapting, best_configurations, speeds
from bricolage.cluster.target_policies import ClusterView, Target

_WAITING = 0.05
"""Speed-up that a job without devices counts with."""


@dataclass
class Pollux(Adapting):
    """The programme at work."""

    every_s: float = 60.0
    power: float = -1.0
    """Below 0."""
    limit_s: float = 5.0

    def __post_init__(self) -> None:
        super().__init__()

    def target(self, view: ClusterView) -> Target:
        """The best mean."""
        costs = [
            [(kind, devices, value**self.power) for kind, devices, value in self.speed_ups(state, view)]
            for state in view.states
        ]
        return self.adapt(view, best_configurations(view, costs, _WAITING**self.power, self.limit_s))

    def speed_ups(self, state: JobState, view: ClusterView) -> list[tuple[str, int, float]]:
        """Of each kind and number of devices that a job can have."""
        base = state.rate_on(state.kinds[0])
        age, cost = max(view.now - state.job.submit_s, self.every_s), view.cluster.restart_s
        factor = max((age - state.restarts * cost) / (age + cost), 0.01)
        choices = []
        for kind in state.kinds:
            for devices, times, _ in speeds(state, kind, max(view.cluster.nodes(kind))):
                if devices <= view.capacity[kind]:
                    stays = not state.held or (kind, devices) == (state.held_kind, state.held)
                    value = state.rate_on(kind) * times / base * (1.0 if stays else factor)
                    choices.append((kind, devices, max(value, _WAITING)))
        return choices
