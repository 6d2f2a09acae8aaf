"""How long a job will take, from what its user's jobs took: for jobs of which there is no code to read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from bricolage.cluster.estimates import Rolling
from bricolage.cluster.jobs import TrainingJob
from bricolage.work.cost import Estimate

_FEW = 5
"""Lengths below which their own spread says little: the interval takes that of all jobs besides."""


@dataclass(frozen=True)
class LengthEstimate:
    """How long a job runs on its fastest kind of device."""

    run: Estimate
    alike: int
    """Jobs that it comes from."""
    by: str
    """What they have in common with it: "user, name and size", "user and name", "user and similar names", "user", "nothing"."""


def run_length(history: Iterable[TrainingJob], user: str, name: str, devices: int) -> LengthEstimate:
    """From jobs that ended.

    Args:
        history: of them; the latest 64 of a user and name count.
        user: whose job it is.
        name: of the job.
        devices: of its gang.
    """
    known = Rolling()
    seconds: list[float] = []
    for job in history:
        seconds.append(job.run_s(job.kinds[0]))
        known.learn(job, seconds[-1])
    found, by = known.alike(user, name, devices)
    some = np.array(found or seconds or [3600.0])
    low, high = (float(value) for value in np.quantile(some, (0.05, 0.95)))
    mean = float(some.mean())
    if len(found) < _FEW and seconds:  # relative to their median, how far all jobs lie apart
        apart = np.quantile(seconds, (0.05, 0.5, 0.95))
        low, high = min(low, mean * apart[0] / apart[1]), max(high, mean * apart[2] / apart[1])
    run = Estimate(1e3 * mean, 1e3 * min(low, mean), 1e3 * max(high, mean), "learned")
    return LengthEstimate(run, len(found) if found else len(seconds), by)
