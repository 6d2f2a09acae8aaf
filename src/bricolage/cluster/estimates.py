"""What a policy may know of a job's length, and of its rates. The loop knows the truth; a policy sees one of these."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Literal, Protocol, cast

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

    def ended(self, state: JobState) -> None:
        """Nothing is to be learnt."""


class ExactLengths(_KnownRates):
    """The truth."""

    def steps(self, state: JobState) -> float:
        """All steps of the job."""
        return state.job.steps


@dataclass
class Noisy(_KnownRates):
    """The truth times a log-normal factor, drawn for each job by its number: `sigma` 0.5 is wrong by 1.65 either way, usually."""

    sigma: float
    seed: int = 0

    def steps(self, state: JobState) -> float:
        """The truth, blurred."""
        return state.job.steps * random.Random(f"{self.seed}/{state.number}").lognormvariate(0.0, self.sigma)


def program(job: TrainingJob) -> str:
    """What a user's jobs of one length share: the kind of job where a history names it (Slurm's job name), else its name."""
    return job.kind or job.name


Likeness = Literal["name", "similar name", "user", "nothing"]


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
    _latest: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=1024))
    _similar: dict[tuple[str, str], tuple[int, list[str]]] = field(default_factory=dict)
    _cut: dict[tuple[str, str], tuple[int, float]] = field(default_factory=dict)
    """By user and name: how many runs did not complete, and the longest of them."""
    _sum: float = 0.0
    _count: int = 0

    def steps(self, state: JobState) -> float:
        """The mean; the truth's order of magnitude is not known for the very first job, which counts as an hour."""
        job = state.job
        return max(self.seconds(job.user, program(job), job.devices), 1.0) * state.rate_on(state.kinds[0])

    def seconds(self, user: str, name: str, devices: int) -> float:
        """Of a job on its fastest kind."""
        if user not in self._known:
            return self._sum / self._count if self._count else 3600.0
        same = self.like(user, name, devices)[0]
        return sum(same) / len(same)

    @property
    def known(self) -> Mapping[str, Mapping[str, Sequence[tuple[int, float]]]]:
        """By user and name: (devices, seconds), oldest first."""
        return self._known

    def like(self, user: str, name: str, devices: int) -> tuple[Sequence[float], Likeness]:
        """Seconds that the most similar jobs took, and in what they are similar. Of jobs of an unknown user: the latest of all."""
        mine = self._known.get(user)
        if mine is None:
            return [seconds for _, seconds in self._latest], "nothing"
        names = [name] if name in mine else self._names(user, name, mine)
        history, likeness = (
            [entry for other in names for entry in mine[other]],
            "name" if name in mine else "similar name",
        )
        if not history:
            history, likeness = [entry for entries in mine.values() for entry in entries], "user"
        same = [seconds for count, seconds in history if count == devices]
        return same or [seconds for _, seconds in history], cast(Likeness, likeness)

    def _names(self, user: str, name: str, mine: dict[str, deque[tuple[int, float]]]) -> list[str]:
        number, names = self._similar.get((user, name), (-1, []))
        if number != len(mine):
            names = get_close_matches(name, mine, n=2, cutoff=self.cutoff)
            self._similar[user, name] = (len(mine), names)
        return names

    def ended(self, state: JobState) -> None:
        """Its length on its fastest kind is known now, where it completed."""
        self.learn_from(state.job, state.kinds[0])

    def learn_from(self, job: TrainingJob, kind: str) -> None:
        """A job has ended, after its run time on a kind of device."""
        seconds = job.run_s(kind)
        if job.completed:
            self.learn(job.user, program(job), job.devices, seconds)
        else:
            self.learn_cut(job.user, program(job), seconds)

    def learn_runs(self, jobs: Iterable[TrainingJob]) -> None:
        """Jobs have ended, each after its run time on its fastest kind of device."""
        for job in jobs:
            self.learn_from(job, job.kinds[0])

    def learn_cut(self, user: str, name: str, seconds: float) -> None:
        """A run that did not complete took so long: the job takes at least that."""
        count, longest = self._cut.get((user, name), (0, 0.0))
        self._cut[user, name] = (count + 1, max(longest, seconds))

    def cut(self, user: str, name: str) -> tuple[int, float]:
        """How many runs of this user and name did not complete, and the seconds of the longest."""
        return self._cut.get((user, name), (0, 0.0))

    def learn(self, user: str, name: str, devices: int, seconds: float) -> None:
        """A job has taken so long."""
        self._known.setdefault(user, {}).setdefault(name, deque(maxlen=self.kept)).append((devices, seconds))
        self._latest.append((devices, seconds))
        self._sum += seconds
        self._count += 1
