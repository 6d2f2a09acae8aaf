"""The event loop: arrivals, ends, failures and ticks in order of time. A scheduler says who starts and stops; the loop keeps time,
devices and progress. An engine (`job_engine.py`) waits for the next event: in a replay time jumps there and ends are computed, on
real machines it passes and ends are reported."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bricolage.cluster.adaptive import RunSetting
from bricolage.cluster.admission import Admission
from bricolage.cluster.estimates import Estimator
from bricolage.cluster.fitted import GoodputFit
from bricolage.cluster.gang_placement import NodePool
from bricolage.cluster.job_engine import Engine, Gang, ReplayEngine, gang_of
from bricolage.cluster.jobs import JobState, TrainingJob
from bricolage.cluster.machines import ClusterSpec
from bricolage.cluster.observed import Observations
from bricolage.cluster.scheduler import Changes, JobStart, Scheduler
from bricolage.cluster.standing import Standing, stand
from bricolage.errors import ClusterStuck, JobFitsNowhere

_END, _FAIL, _REPAIR, _ARRIVE, _TICK = range(5)
"""The order of events at the same time: what is freed comes before who wants it."""
_DONE = 1e-9
"""Share of a phase below which it counts as finished: sums of floats."""


@dataclass(frozen=True, slots=True)
class Stay:
    """A job on its devices, from `start_s` to `end_s`."""

    number: int
    kind: str
    nodes: tuple[tuple[int, int], ...]
    start_s: float
    end_s: float
    part: float = 1.0
    """Of the devices that count as its own: a half where another job shares them."""

    @property
    def devices(self) -> int:
        """Of the gang."""
        return sum(count for _, count in self.nodes)


@dataclass(frozen=True)
class Replayed:
    """What a policy made of a history: jobs at their end in order of submission, and who was where when."""

    states: Sequence[JobState]
    stays: Sequence[Stay]
    events: int
    lost_steps: float = 0.0
    """By failures: done, and done again."""
    started: Sequence[int] = ()
    """Numbers of jobs in the order in which they got devices, each time; where stays are kept."""


@dataclass
class EventLoop:
    """Jobs, a policy and an engine from event to event: a replay, a forecast, or a service that runs jobs.

    `jobs` must stand in order of submission.
    """

    jobs: Sequence[TrainingJob]
    cluster: ClusterSpec
    scheduler: Scheduler
    estimator: Estimator
    keep_stays: bool = True
    stop_after: frozenset[int] = frozenset()
    """Where not empty: the replay ends when these jobs, by number, have."""
    begin_s: float = -math.inf
    """The replay begins then: jobs that were submitted before are there, as `standing` has it."""
    standing: Mapping[int, Standing] = field(default_factory=dict)
    """By number; a job that is not there has done nothing and waits since its submission."""
    engine: Engine = field(default_factory=ReplayEngine)
    fitted: bool = False
    """Whether policies know of batch sizes only what was fitted from a job's own running."""
    now: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.pools = {kind: NodePool(self.cluster.nodes(kind)) for kind in self.cluster.kinds}
        self.states: list[JobState] = []
        self.stays: list[Stay] = []
        self.started: list[int] = []
        self._heap: list[tuple[float, int, int, int]] = []
        self._wake = math.inf
        self.lost_steps = 0.0
        self._events = 0
        self._left = 0
        self._admission = Admission(self.cluster.quota, self.jobs)
        self._begun = False
        self.observed = Observations(self)
        self._cut: dict[int, float] = {}
        """By number, since when the stay of a job lasts whose devices were shared meanwhile."""

    def run(self, over: Callable[[], bool] | None = None) -> Replayed:
        """Until every job has finished, or `over` says so; then it may be run on.

        Raises:
            JobFitsNowhere: a gang is larger than all devices of each kind that it can use.
            ClusterStuck: jobs wait, and nothing will ever happen.
        """
        self._begin()
        awaited = len(self.stop_after) or len(self.jobs)
        while not over() if over is not None else self._left < awaited:
            if not self._heap and not self.engine.observes:
                waiting = sum(math.isnan(state.finish_s) for state in self.states)
                raise ClusterStuck(waiting=waiting, at=f"{self.now:.0f}")
            self._step()
        return Replayed(self.states, self.stays, self._events, self.lost_steps, self.started)

    def run_until(self, until_s: float) -> Mapping[int, Standing]:
        """All events of a replay up to a time, and where the jobs that are there then stand.

        Raises:
            JobFitsNowhere: as `run` has it.
        """
        self._begin()
        while self._heap and self._heap[0][0] <= until_s:
            self._step()
        self.now = until_s
        standings = {}
        for state in self.states:
            if state.job.submit_s <= until_s and math.isnan(state.finish_s):
                state.advance(until_s)
                standings[state.number] = Standing.of(state)
        return standings

    def decide_once(self) -> Sequence[JobState]:
        """The events at the beginning and what is decided then. Returns all jobs as they stand after it.

        Raises:
            JobFitsNowhere: as `run` has it.
        """
        self._begin()
        self._step()
        return self.states

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._fill()
            self.scheduler.begin(self.cluster)

    def _step(self) -> None:
        """All events of the next time, and what is decided then."""
        self.now, reports = self.engine.wait(self._heap[0][0] if self._heap else math.inf)
        if self.engine.observes:
            self.observed.wait()
        lost = [number for report in reports for number in self.observed.hear(report)]
        while self._heap and self._heap[0][0] <= self.now:
            self._handle(*heapq.heappop(self._heap)[1:])
        stops, starts = self._apply(self.scheduler.decide(self.now))
        self.engine.carry_out(self.now, lost + stops, starts)

    def check_fits(self, job: TrainingJob) -> tuple[str, ...]:
        """The kinds of devices that a job can use here.

        Raises:
            JobFitsNowhere: its gang is larger than all devices of each kind that it can use.
        """
        capacity = self.cluster.capacity
        kinds = tuple(kind for kind in job.kinds if capacity.get(kind, 0) >= job.devices)
        if not kinds:
            capacities = ", ".join(f"{count} {kind}" for kind, count in capacity.items())
            raise JobFitsNowhere(name=job.name, devices=job.devices, kinds=", ".join(job.kinds), there=capacities)
        most = self._admission.most(job)
        if most is not None and job.devices > most:
            there = f"a quota of {most} for queue '{job.queue}'"
            raise JobFitsNowhere(name=job.name, devices=job.devices, kinds=", ".join(job.kinds), there=there)
        return kinds

    def _fill(self) -> None:
        for number, job in enumerate(self.jobs):
            self.states.append(JobState(number, job, job.steps, self.check_fits(job)))
            self._heap.append((max(job.submit_s, self.begin_s), _ARRIVE, number, 0))
        if self.engine.observes:
            return
        for number, failure in enumerate(self.cluster.failure):
            self._heap += [(failure.at_s, _FAIL, number, 0), (failure.until_s, _REPAIR, number, 0)]
        heapq.heapify(self._heap)

    def _handle(self, what: int, number: int, version: int) -> None:
        self._events += 1
        if what == _ARRIVE:
            self.arrive(self.states[number])
        elif what == _END:
            state = self.states[number]
            if state.version == version:
                self._phase_over(state)
        elif what == _FAIL:
            self._fail(number)
        elif what == _REPAIR:
            failure = self.cluster.failure[number]
            pool = self.pools[failure.kind]
            pool.repair(failure.node)
            self.tell_size(failure.kind)
        elif self._wake <= self.now:
            self._wake = math.inf

    def arrive(self, state: JobState) -> None:
        """A job was submitted, or was there before."""
        state.at_s = self.now
        state.waits_since_s = min(self.now, state.job.submit_s)
        if factors := self.estimator.rates(state):
            state.believe(factors)
        if self.fitted and state.job.batches is not None:
            state.fit = GoodputFit(state.job.batches, state.job.devices)
        if (stood := self.standing.get(state.number)) is not None:
            mate = None if stood.mate is None else self.states[stood.mate]
            stand(state, stood, self.pools, mate)
            if state.mate is not None:
                self._set_rate(state.mate)
        state.predicted_steps = self.estimator.steps(state)
        if state.held:
            self._set_rate(state)
        if self._admission.admits(state):
            self.scheduler.arrived(state, self.now)

    def withdraw(self, state: JobState) -> None:
        """It waits no more, whether or not the scheduler has heard of it."""
        if not self._admission.forgets(state):
            self.scheduler.withdrawn(state, self.now)
            self._admit_behind(state)

    def _admit_behind(self, state: JobState) -> None:
        for other in self._admission.freed(state):
            self.scheduler.arrived(other, self.now)

    def _phase_over(self, state: JobState) -> None:
        state.advance(self.now)
        phase = state.job.phases[state.phase]
        state.before += phase.steps
        state.done = 0.0
        if state.phase + 1 < len(state.job.phases):
            state.phase += 1
            self._set_rate(state)
            self.scheduler.changed(state, self.now)
            return
        self.end(state)

    def end(self, state: JobState) -> None:
        """A job has finished on its devices."""
        self.release(state)
        state.finish_s = self.now
        self._left += not self.stop_after or state.number in self.stop_after
        self.estimator.ended(state)
        self.scheduler.ended(state, self.now)
        self._admit_behind(state)

    def _fail(self, number: int) -> None:
        failure = self.cluster.failure[number]
        self.clear(failure.kind, failure.node)
        self.pools[failure.kind].fail(failure.node)
        self.tell_size(failure.kind)

    def clear(self, kind: str, node: int) -> None:
        """Takes all jobs off a node that has failed."""
        hit = [s for s in self.states if s.held_kind == kind and any(number == node for number, _ in s.nodes)]
        for state in hit:
            state.advance(self.now)
            every = self.cluster.checkpoint_s
            ran = max(self.now - max(state.since_s, state.resumes_s), 0.0)
            lost = min(state.rate * (ran % every if every else 0.0), state.done)
            state.done -= lost
            self.lost_steps += lost
            self.release(state)
            self.scheduler.evicted(state, self.now)

    def tell_size(self, kind: str) -> None:
        """The scheduler hears how many devices of a kind are there."""
        pool = self.pools[kind]
        there = sum(size for node, size in enumerate(pool.sizes) if node not in pool.down)
        self.scheduler.resized(kind, there, self.now)

    def _apply(self, changes: Changes) -> tuple[list[int], list[Gang]]:
        for state in changes.stops:
            state.advance(self.now)
            self.release(state)
        for start in changes.starts:
            self._start(start)
        for number, setting in changes.settings.items():
            state = self.states[number]
            state.advance(self.now)
            state.setting = setting
            self._set_rate(state)
        if changes.wake_s < self._wake:
            self._wake = max(changes.wake_s, self.now)
            heapq.heappush(self._heap, (self._wake, _TICK, 0, 0))
        return [state.number for state in changes.stops], [gang_of(start.state) for start in changes.starts]

    def _start(self, start: JobStart) -> None:
        state, pool = start.state, self.pools[start.kind]
        state.advance(self.now)
        if start.partner is not None:
            state.nodes = start.partner.nodes
        elif pool.has(start.nodes):
            pool.take(start.nodes)
            state.nodes = start.nodes
        else:
            state.nodes = pool.place(start.devices)
        state.held_kind, state.held = start.kind, start.devices
        state.since_s = self.now
        if self.keep_stays:
            self.started.append(state.number)
        state.learn(start.kind)
        if math.isnan(state.first_start_s):
            state.first_start_s = self.now
            state.resumes_s = self.now + self.cluster.start_s
        else:
            state.restarts += 1
            state.resumes_s = self.now + self.cluster.restart_s
        if start.partner is not None:
            self._pair(state, start.partner)
        self._set_rate(state)

    def _pair(self, state: JobState, other: JobState) -> None:
        """Both go on at other rates; the stay of the one that was there ends, and a shared one begins."""
        other.advance(self.now)
        self._record_stay(other)
        state.mate, other.mate = other, state
        self._set_rate(other)

    def _record_stay(self, state: JobState) -> None:
        """Its stay so far."""
        since = self._cut.pop(state.number, state.since_s)
        if self.keep_stays and self.now > since:
            self.stays.append(Stay(state.number, state.held_kind, state.nodes, since, self.now, state.part))
        self._cut[state.number] = self.now

    def _set_rate(self, state: JobState) -> None:
        pool = self.pools[state.held_kind]
        batches = state.job.batches
        if batches is not None and state.held_kind in batches.times:
            requested = state.job.devices, state.job.devices > pool.most
            state.rate = state.true_rate_on(state.held_kind) * batches.speed(
                state.held_kind, state.held, len(state.nodes) > 1, state.setting.batch, state.noise, requested
            )
        else:
            spread = len(state.nodes) > pool.fewest(state.held)
            state.rate = state.true_rate_on(state.held_kind, state.held) * (
                self.cluster.spread_speed if spread else 1.0
            )
        state.rate *= self._host_speed(state)
        if state.mate is not None:
            state.rate *= state.slowed_by(state.mate, state.held_kind)
        state.version += 1
        if self.engine.observes:
            return
        phase = state.job.phases[state.phase]
        left = phase.steps - state.done
        ready = max(self.now, state.resumes_s)
        at = ready if left <= _DONE * phase.steps else ready + left / state.rate
        heapq.heappush(self._heap, (at, _END, state.number, state.version))

    def _host_speed(self, state: JobState) -> float:
        """With the processors and host memory that it was given, by that with its devices' part of a node's."""
        profile, setting = state.job.host, state.setting
        share = self.cluster.host_share(state.held_kind)
        if profile is None or share is None or setting.cpus is None or setting.host_gb is None:
            return 1.0
        return profile.at(setting.cpus, setting.host_gb) / profile.at(*share)

    def release(self, state: JobState) -> None:
        """Takes its devices from a job."""
        self._record_stay(state)
        del self._cut[state.number]
        mate = state.mate
        if mate is None:
            self.pools[state.held_kind].release(state.nodes)
        else:  # who shared its devices has them alone from now on
            mate.advance(self.now)
            self._record_stay(mate)
            state.mate = mate.mate = None
            self._set_rate(mate)
        state.held, state.held_kind, state.nodes, state.rate = 0, "", (), 0.0
        state.setting = RunSetting()
        state.version += 1
        state.waits_since_s = self.now
