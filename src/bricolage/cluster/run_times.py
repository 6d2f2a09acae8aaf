"""How long jobs take, from what jobs of the same user, name and number of devices took (Helios, SC'21), and what time limit that
allows.

A limit that is too low kills a job, so it is not the mean. Of n past runs the r-th shortest, r = (n + 1)(1 - risk) rounded up, is
exceeded by the next one with a probability of at most `risk`, whatever the distribution, as long as runs are exchangeable (split
conformal prediction: Vovk et al. 2005; Lei et al. 2018). Where n is too small for that, twice the longest is taken.

Only runs that completed are among them. One that failed, met its limit, was cancelled, preempted, or runs still, took at least so
long: where one took longer than what the others allow, it is not known how long the job takes, and it keeps its limit.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from bricolage.cluster.estimates import Likeness, Rolling

FEWEST = 3
"""Past runs that completed of the same name below which a job keeps its limit."""
_LEAST_S = 300.0
"""No limit is lowered below it, and none is set with less than it left to a running job."""
_HEADROOM = 1.1
"""Of a limit over the run that it is derived from: nodes differ."""


@dataclass(frozen=True)
class RunTime:
    """What is believed of a job's run time, in seconds from its start."""

    seconds: float
    """The mean of runs like it that took longer than it has run."""
    interval_s: tuple[float, float]
    """Eight of ten of them lie in it."""
    likeness: Likeness
    runs: Sequence[float]
    """The runs it goes by, longer than it has run."""
    all_runs: int
    """Those like it that completed, of any length."""
    cut_runs: int = 0
    """Of its user and name that did not complete: they are not among `runs`."""

    def drawn(self, draw: random.Random) -> float:
        """One of the runs, at random."""
        return draw.choice(self.runs) if self.runs else self.seconds


def run_time(rolling: Rolling, user: str, name: str, devices: int, elapsed_s: float, limit_s: float) -> RunTime:
    """Of a job that has run for `elapsed_s`. It never exceeds its limit: there Slurm ends it.

    Where it has run longer than all like it, nothing is known of it but this: it is believed to take as long again (or up to its
    limit).
    """
    lengths, likeness = rolling.like(user, name, devices)
    cut, _ = rolling.cut(user, name)
    longer = sorted(min(seconds, limit_s) for seconds in lengths if seconds > elapsed_s)
    if not longer:
        guess = 2.0 * elapsed_s if elapsed_s else rolling.seconds(user, name, devices)
        guess = max(min(guess, limit_s), elapsed_s + 1.0)
        most = limit_s if math.isfinite(limit_s) else 4.0 * guess
        return RunTime(guess, (min(elapsed_s + 1.0, guess), max(most, guess)), likeness, (), len(lengths), cut)
    low, high = longer[int(0.1 * (len(longer) - 1))], longer[math.ceil(0.9 * (len(longer) - 1))]
    return RunTime(sum(longer) / len(longer), (low, high), likeness, tuple(longer), len(lengths), cut)


def advised_limit_s(
    rolling: Rolling, user: str, name: str, devices: int, elapsed_s: float, own_limit_s: float, risk: float
) -> float:
    """The time limit that a job should have: its own one, or a lower one that history allows.

    Args:
        rolling: what past jobs took.
        user: of the job.
        name: of the job.
        devices: its GPUs.
        elapsed_s: how long it has run.
        own_limit_s: what its user asked for.
        risk: the share of jobs that may reach a lower limit.

    Returns:
        Seconds, a whole number of minutes where it is lower than its own: more than it has run, more than any run of this user
        and name that did not complete, and not more than its own. A job that outruns what history says gets its own limit back.
    """
    lengths, likeness = rolling.like(user, name, devices)
    if likeness != "name" or len(lengths) < FEWEST:
        return own_limit_s
    runs = sorted(lengths)
    rank = math.ceil((len(runs) + 1) * (1.0 - risk))
    bound = runs[rank - 1] if rank <= len(runs) else 2.0 * runs[-1]
    if max(elapsed_s, rolling.cut(user, name)[1]) >= bound:
        return own_limit_s
    limit = 60.0 * math.ceil(max(_HEADROOM * bound, elapsed_s + _LEAST_S) / 60.0 - 1e-9)
    return min(limit, own_limit_s)
