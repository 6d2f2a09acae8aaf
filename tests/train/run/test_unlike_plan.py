"""Plans for devices of two kinds: made from a step, written, read and run by processes that are as slow as the devices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from bricolage.base.codec import decode
from bricolage.base.options import available_cores
from bricolage.device.description import DeviceTables
from bricolage.errors import BadDevices, BadPlan, BadTrainingSpec, NoPipelinePlan
from bricolage.report.parallel import group_words, parallel_page, plan_words
from bricolage.train.pipeline.unlike_groups import best_groups
from bricolage.train.run.document import TrainingPlan, read_training_plan, table_of, write_plan
from bricolage.train.run.launch_plan import launch_plan
from bricolage.train.run.planning import plan_step
from bricolage.train.step.spec import Optimiser, StepSpec

HERE = str(Path(__file__).parent)


def spec(
    fast: float = 1.0, memory: tuple[float, float] = (1.0, 2.0), links: int = 1, module: str = "perceptrons"
) -> StepSpec:
    """On a device that takes three times as long as the other."""
    devices = [
        {"name": "slow", "kind": "cpu", "scale": 3.0, "memory_gb": memory[0]},
        {"name": "fast", "kind": "cpu", "scale": fast, "memory_gb": memory[1]},
    ]
    link = [{"between": ["slow", "fast"], "gbytes": 0.5, "latency_us": 300.0}][:links]
    tables = decode(DeviceTables, {"device": devices, "link": link})
    step = StepSpec(f"code.py:{module}", "code.py:batch", batch_size=8, optimiser=Optimiser("adam"), folder=HERE)
    return replace(step, devices=tables)


@pytest.fixture(scope="module")
def made() -> TrainingPlan:
    return plan_step(spec(), seconds=0.05)


def test_a_plan_says_which_stage_is_on_which_devices(made: TrainingPlan, tmp_path: Path) -> None:
    unlike = made.devices.unlike
    assert unlike is not None and unlike.names == ("slow", "fast") and unlike.memory_bytes == (10**9, 2 * 10**9)
    slow, fast = (sum(layer.pass_ms for layer in layers) for layers in unlike.layers)
    assert slow == pytest.approx(3 * fast, rel=0.01), "each device has its own times"
    assert made.problem.unlike == unlike and made.bound_ms <= made.step_ms
    grouped = [plan for plan in made.plans if plan.groups]
    assert grouped and all(plan.devices == 2 for plan in grouped)
    assert unlike.alone(8) == 1 and replace(unlike, memory_bytes=(10**9, 1)).alone(8) == 0
    shown = next(plan for plan in made.plans if plan.devices > 1)
    assert shown == made.pipelined
    kept = replace(made, chosen=grouped[0], runner_ups=())
    write_plan(kept, tmp_path)
    found, schedule = read_training_plan(tmp_path)
    assert found == replace(kept, step=found.step) and schedule == table_of(grouped[0])
    sentences = group_words(found)
    assert len(sentences) == grouped[0].stages + 1 and any("fast (" in sentence for sentence in sentences)
    assert plan_words(grouped[0]).startswith("groups, ") and "device 1" in parallel_page(found)
    # A group that is not there.
    text = (tmp_path / "plan.json").read_text(encoding="utf-8")
    (tmp_path / "plan.json").write_text(text.replace('"schedule": "groups"', '"schedule": "1f1b"'), encoding="utf-8")
    with pytest.raises(BadPlan, match="groups of devices"):
        read_training_plan(tmp_path)


def passes_of(ms: float) -> dict[str, Any]:
    """Times of a layer whose passes take so long, and nothing else takes time."""
    return {
        "forward_ms": ms,
        "input_gradient_ms": ms,
        "weight_gradient_ms": ms,
        "update_ms": 0.0,
        "forward_start_ms": 0.0,
        "backward_start_ms": 0.0,
    }


def test_stages_on_unlike_devices_run_and_give_the_gradients_of_one_process(made: TrainingPlan, tmp_path: Path) -> None:
    if available_cores() < 2:
        pytest.skip("a second core")
    # With times for which both kinds of plan pay, whatever the real ones are.
    assert made.devices.unlike is not None
    heavy, light = (tuple(replace(layer, **passes_of(ms)) for layer in made.layers) for ms in (1.0, 0.4))
    devices = replace(made.devices, unlike=replace(made.devices.unlike, layers=(heavy, light)))
    assumed = replace(made, devices=devices, layers=heavy, chosen=None, runner_ups=(), start_ms=0.0)
    plans = best_groups(assumed.problem)
    stages, shares = (next(plan for plan in plans if (plan.stages > 1) == several) for several in (True, False))
    write_plan(replace(assumed, chosen=stages, runner_ups=(shares,), way="pipeline"), tmp_path)
    result = launch_plan(tmp_path, seconds=0.1, pipelines=2)
    assert result is not None and not result.failures
    assert (
        set(result.measured)
        == {"pipeline", "pipeline 2", "data parallel", "single process"}
        <= set(result.predicted_ms)
    )
    assert all(check.accepted for check in result.checks.values()) and len(result.checks) == 3
    assert set(result.engines.values()) == {"loop"}
    forward = [sum("F" in timed.name for timed in passes) for passes in result.passes["pipeline 2"]]
    assert tuple(forward) == shares.groups[0].micro_batches and forward[0] < forward[1]


def test_devices_that_cannot_be_are_said(made: TrainingPlan, tmp_path: Path) -> None:
    with pytest.raises(BadTrainingSpec, match="'fast' and 'slow' have no link"):
        plan_step(spec(links=0))
    with pytest.raises(NoPipelinePlan, match=r"2 devices of 1e-06 to 2e-06 GB"):
        plan_step(spec(memory=(1e-6, 2e-6)), seconds=0.02)
    write_plan(replace(made, step=spec(fast=0.5)), tmp_path)
    with pytest.raises(BadDevices, match="'fast' cannot run here: it is described as faster"):
        launch_plan(tmp_path)
