"""Pollux (Qiao, Choe, Jayaram Subramanya, Neiswanger, Ho, Zhang, Ganger, Xing, OSDI'21; `petuum/adaptdl`, Apache-2.0): a genetic
search for the numbers of devices whose speed-ups have the largest power mean.

A job's speed-up is its speed relative to that on its own number of devices; one that is moved counts less by the restart factor
(age
- restarts * cost) / (age + cost). The power mean of exponent -1 is harmonic: who has little counts most. Speeds are goodput at the
best batch size where a job has a profile (`adaptive.py`), else throughput. A job
without devices counts with a small speed-up instead of none, so that a mean can be taken where not all fit.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from bricolage.cluster.jobs import JobState
from bricolage.cluster.policies.elastic import Adapting, speeds
from bricolage.cluster.shares import Matrix
from bricolage.cluster.target import ClusterView, Target

_WAITING = 0.05
"""Speed-up that a job without devices counts with."""
Choices = npt.NDArray[np.int64]


def power_mean(speeds: Matrix, power: float) -> Matrix:
    """Of the last axis; speeds are above 0."""
    found: Matrix = np.mean(speeds**power, axis=-1) ** (1.0 / power)
    return found


@dataclass
class Pollux(Adapting):
    """The search at work."""

    every_s: float = 60.0
    power: float = -1.0
    people: int = 40
    generations: int = 30
    _best: dict[int, tuple[str, int]] = field(default_factory=dict)
    _round: int = 0

    def __post_init__(self) -> None:
        super().__init__()

    def target(self, view: ClusterView) -> Target:
        """The best of the last generation; the present allocation is one of the first."""
        self._round += 1
        draw = np.random.default_rng(self._round)
        options = [self._options(state, view) for state in view.states]
        most = max(len(one) for one in options)
        kinds = list(view.capacity)
        held, speed = np.zeros((len(options), most, len(kinds))), np.full((len(options), most), _WAITING)
        for row, some in enumerate(options):
            for at, (kind, devices, value) in enumerate(some):
                speed[row, at] = value
                if kind:
                    held[row, at, kinds.index(kind)] = devices
        sizes = np.array([len(one) for one in options])
        now = np.array([self._present(some, state) for some, state in zip(options, view.states, strict=True)])
        capacity = np.array([view.capacity[kind] for kind in kinds], dtype=float)
        crowd = draw.integers(0, sizes, size=(self.people, len(sizes)))
        crowd[0], crowd[1] = now, 0
        crowd = _fitting(crowd, held, capacity, draw)
        for _ in range(self.generations):
            crowd = self._next(crowd, sizes, held, speed, capacity, draw)
        best = crowd[self._values(crowd, speed).argmax()]
        chosen = {
            state.number: (kind, devices)
            for state, some, at in zip(view.states, options, best.tolist(), strict=True)
            for kind, devices, _ in [some[at]]
            if kind
        }
        return self.adapt(view, chosen)

    def _next(
        self, crowd: Choices, sizes: npt.NDArray[np.int64], held: Matrix, speed: Matrix, capacity: Matrix,
        draw: np.random.Generator,
    ) -> Choices:  # fmt: skip
        """Children of pairs, some places changed at random; the better half of all lives on."""
        n, m = crowd.shape
        mothers, fathers = crowd[draw.permutation(n)], crowd[draw.permutation(n)]
        children = np.where(draw.random((n, m)) < 0.5, mothers, fathers)
        changed = draw.random((n, m)) < max(1.0 / m, 0.05)
        children = np.where(changed, draw.integers(0, sizes, size=(n, m)), children)
        both = np.concatenate([crowd, _fitting(children, held, capacity, draw)])
        kept: Choices = both[np.argsort(-self._values(both, speed), kind="stable")[:n]]
        return kept

    def _values(self, crowd: Choices, speed: Matrix) -> Matrix:
        return power_mean(speed[np.arange(crowd.shape[1])[None, :], crowd], self.power)

    def _options(self, state: JobState, view: ClusterView) -> list[tuple[str, int, float]]:
        """Nothing, or a kind and a number of devices, with the speed-up."""
        base = state.rate_on(state.kinds[0])
        age, cost = max(view.now - state.job.submit_s, self.every_s), view.cluster.restart_s
        factor = max((age - state.restarts * cost) / (age + cost), 0.01)
        found = [("", 0, _WAITING)]
        for kind in state.kinds:
            for devices, times, _ in speeds(state, kind, max(view.cluster.nodes(kind))):
                if devices <= view.capacity[kind]:
                    stays = not state.held or (kind, devices) == (state.held_kind, state.held)
                    value = state.rate_on(kind) * times / base * (1.0 if stays else factor)
                    found.append((kind, devices, max(value, _WAITING)))
        return found

    @staticmethod
    def _present(options: list[tuple[str, int, float]], state: JobState) -> int:
        return next(
            (at for at, (kind, devices, _) in enumerate(options) if (kind, devices) == (state.held_kind, state.held)), 0
        )

    def ended(self, state: JobState, now: float) -> None:
        """Nothing is remembered."""


def _fitting(crowd: Choices, held: Matrix, capacity: Matrix, draw: np.random.Generator) -> Choices:
    """Jobs in a random order, each of which keeps its devices if they fit with those before it."""
    n, m = crowd.shape
    order = draw.permuted(np.tile(np.arange(m), (n, 1)), axis=1)
    used, people = np.zeros((n, len(capacity))), np.arange(n)
    for place in range(m):
        rows = order[:, place]
        wanted = held[rows, crowd[people, rows]]
        fits = (used + wanted <= capacity + 1e-9).all(axis=1)
        used += wanted * fits[:, None]
        crowd[people, rows] = np.where(fits, crowd[people, rows], 0)
    return crowd
