"""Tuning jointly with earlier passes, on made-up backends and times: what was slower before kernels were tuned may win."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from bricolage.base.deadline import Deadline
from bricolage.device.host import host
from bricolage.driver.joint_tuning import arms, search_arms
from bricolage.driver.stages.profiling import Baselines
from bricolage.graph.graph import Graph
from bricolage.measure.measurer import Measurer
from bricolage.tune.kernel_tuner import KernelTuner
from bricolage.work.implementation import KernelConfig
from tests.driver.made_up import Answers, First, Tuned, Untuned, made_up_state
from tests.driver.test_stages import FULL, TUNED, UNTUNED, model, run

__all__ = ["model"]
pytestmark = pytest.mark.usefixtures("registered")
BETTER = KernelConfig("f32", (("tile", 8),))


def tuner(measurer: object) -> KernelTuner:
    return KernelTuner(cast(Measurer, measurer), host(), 1)


@pytest.mark.parametrize("order", ["joint", "sequential"])
def test_joint_search_finds_what_is_only_faster_tuned(tmp_path: Path, model: Graph, order: str) -> None:
    """A made-up task takes 1 ms as usual and half of that tuned: more than what the untunable one of both is ahead by."""
    answers = Answers({"tuned": 1.0, "untuned": 1.05})
    state, measurer = made_up_state(tmp_path, model, [First(), Tuned(), Untuned()], answers, options=FULL)
    measurer.pool.found = {"tuned": KernelConfig("f32"), "untuned": BETTER}
    run(state, Baselines())
    own = tuner(measurer)
    found = arms([state.original], own, Deadline(100.0))
    assert [arm.implementation for arm in found] == [TUNED, UNTUNED] and found[0].usual_ms < found[1].usual_ms
    turned = search_arms(found, own, Deadline(100.0), order, lambda *_: None)  # type: ignore[arg-type]
    if order == "sequential":
        assert [arm.implementation for arm in turned] == [TUNED] and not turned[
            0
        ].tuned.implementation.config.parameters
        return
    assert [arm.implementation for arm in turned] == [UNTUNED, TUNED]
    assert turned[0].tuned.implementation.config == BETTER
    assert turned[0].expected_ms == pytest.approx(turned[0].usual_ms - 0.5)


def test_who_is_too_far_behind_has_no_turn(tmp_path: Path, model: Graph) -> None:
    state, measurer = made_up_state(
        tmp_path,
        model,
        [First(), Tuned(), Untuned()],
        Answers({"first": 1.0, "tuned": 1.05, "untuned": 1.2}),
        options=FULL,
    )
    measurer.pool.found = {"tuned": BETTER, "untuned": BETTER}
    run(state, Baselines())
    assert [arm.implementation for arm in arms([state.original], tuner(measurer), Deadline(100.0))] == [TUNED]


def test_without_time_the_first_has_its_turn_and_fails(tmp_path: Path, model: Graph) -> None:
    state, measurer = made_up_state(tmp_path, model, [Tuned(), Untuned()], options=FULL)
    measurer.pool.found = {"tuned": None, "untuned": None}
    run(state, Baselines())
    own = tuner(measurer)
    found = arms([state.original], own, Deadline(100.0))
    turned = search_arms(found, own, Deadline(1.0), "joint", lambda *_: None)
    assert len(turned) == 1 and turned[0].tuned.tasks == () and turned[0].expected_ms == turned[0].usual_ms
    assert turned[0].result is not None and "crashed" in turned[0].result.reason
