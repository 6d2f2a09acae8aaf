"""What a step takes on a kind of device, from another kind and from other jobs."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from bricolage.costs.models.step_costs import FEWEST, MeasuredSteps, RatioModel, TransferredSteps
from bricolage.device.device import Device, Peaks
from bricolage.work.cost import FirstKnown, Setting, Work
from bricolage.work.workload import OperatorWork, Workload

FAST, SLOW = Peaks(10_000.0, 900.0), Peaks(2_000.0, 200.0)


def on(kind: str) -> Setting:
    device = Device(kind, "gpu", "", frozenset(), (0,), 1, 0, Peaks(math.inf, math.inf))
    return Setting(device, 1)


def step(key: str, flops: int, moved: int, operators: int = 20) -> Work:
    one = OperatorWork("Conv", "float32", (1,), flops // operators, moved // operators, 0, 0)
    return Work(Workload((one,) * operators, moved, 0, 0), key=key)


def taken(work: Work, peaks: Peaks, start_ms: float) -> float:
    """Each operator takes its roofline, and the time to start it."""
    return sum(peaks.floor_ms(one.flops, one.bytes) + start_ms for one in work.operators)


def test_a_kind_is_learnt_from_jobs_that_ran_on_both() -> None:
    """Steps limited by computing are five times slower on the slow kind, tiny ones equally slow: starting operators limits both."""
    draw = random.Random(0)
    works = [step(str(n), int(10 ** draw.uniform(7, 11)), int(10 ** draw.uniform(6, 9))) for n in range(30)]
    both = {one.key: {"fast": taken(one, FAST, 0.02), "slow": taken(one, SLOW, 0.02)} for one in works}
    inside, errors = 0, []
    for left in works[:12]:
        ms = {**both, left.key: {"fast": both[left.key]["fast"]}}
        model = TransferredSteps(works, ms, {"fast": FAST, "slow": SLOW})
        (found,) = model.estimate([left], on("slow"))
        assert found is not None and found.source == "learned" and found.low_ms < found.ms < found.high_ms
        truth = both[left.key]["slow"]
        errors.append(abs(found.ms / truth - 1))
        inside += found.low_ms <= truth <= found.high_ms
    assert np.median(errors) < 0.1 and inside >= 9


def test_what_was_measured_comes_first_and_what_nothing_is_known_of_is_none() -> None:
    works = [step(str(n), 10**9 * (n + 1), 10**7) for n in range(FEWEST + 1)]
    ms = {one.key: {"fast": 1.0, "slow": 4.0} for one in works[:FEWEST]} | {works[-1].key: {"fast": 2.0}}
    peaks = {"fast": FAST, "slow": SLOW}
    model = FirstKnown((MeasuredSteps(ms), TransferredSteps(works, ms, peaks)))
    (fast,) = model.estimate([works[-1]], on("fast"))
    assert fast is not None and (fast.ms, fast.source) == (2.0, "measured")
    (slow,) = model.estimate([works[-1]], on("slow"))
    assert slow is not None and slow.ms == pytest.approx(8.0, rel=1e-3), "all others were four times slower there"
    few = {key: ms[key] for key in list(ms)[1:]}
    assert TransferredSteps(works, few, peaks).estimate([works[-1]], on("slow")) == [None]
    assert TransferredSteps(works, ms, {"fast": FAST}).estimate([works[-1]], on("slow")) == [None]
    assert model.estimate([works[-1]], on("other")) == [None]


def test_the_interval_of_a_process_holds_most_of_what_it_has_not_seen() -> None:
    draw = np.random.default_rng(1)
    x = draw.normal(size=(60, 2))
    y = np.sin(x[:, 0]) + 0.05 * draw.normal(size=60)
    model = RatioModel(x[:40], y[:40])
    off = [abs(model.predict(a)[0] - b) <= model.predict(a)[1] for a, b in zip(x[40:], y[40:], strict=True)]
    assert sum(off) >= 15
