"""When jobs that are there now will start and end, what each waits for, and what would have to change for it to start now. Replays,
served clusters, Slurm and Kueue are all asked about here; `queued.py` brings what a real scheduler has to it.

A pure function of jobs, where they stand, the cluster, the policy and the time. The replay's own loop is run forward: once as
things are believed to be, for the place in the queue and for what would change it, and for draws of what they may be in truth
(`Futures`), which give an interval. In each draw the policy goes on believing what it believes. What would let a job start is
tried: the policy is asked again about the changed cluster, or the queue without the jobs that come first.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeAlias

import numpy as np

from bricolage.cluster.event_loop import EventLoop, Replayed
from bricolage.cluster.jobs import JobState, TrainingJob
from bricolage.cluster.machines import ClusterSpec
from bricolage.cluster.policy_catalogue import PolicyEntry
from bricolage.cluster.standing import Standing
from bricolage.cluster.why import Expected, lacking

WaitsFor: TypeAlias = Literal["nothing", "devices", "gang", "order", "quota", "dependency"]
"""Devices: none is free; gang: too few are; order: enough are, and others get them; quota: its queue has what it may have;
dependency: jobs that it comes after are not over."""
_TRIES = 30
_AGAIN = 4
"""Windows of past submissions that are taken for future ones, one after another."""
_NAMED = 3
_TRIED = 64
"""Waiting jobs, in the order of their starts, for which a change is looked for: the policy is asked some ten times about each."""
Future: TypeAlias = tuple[list[TrainingJob], list[Mapping[str, float]]]
"""Of each job what is true, and on each kind the rate that is believed by the true one."""


class Futures(Protocol):
    """What may be true of jobs of which something is believed."""

    def future(self, scene: Scene, draw: random.Random) -> Future:
        """One draw for the jobs of a scene; each is longer than what it has done."""
        ...


@dataclass(frozen=True)
class Doubt:
    """How far off what is believed may be: standard deviations of logarithms."""

    lengths: float = 0.5
    rates: float = 0.1
    """On kinds of device that a job has not run on."""

    def future(self, scene: Scene, draw: random.Random) -> Future:
        """Log-normal factors of lengths, and of rates on kinds that a job has not run on."""
        truth, factors = [], list[Mapping[str, float]]()
        for number, job in enumerate(scene.jobs):
            stood = scene.standing.get(number, Standing())
            longer = next(
                (
                    f
                    for _ in range(_TRIES)
                    if job.steps * (f := draw.lognormvariate(0.0, self.lengths)) > stood.steps_done
                ),
                1.1 * stood.steps_done / job.steps,
            )
            kinds = [kind for kind in job.kinds if kind not in stood.known]
            faster = {kind: draw.lognormvariate(0.0, self.rates) for kind in kinds}
            truth.append(job.stretched(longer, faster))
            factors.append({kind: 1.0 / factor for kind, factor in faster.items()})
        return truth, factors


@dataclass(frozen=True)
class Prospect:
    """Of one job. Times are those of the loop, seconds."""

    job: str
    devices: int
    kind: str
    """Of the devices that it holds; empty where it waits."""
    expected: Expected
    waits_for: WaitsFor
    reason: str
    """What it waits for, in words; empty where for nothing."""
    change: str
    """What would let it start now; empty where it runs, or starts now, and where too many come first for one to be looked for."""


@dataclass(frozen=True)
class _Believed:
    """An estimator that says of each job, by number, what is believed of it."""

    lengths: Sequence[float]
    factors: Sequence[Mapping[str, float]]

    def steps(self, state: JobState) -> float:
        return self.lengths[state.number]

    def rates(self, state: JobState) -> Mapping[str, float]:
        return self.factors[state.number]

    def ended(self, state: JobState) -> None:
        """Nothing is learnt: what is believed is given."""


@dataclass(frozen=True)
class Scene:
    """What there is at a time."""

    jobs: Sequence[TrainingJob]
    """In order of submission, with the lengths and rates that are believed."""
    standing: Mapping[int, Standing]
    """By number; a job that is not there has done nothing and waits since its submission."""
    cluster: ClusterSpec
    entry: PolicyEntry
    now: float
    preempts: bool = True
    """Whether the policy may stop running jobs, where it is one that does."""

    def loop(self, truth: Sequence[TrainingJob] = (), factors: Sequence[Mapping[str, float]] = ()) -> EventLoop:
        """From now on; the first jobs of `truth` are these."""
        all_jobs = truth or self.jobs
        lengths = [job.steps for job in (*self.jobs, *all_jobs[len(self.jobs) :])]
        believed = _Believed(lengths, factors or [{}] * len(all_jobs))
        stop = frozenset(range(len(self.jobs)))
        scheduler = self.entry.make(all_jobs, self.cluster)
        scheduler.preempts = scheduler.preempts and self.preempts
        return EventLoop(
            all_jobs,
            self.cluster,
            scheduler=scheduler,
            estimator=believed,
            keep_stays=True,
            stop_after=stop,
            begin_s=self.now,
            standing=self.standing,
        )

    def waits(self, number: int) -> bool:
        """Whether a job holds no devices."""
        return not (number in self.standing and self.standing[number].kind)

    def holding(self) -> frozenset[int]:
        """Numbers of the jobs that hold devices once the policy has decided now."""
        return frozenset(state.number for state in self.loop().decide_once() if state.held)

    def starts(self, number: int) -> bool:
        """Whether the policy gives it devices now."""
        return number in self.holding()

    def only(self, kept: Sequence[int], cluster: ClusterSpec | None = None) -> Scene:
        """The same with some of the jobs, in their order, or on another cluster."""
        standing = _renumber_standing(self.standing, {number: at for at, number in enumerate(kept)})
        return replace(
            self, jobs=[self.jobs[number] for number in kept], standing=standing, cluster=cluster or self.cluster
        )


def prospects(
    scene: Scene,
    doubt: Futures = Doubt(),
    *,
    draws: int = 20,
    seed: int = 0,
    past: Sequence[TrainingJob] = (),
    asked: Sequence[int] | None = None,
) -> list[Prospect]:
    """Of the jobs that are there.

    Args:
        scene: jobs, where they stand, the cluster, the policy, the time.
        doubt: how far off what is believed may be.
        draws: futures that intervals come from; none: they are what is believed.
        seed: of the draws.
        past: jobs that were submitted before now: as many will come in the same span again, at random times. Without them the
            forecast is for nobody else coming.
        asked: numbers of the jobs that are asked about; by default all.

    Raises:
        JobFitsNowhere, ClusterStuck: as the loop has it.
    """
    believed = scene.loop().run()
    futures = [_future(scene, doubt, past, random.Random(f"{seed}/{draw}")) for draw in range(draws)]
    starts = np.array([_starts(run, scene) for run in (believed, *futures)])
    ends = np.array([[state.finish_s for state in run.states[: len(scene.jobs)]] for run in (believed, *futures)])
    turn: dict[int, int] = {}
    for number in believed.started:
        turn.setdefault(number, len(turn))
    order = sorted(
        (n for n in range(len(scene.jobs)) if scene.waits(n)), key=lambda n: (starts[0, n], turn.get(n, 0), n)
    )
    holding = scene.holding() if order else frozenset()
    place = {number: at for at, number in enumerate(order, 1)}
    forecasts = []
    for number in range(len(scene.jobs)) if asked is None else asked:
        start, end = starts[:, number], ends[:, number]
        expected = Expected.of(place.get(number, 0), float(np.median(start)), start, float(np.median(end)), end)
        job, stood = scene.jobs[number], scene.standing.get(number, Standing())
        why: tuple[WaitsFor, str, str] = ("nothing", "", "")
        if scene.waits(number) and number not in holding:
            ahead = order[: place[number] - 1]
            tried = asked is not None or len(ahead) < _TRIED
            why = _why(scene, number, ahead, ends[0]) if tried else _explain_far_behind(scene, number, len(ahead))
        forecasts.append(Prospect(job.name, job.devices, stood.kind, expected, *why))
    return forecasts


def _starts(replayed: Replayed, scene: Scene) -> list[float]:
    """When each gets devices next; since when it has them, where it runs."""
    next_: dict[int, float] = {}
    for stay in replayed.stays:
        next_[stay.number] = min(stay.start_s, next_.get(stay.number, math.inf))
    return [
        next_.get(n, replayed.states[n].finish_s) if scene.waits(n) else scene.standing[n].since_s
        for n in range(len(scene.jobs))
    ]


def _future(scene: Scene, doubt: Futures, past: Sequence[TrainingJob], draw: random.Random) -> Replayed:
    """One draw of what is true, with jobs that come."""
    truth, factors = doubt.future(scene, draw)
    coming = _coming(scene.now, past, draw)
    return scene.loop([*truth, *coming], [*factors, *[{}] * len(coming)]).run()


def _coming(now: float, past: Sequence[TrainingJob], draw: random.Random) -> list[TrainingJob]:
    """The past again, at random times of as long a span, several times one after another."""
    span = now - min((job.submit_s for job in past), default=now)
    if span <= 0.0:
        return []
    arrivals = []
    for again in range(_AGAIN):
        for job in past:
            at = now + span * (again + draw.random())
            due = job.deadline_s + at - job.submit_s
            arrivals.append(replace(job, name="", submit_s=at, deadline_s=due, after=()))
    return sorted(arrivals, key=lambda job: job.submit_s)


# --- why -------------------------------------------------------------------------------------------------------------


def _why(scene: Scene, number: int, ahead: Sequence[int], ends: np.ndarray) -> tuple[WaitsFor, str, str]:
    """What a waiting job waits for, in a word and in a sentence, and what would let it start now."""
    job = scene.jobs[number]
    before = [n for n, other in enumerate(scene.jobs) if other.name in job.after]
    if before:
        return "dependency", f"the end of {_format_names(scene, before)}", f"the end of {_format_names(scene, before)}"
    free_of = replace(scene.cluster, quota=tuple(quota for quota in scene.cluster.quota if quota.queue != job.queue))
    everybody = range(len(scene.jobs))
    if len(free_of.quota) < len(scene.cluster.quota) and scene.only(everybody, free_of).starts(number):
        most = next(quota.devices for quota in scene.cluster.quota if quota.queue == job.queue)
        mine = sum(
            other.devices for n, other in enumerate(scene.jobs) if other.queue == job.queue and not scene.waits(n)
        )
        sentence = (
            f"its queue's quota: jobs of '{job.queue}' hold {mine} of {most} devices, and its gang needs {job.devices}"
        )
        least = next(
            (
                count
                for count in range(most + 1, most + 8 * job.devices + 1)
                if _starts_with_quota(scene, number, count)
            ),
            0,
        )
        return "quota", sentence, f"a quota of {least}" if least else "no quota"
    running = [n for n in range(len(scene.jobs)) if not scene.waits(n)]
    free = _free(scene, job)
    kind = max(free, key=lambda device: free[device])
    if _starts_without(scene, number, [n for n in range(len(scene.jobs)) if n != number and scene.waits(n)]):
        few = _fewest(scene, number, ahead)
        sentence = f"its turn: {free[kind]} {kind} are free, and {_format_names(scene, few)} come first"
        return "order", sentence, f"the place of {_format_names(scene, few)}"
    lacks = job.devices - free[kind]
    word: WaitsFor = "gang" if free[kind] > 0 else "devices"
    reason = f"{lacks} more {kind}: {free[kind]} of {scene.cluster.capacity[kind]} are free, and its gang needs {job.devices}"
    more = _more_devices(scene, number, kind, lacks)
    change = more or f"{lacks} more {kind}, and the first place"
    until = sorted((n for n in running if scene.standing[n].kind == kind), key=lambda n: float(ends[n]))
    freed, gone = 0, list[int]()
    while freed < lacks and until:
        gone.append(until.pop(0))
        freed += scene.standing[gone[-1]].devices
    if gone and freed >= lacks:
        change += f", or the end of {_format_names(scene, gone)}"
    return word, reason, change


def _explain_far_behind(scene: Scene, number: int, ahead: int) -> tuple[WaitsFor, str, str]:
    """What a job far behind waits for, read off what is free and who comes first."""
    job = scene.jobs[number]
    free = _free(scene, job)
    most = max(free.values())
    word: WaitsFor = "order" if most >= job.devices else "gang" if most > 0 else "devices"
    return word, lacking(free, scene.cluster.capacity, job.devices, ahead)[0], ""


def _free(scene: Scene, job: TrainingJob) -> dict[str, int]:
    """Devices that no job holds, of each kind that a job can use; mates hold theirs once."""
    free = {kind: scene.cluster.capacity[kind] for kind in job.kinds if kind in scene.cluster.capacity}
    for number, stood in scene.standing.items():
        if stood.kind in free and (stood.mate is None or stood.mate > number):
            free[stood.kind] -= stood.devices
    return free


def _starts_with_quota(scene: Scene, number: int, devices: int) -> bool:
    queue = scene.jobs[number].queue
    changed = tuple(replace(quota, devices=devices) if quota.queue == queue else quota for quota in scene.cluster.quota)
    return scene.only(range(len(scene.jobs)), replace(scene.cluster, quota=changed)).starts(number)


def _starts_without(scene: Scene, number: int, gone: Sequence[int]) -> bool:
    kept = [n for n in range(len(scene.jobs)) if n not in set(gone)]
    return scene.only(kept).starts(kept.index(number))


def _fewest(scene: Scene, number: int, ahead: Sequence[int]) -> Sequence[int]:
    """The shortest part of those ahead, from the first on, without which it starts; all others where none of them matters."""
    low, high = 1, len(ahead)
    if not ahead or not _starts_without(scene, number, ahead):
        return [n for n in range(len(scene.jobs)) if n != number and scene.waits(n)]
    while low < high:
        middle = (low + high) // 2
        if _starts_without(scene, number, ahead[:middle]):
            high = middle
        else:
            low = middle + 1
    return ahead[:high]


def _more_devices(scene: Scene, number: int, kind: str, lacks: int) -> str:
    """So many devices more that the policy starts it now, with all others there; empty where eight times what it lacks do not."""
    more = lacks
    for _ in range(4):
        if scene.only(range(len(scene.jobs)), scene.cluster.with_devices(kind, more)).starts(number):
            return f"{more} more {kind}"
        more *= 2
    return ""


def _format_names(scene: Scene, numbers: Sequence[int]) -> str:
    names = [scene.jobs[number].name for number in numbers[:_NAMED]]
    rest = len(numbers) - len(names)
    return ", ".join(names) + (f" and {rest} more" if rest else "")


def _renumber_standing(standing: Mapping[int, Standing], at: Mapping[int, int]) -> dict[int, Standing]:
    """Of the jobs that have a new number."""
    return {
        at[number]: stood if stood.mate is None else replace(stood, mate=at.get(stood.mate))
        for number, stood in standing.items()
        if number in at
    }


def scene_of(loop: EventLoop, entry: PolicyEntry, at_s: float) -> Scene:
    """What there was in a replay at a time, as its policy believed it to be.

    Raises:
        JobFitsNowhere: as the loop has it.
    """
    standing = loop.run_until(at_s)
    jobs = []
    for number, stood in sorted(standing.items()):
        state = loop.states[number]
        believed = max(state.predicted_steps, stood.steps_done * (1.0 + 1e-3)) / state.job.steps
        jobs.append(state.job.stretched(believed, state.believed))
    renumbered = _renumber_standing(standing, {number: at for at, number in enumerate(sorted(standing))})
    return Scene(jobs, renumbered, loop.cluster, entry, at_s)


def predicted_at_submission(loop: EventLoop, entry: PolicyEntry, number: int, doubt: Doubt) -> Expected:
    """Start and end of a job of a replay as they were to be predicted when it came, from the jobs that were there and had been.

    Args:
        loop: of the replay, before its first event.
        entry: its policy.
        number: of the job.
        doubt: how far off what the policy believes may be.

    Raises:
        JobFitsNowhere: as the loop has it.
    """
    at = loop.jobs[number].submit_s
    scene = scene_of(loop, entry, at)
    there = sorted(n for n, state in enumerate(loop.states) if state.job.submit_s <= at and math.isnan(state.finish_s))
    if number not in there:  # it took no time at all
        return Expected(0, at, (at, at), at, (at, at))
    past = [job for job in loop.jobs if job.submit_s <= at]
    (forecast,) = prospects(scene, doubt, past=past, asked=[there.index(number)])
    expected = forecast.expected
    return replace(expected, start_s=at, start_interval_s=(at, at)) if forecast.kind else expected
