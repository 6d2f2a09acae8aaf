"""Jobs: what a user submitted, and where one stands while it is replayed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from bricolage.cluster.adaptive import BatchProfile, HostProfile, RunSetting
from bricolage.cluster.fitted import GoodputFit


@dataclass(frozen=True, slots=True)
class WorkPhase:
    """Steps at one batch size. Steps are counted in one unit (epochs, or steps of the first batch size) over all phases."""

    steps: float
    rates: Mapping[str, float]
    """Steps a second of the whole gang on each kind of device that the job can use."""
    minibatches: float = 1.0
    """In a step: where steps are epochs, those that its batch size needs."""


_ALONE: Mapping[str, Mapping[str, float]] = {}
"""One for all jobs: millions have no other."""


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """A job as it was submitted: a gang of `devices` equal devices until its steps are done. Times are in seconds."""

    name: str
    submit_s: float
    phases: tuple[WorkPhase, ...]
    devices: int = 1
    user: str = ""
    kind: str = ""
    """What it trains: jobs of one kind have the same rates."""
    queue: str = ""
    deadline_s: float = math.inf
    """From the start of the history, like `submit_s`."""
    weight: float = 1.0
    scaling: tuple[tuple[int, float], ...] = ()
    """For elastic jobs: numbers of devices, ascending, with the speed on each relative to that on `devices`."""
    limit_s: float = math.inf
    """The time limit that its user asked for; backfilling trusts it."""
    together: Mapping[str, Mapping[str, float]] = field(default_factory=lambda: _ALONE)
    """By kind of device, then by the kind of another job: steps a second with it on the same devices. What is not there, or 0,
    cannot share them."""
    after: tuple[str, ...] = ()
    """Names of jobs that have to be over before it can start."""
    host: HostProfile | None = None
    """What processors and host memory are to it; None: it runs as its history says, with its devices' part of a node."""
    batches: BatchProfile | None = None
    """What it does at other batch sizes; None: it keeps its own."""
    completed: bool = True
    """Whether its run time is what its work takes. A run that failed, was cancelled or met its limit is load for as long as it
    lasted, and says only that the work takes at least so long."""

    @property
    def steps(self) -> float:
        """Of all phases."""
        return sum(phase.steps for phase in self.phases)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of devices that it can use, fastest first."""
        rates = self.phases[0].rates
        return tuple(sorted((kind for kind in rates if rates[kind] > 0), key=lambda kind: (-rates[kind], kind)))

    def run_s(self, kind: str) -> float:
        """Seconds of the whole job alone on `devices` devices of a kind."""
        return sum(phase.steps / phase.rates[kind] for phase in self.phases)

    def speed(self, devices: int) -> float:
        """Speed on a number of devices relative to that on its own number; 0.0 where it cannot run on that many."""
        if devices == self.devices:
            return 1.0
        return dict(self.scaling).get(devices, 0.0)

    def stretched(self, longer: float, faster: Mapping[str, float] | None = None) -> TrainingJob:
        """The same job with `longer` times the steps, and on each kind `faster` times its rate."""
        rates = faster or {}
        phases = (
            replace(
                phase,
                steps=phase.steps * longer,
                rates={kind: rate * rates.get(kind, 1.0) for kind, rate in phase.rates.items()},
            )
            for phase in self.phases
        )
        return replace(self, phases=tuple(phases))


@dataclass(slots=True, eq=False)
class JobState:
    """Where a job stands. The loop changes it; policies read it."""

    number: int
    job: TrainingJob
    predicted_steps: float
    """What the policy may believe that the whole job has."""
    kinds: tuple[str, ...] = ()
    """That have room for its gang, the one that is believed to be the fastest first."""
    phase: int = 0
    done: float = 0.0
    """Steps of the present phase."""
    before: float = 0.0
    """Steps of finished phases."""
    at_s: float = 0.0
    """When `done`, `attained_s` and `run_s` were last brought up to date."""
    rate: float = 0.0
    resumes_s: float = 0.0
    """Until then a restart takes the devices and makes no progress."""
    held_kind: str = ""
    held: int = 0
    nodes: tuple[tuple[int, int], ...] = ()
    """(node, devices) of its gang."""
    mate: JobState | None = None
    """Who shares its devices."""
    setting: RunSetting = RunSetting()
    since_s: float = 0.0
    attained_s: float = 0.0
    """Device-seconds that it has had."""
    run_s: float = 0.0
    waits_since_s: float = 0.0
    first_start_s: float = math.nan
    finish_s: float = math.nan
    restarts: int = 0
    version: int = 0
    """Events of older versions are void."""
    service: dict[str, float] = field(default_factory=dict)
    ran: set[str] = field(default_factory=set)
    """Kinds that it has run on."""
    fit: GoodputFit | None = None
    """What policies know of its batch sizes, where that is fitted while it runs; None: its profile."""
    believed: dict[str, float] = field(default_factory=dict)
    """By kind of device: the rate that the policy believes in, by the true one. A kind that the job has run on is known, and is
    not there."""

    @property
    def running(self) -> bool:
        """Whether it holds devices."""
        return self.held > 0

    @property
    def part(self) -> float:
        """Of its devices that count as its own: a half where it shares them."""
        return 1.0 if self.mate is None else 0.5

    def slowed_by(self, other: JobState, kind: str) -> float:
        """Its speed with another job by that alone; 0.0 where the two cannot share devices."""
        alone = self.job.phases[0].rates.get(kind, 0.0)
        if not alone or self.job.devices != other.job.devices:
            return 0.0
        return self.job.together.get(kind, {}).get(other.job.kind, 0.0) / alone

    @property
    def steps_done(self) -> float:
        """Of all phases."""
        return self.before + self.done

    @property
    def noise(self) -> float:
        """Variance over squared norm of its gradient, at its initial batch size; 0.0 where no profile says."""
        return 0.0 if self.job.batches is None else self.job.batches.noise_at(self.steps_done / self.job.steps)

    def known_batches(self) -> tuple[BatchProfile | None, float]:
        """Its profile and noise, as a policy knows them."""
        if self.fit is None:
            return self.job.batches, self.noise
        return self.fit.profile({kind: self.rate_on(kind) for kind in self.kinds}), self.fit.noise

    def rate_on(self, kind: str, devices: int | None = None) -> float:
        """Steps a second in the present phase, as the policy believes."""
        rate = self.true_rate_on(kind, devices)
        return rate * self.believed.get(kind, 1.0) if self.believed else rate

    def true_rate_on(self, kind: str, devices: int | None = None) -> float:
        """Steps a second in the present phase, as the loop knows."""
        speed = 1.0 if devices is None else self.job.speed(devices)
        return self.job.phases[self.phase].rates.get(kind, 0.0) * speed

    def believe(self, factors: Mapping[str, float]) -> None:
        """From now on the policy believes in other rates on these kinds; `kinds` stand in the order of what it believes."""
        self.believed = {kind: factor for kind, factor in factors.items() if kind in self.kinds}
        self._order()

    def learn(self, kind: str) -> None:
        """It runs there, and its rate is seen."""
        self.ran.add(kind)
        if self.believed.pop(kind, None) is not None:
            self._order()

    def _order(self) -> None:
        rates = self.job.phases[0].rates
        self.kinds = tuple(sorted(self.kinds, key=lambda kind: (-rates[kind] * self.believed.get(kind, 1.0), kind)))

    def advance(self, now: float) -> None:
        """Brings progress and service up to `now`."""
        past = now - self.at_s
        if self.held and past > 0.0:
            self.done += self.rate * max(now - max(self.at_s, self.resumes_s), 0.0)
            self.attained_s += past * self.held * self.part
            if self.fit is not None and now > self.resumes_s:
                self.fit.measure(self.held_kind, self.held, len(self.nodes) > 1, self.setting.batch, self.noise)
            self.run_s += past
        self.at_s = now

    def predicted_left(self) -> float:
        """Steps that the policy believes are left; at least a thousandth of what is done, where it was believed to be over."""
        return max(self.predicted_steps - self.steps_done, 1e-3 * self.steps_done, 1e-9)

    def left_s(self, kind: str) -> float:
        """Seconds that the policy believes are left on a kind, with its own number of devices and at the present rate."""
        return self.predicted_left() / self.rate_on(kind)

    def fastest_left_s(self) -> float:
        """The same on the kind that it runs on, else on its fastest; a restart under way counts."""
        if self.held:
            return max(self.resumes_s - self.at_s, 0.0) + self.predicted_left() / self.rate
        return self.left_s(self.kinds[0])
