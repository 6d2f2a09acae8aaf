"""Packing by predicted interference, in the spirit of two abstracts: neither code nor data of them is public.

`Harmony` (Bao, Peng, Wu, INFOCOM'19) learns to place jobs; since most placements are never seen, a network predicts their reward,
the speed with interference. Here the reward is the sum of both relative speeds, of pairs that were run or completed from those
(`cluster/completion.py`), and the best one is taken instead of an agent's. `Horus` (Yeung, Borowiec, Yang, Friday, Harper,
Garraghan, TPDS'22) predicts a job's utilisation of a device and puts jobs together while the sum is below a threshold. Here a job's
utilisation is what others lose with it, in the mean over their kinds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from bricolage.cluster.jobs import JobState
from bricolage.cluster.target_policies import ClusterView, Stateless, Target


class _BesideRunning(Stateless, ABC):
    """Jobs in order of submission, without preemption: on free devices, else with a job that runs alone."""

    def __init__(self) -> None:
        self._pairs: list[tuple[int, int]] = []

    def pairs(self) -> Sequence[tuple[int, int]]:
        """Those that share devices from now on."""
        return self._pairs

    def target(self, view: ClusterView) -> Target:
        """Who runs stays as it is."""
        self._pairs = []
        wanted = {state.number: (state.held_kind, state.held) for state in view.states if state.held}
        free, alone = dict(view.capacity), dict[JobState, str]()
        for state in view.states:
            if state.held and (state.mate is None or state.number < state.mate.number):
                free[state.held_kind] -= state.held
                if state.mate is None:
                    alone[state] = state.held_kind
                else:
                    self._pairs.append((state.number, state.mate.number))
        for state in view.states:
            if state.held:
                continue
            kind = next((kind for kind in state.kinds if free[kind] >= state.job.devices), "")
            if kind:
                wanted[state.number] = kind, state.job.devices
                free[kind] -= state.job.devices
                alone[state] = kind
                continue
            partners = [
                (value, -other.number, other)
                for other, on in alone.items()
                if min(state.slowed_by(other, on), other.slowed_by(state, on)) > 0.0
                and (value := self.worth(state, other, on, view)) > 0.0
            ]
            if partners:
                mate = max(partners, key=lambda partner: partner[:2])[2]
                wanted[state.number] = alone.pop(mate), mate.job.devices
                self._pairs.append((mate.number, state.number))
        return wanted

    @abstractmethod
    def worth(self, state: JobState, other: JobState, kind: str, view: ClusterView) -> float:
        """Of putting a job with another on its devices; at most 0 where it shall wait instead."""


class Harmony(_BesideRunning):
    """The largest reward."""

    def worth(self, state: JobState, other: JobState, kind: str, view: ClusterView) -> float:
        """The sum of relative speeds beyond that of one alone."""
        del view
        return state.slowed_by(other, kind) + other.slowed_by(state, kind) - 1.0


class Horus(_BesideRunning):
    """The smallest sum of utilisations below a threshold."""

    def __init__(self, threshold: float = 1.0) -> None:
        super().__init__()
        self.threshold = threshold

    def worth(self, state: JobState, other: JobState, kind: str, view: ClusterView) -> float:
        """What is left of the threshold."""
        return self.threshold - utilisation(state, kind, view) - utilisation(other, kind, view)


def utilisation(state: JobState, kind: str, view: ClusterView) -> float:
    """What other jobs lose with it on a kind of device, in the mean over those that are there; 1.0 where none fits with it."""
    others = [
        candidate for candidate in view.states if candidate is not state and candidate.job.devices == state.job.devices
    ]
    losses = [1.0 - speed for other in others if (speed := other.slowed_by(state, kind)) > 0.0]
    return sum(losses) / len(losses) if losses else 1.0
