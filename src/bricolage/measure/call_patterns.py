"""How a race calls its contestants, so that what it times is a user's day.

Two patterns: *steady*, call after call, with caches, branch predictors and threads as a program leaves them to itself; and
*sparse*, single calls after pauses in which others use the caches. A contestant that takes its turn after another one finds
neither. So each is called untimed first, as long as its own course of calls says that it takes to be steady again.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from bricolage.base.options import Pattern
from bricolage.measure.candidate_job import Job
from bricolage.measure.log import MeasurementLog
from bricolage.measure.pool import Pool
from bricolage.measure.rounds import ask_for_times
from bricolage.plan.other_pattern import PAUSE_S

_COURSE_S = 0.3
_LONG_MS = 300.0
"""From this long a call on, the second call is steady: no course is followed."""
_WINDOW = 3
"""Calls of which the median is compared ..."""
_STEADY = 1.03
"""... with that of the last ones."""
_LONGEST_S = 0.25
_TURN_MS = 20.0
_LEAST_SAMPLES = 3
_SHORT_MS = 50.0
"""Up to this long a call, a turn has several."""


@dataclass
class CallPatterns:
    """How turns are made, and how long the contestants of one race take to be steady."""

    deciding: Pattern
    """The other one is timed as well."""
    settling_s: dict[str, float] = field(default_factory=dict)
    """By contestant, as it was found."""

    def settle(self, pool: Pool, job: Job, log: MeasurementLog, name: str, limit_s: float) -> float:
        """Seconds of untimed calls after which a contestant is steady, by its course, which begins cold. A job that dies there gets
        its outcome."""
        if name in self.settling_s:
            return self.settling_s[name]
        if job.first_ms is not None and job.first_ms > _LONG_MS:
            return 0.0
        assert job.worker is not None
        answer = log.heard(pool.ask(job.worker, limit_s, "follow_course", id=job.id, seconds=_COURSE_S))
        if not answer.ok:
            if answer.outcome != "lost":
                job.fail(answer.outcome, answer.reason)
            return 0.0
        log.tally.add_turn((), 0, float(str(answer.facts["processor_s"])))  # it is no other process that took it
        course = cast(list[tuple[float, float]], answer.facts["course"])
        self.settling_s[name] = settling_s(course)
        return self.settling_s[name]

    def take_turn(
        self, pool: Pool, job: Job, log: MeasurementLog, limit_s: float, name: str
    ) -> tuple[bool, tuple[float, ...]]:
        """A turn in both patterns, the deciding one added to the job: whether it came to anything, and the undisturbed samples of
        the other one, ms. A job that dies gets its outcome."""
        warm_s = self.settle(pool, job, log, name, limit_s) if job.ready else 0.0
        if not job.ready:
            return False, ()
        steady = ask_for_times(pool, job, log, limit_s, "time", turns=1, warm_s=warm_s, **turn_facts(job))
        if steady is None:
            return False, ()
        sparse = ask_for_times(pool, job, log, limit_s, "time_after_pauses", calls=1, pause_s=PAUSE_S)
        if sparse is None:
            return False, ()
        first, second = (steady, sparse) if self.deciding == "steady" else (sparse, steady)
        job.timed(first.samples, first.disturbed, None)
        return True, () if second.disturbed else tuple(second.samples)


def turn_facts(job: Job) -> dict[str, float | int]:
    """Of a steady turn: its length, ms, and its least number of samples."""
    short = job.first_ms is None or job.first_ms < _SHORT_MS or (job.rounds and min(job.rounds[-1]) < _SHORT_MS)
    return {"turn_ms": _TURN_MS, "least": _LEAST_SAMPLES if short else 1}


def settling_s(course: Sequence[tuple[float, float]]) -> float:
    """Seconds after which calls are as quick as the last ones: the first time that the median of some calls in a row is within 3 %
    of that of the later half.

    Args:
        course: for each call, ms since the first began when it ended, and ms that it took.
    """
    if len(course) < 2 * _WINDOW:
        return course[0][0] / 1e3 if course else 0.0
    last = statistics.median(ms for _, ms in course[len(course) // 2 :])
    for index in range(len(course) - _WINDOW + 1):
        if statistics.median(ms for _, ms in course[index : index + _WINDOW]) <= _STEADY * last:
            return min(course[index][0] / 1e3, _LONGEST_S)
    return _LONGEST_S
