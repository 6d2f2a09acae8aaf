"""What a policy may know of a job's length, and of its rates. The loop knows the truth; a policy sees one of these."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Protocol

from bricolage.cluster.jobs import JobState, TrainingJob


class Estimator(Protocol):
    """How many steps a policy believes that a job has, and at which rates."""

    def steps(self, state: JobState) -> float:
        """At its submission."""
        ...

    def rates(self, state: JobState) -> Mapping[str, float]:
        """The rate that is believed on kinds of device, by the true one; kinds that are not there are known. What a job does on a
        kind is known once it has run there."""
        ...

    def ended(self, state: JobState) -> None:
        """A job has ended: its length is known now."""
        ...


class _KnownRates:
    """Rates as the history has them."""

    def rates(self, state: JobState) -> Mapping[str, float]:
        """Nothing is wrong."""
        del state
        return {}


class ExactLengths(_KnownRates):
    """The truth."""

    def steps(self, state: JobState) -> float:
        """All steps of the job."""
        return state.job.steps

    def ended(self, state: JobState) -> None:
        """Nothing is to be learnt."""


@dataclass
class Noisy(_KnownRates):
    """The truth times a log-normal factor, drawn for each job by its number: `sigma` 0.5 is wrong by 1.65 either way, usually."""

    sigma: float
    seed: int = 0

    def steps(self, state: JobState) -> float:
        """The truth, blurred."""
        return state.job.steps * random.Random(f"{self.seed}/{state.number}").lognormvariate(0.0, self.sigma)

    def ended(self, state: JobState) -> None:
        """Nothing is to be learnt."""


@dataclass
class BlurredRates:
    """Lengths as another estimator has them; rates times a log-normal factor, drawn for each job and kind of device."""

    lengths: Estimator
    sigma: float
    seed: int = 0

    def steps(self, state: JobState) -> float:
        """Of the other estimator."""
        return self.lengths.steps(state)

    def rates(self, state: JobState) -> Mapping[str, float]:
        """Of each kind that the job can use."""
        return {
            kind: random.Random(f"{self.seed}/{state.number}/{kind}").lognormvariate(0.0, self.sigma)
            for kind in state.kinds
        }

    def ended(self, state: JobState) -> None:
        """The other estimator may learn from it."""
        self.lengths.ended(state)


@dataclass
class Rolling(_KnownRates):
    """Run times from history (Helios, SC'21, its rolling estimate): the mean of what jobs of this user and name took, of the same
    number of devices where there were any; else of up to two similar names; else of the user's; else of all.

    Helios adds boosted trees at nine tenths. They are left out: they need a longer history than a replay has at its start.
    """

    cutoff: float = 0.6
    """Similarity of names, from 0 to 1."""
    kept: int = 64
    """Lengths of one user and name, latest first."""
    _known: dict[str, dict[str, deque[tuple[int, float]]]] = field(default_factory=dict)
    _similar: dict[tuple[str, str], tuple[int, list[str]]] = field(default_factory=dict)
    _sum: float = 0.0
    _count: int = 0

    def steps(self, state: JobState) -> float:
        """The mean; the truth's order of magnitude is not known for the very first job, which counts as an hour."""
        job = state.job
        return max(self.seconds(job.user, job.name, job.devices), 1.0) * state.rate_on(state.kinds[0])

    def seconds(self, user: str, name: str, devices: int) -> float:
        """Of a job on its fastest kind."""
        found, _ = self.alike(user, name, devices)
        if found:
            return sum(found) / len(found)
        return self._sum / self._count if self._count else 3600.0

    def alike(self, user: str, name: str, devices: int) -> tuple[list[float], str]:
        """Seconds of the jobs that say most of this one, and what they have in common with it; none of an unknown user."""
        mine = self._known.get(user)
        if mine is None:
            return [], "nothing"
        names = [name] if name in mine else self._names(user, name, mine)
        by = "user and name" if name in mine else "user and similar names" if names else "user"
        found = [one for other in names for one in mine[other]] or [one for some in mine.values() for one in some]
        same = [seconds for count, seconds in found if count == devices]
        if same:
            return same, "user, name and size" if name in mine else f"{by} and size"
        return [seconds for _, seconds in found], by

    def _names(self, user: str, name: str, mine: dict[str, deque[tuple[int, float]]]) -> list[str]:
        number, names = self._similar.get((user, name), (-1, []))
        if number != len(mine):
            names = get_close_matches(name, mine, n=2, cutoff=self.cutoff)
            self._similar[user, name] = (len(mine), names)
        return names

    def ended(self, state: JobState) -> None:
        """Its length on its fastest kind is known now."""
        self.learn(state.job, state.job.run_s(state.kinds[0]))

    def learn(self, job: TrainingJob, seconds: float) -> None:
        """What a job took on its fastest kind."""
        self._known.setdefault(job.user, {}).setdefault(job.name, deque(maxlen=self.kept)).append(
            (job.devices, seconds)
        )
        self._sum += seconds
        self._count += 1
