"""Steps in planned layouts on processes that meet by gloo: gradients equal those of one process."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from bricolage.base.codec import decode, encode
from bricolage.errors import NotShardable

pytest.importorskip("torch")

import torch
from torch.distributed.device_mesh import DeviceMesh

from benchmarks.training.layout_runs import LayoutJob, plan_spec
from bricolage.search.sharding.layout_programme import best_sharding
from bricolage.train.run.process_group import run_group
from bricolage.train.sharded.dtensor_step import distribute
from bricolage.train.sharded.layout_plan import plan_layouts
from bricolage.train.sharded.planned_layouts import LayoutPlan
from bricolage.train.sharded.signatures import Signatures
from bricolage.train.sharded.step_graph import trace_joint
from bricolage.train.sharded.verify import VerifiedOperator
from bricolage.train.step.spec import Optimiser, StepSpec
from bricolage.train.step.step import TrainingStep, build
from tests.train.sharded.ranks import STEPS, Case, Job, Ran, described, group, run

WORKERS = 2
aten = torch.ops.aten


def test_gradients_are_those_of_one_process() -> None:
    """Layouts for links of three speeds, plain data parallelism, weights divided, and memory that is short; and FSDP2."""
    cases = []
    for name, make in STEPS.items():
        step = make()
        joint, facts = described(step, group(WORKERS, gbytes=2.0, latency_us=1.0))
        kept = facts.best(60.0, facts.kept_to("S(0)" if name == "perceptron" else "R"))
        plans = {"mixed": (facts.problem, best_sharding(facts.problem)), "weights one way": kept}
        if name == "transformer":
            short = replace(facts.problem, memory_bytes=0.75 * kept[1].peak_bytes)
            plans["short of memory"] = short, best_sharding(short)
            assert plans["short of memory"][1].peak_bytes <= short.memory_bytes
            del plans["weights one way"]  # what a perceptron shows
        cases += [Case(f"{name}, {what}", name, facts.plan(*plan, math.inf)) for what, plan in plans.items()]
        shared = facts.best(60.0)
        assert shared[1].ms <= plans["mixed"][1].ms
        cases.append(Case(f"{name}, conversions shared", name, facts.plan(*shared, math.inf)))
        fast = plan_layouts(joint, step.optimiser, group(WORKERS))
        assert any(one.startswith("S") for one in fast.parameters.values())
        assert fast.ms <= fast.replicas_ms and fast.ms < 0.7 * fast.single_ms
        cases.append(Case(f"{name}, fast links", name, fast))
    assert any(one.plan.relays for one in cases)
    spec = StepSpec("tests.train.sharded.ranks:network", "tests.train.sharded.ranks:samples", batch_size=16)
    layouts = LayoutJob(spec, plan_spec(spec, group(WORKERS)), 3)
    found = run_group(run, [Job(tuple(cases), ("perceptron",), layouts)] * WORKERS, Ran, 1, 120.0)
    assert all(not one.refused and not one.strayed for one in found), found[0]
    assert not any(one.conversions for one in found)
    errors = dict(zip(["FSDP2", *(one.name for one in cases)], found[0].errors, strict=True))
    assert max(errors.values()) < 1e-5, errors
    assert all(one.spec.error < 1e-5 and not one.spec.strayed for one in found)
    assert found[0].spec.loss == pytest.approx(trained(spec, 2), rel=1e-4)


def trained(spec: StepSpec, steps: int) -> float:
    """The loss behind a number of steps in one process."""
    step = build(spec)
    optimiser = step.make_optimiser()
    for _ in range(steps):
        step.run(optimiser)
    return float(step.loss(step.module(*step.inputs), *step.targets).detach())


def test_dtensor_answers_which_layouts_a_product_takes() -> None:
    graph = torch.fx.Graph()
    left, right = graph.placeholder("left"), graph.placeholder("right")
    left.meta["val"], right.meta["val"] = torch.empty(4, 6), torch.empty(6, 8)
    node = graph.call_function(aten.mm.default, (left, right))
    answers = dict(Signatures(2).of(node, [(4, 8)]))
    expected = {("S(0)", "R"): ("S(0)",), ("R", "S(1)"): ("S(1)",), ("S(1)", "S(0)"): ("P",), ("R", "R"): ("R",)}
    assert {inputs: answers.get(inputs) for inputs in expected} == expected


def test_a_mean_over_a_part_is_found_out() -> None:
    """DTensor divides the gradient of a mean of squares by samples; each part would divide by its own elements."""
    one, other = torch.empty(8, 4), torch.empty(8, 4)
    mean, total = (
        VerifiedOperator(aten.mse_loss_backward.default, (torch.empty(()), one, other, how), {}) for how in (1, 2)
    )
    assert not mean.holds(("R", "S(0)", "S(0)"), ("S(0)",), WORKERS)
    assert total.holds(("R", "S(0)", "S(0)"), ("S(0)",), WORKERS)
    assert not VerifiedOperator(aten.relu.default, (one,), {}).holds(("P",), ("P",), WORKERS)


def test_each_layout_of_a_product_gives_the_product() -> None:
    graph = torch.fx.Graph()
    nodes = [graph.placeholder(name) for name in ("bias", "left", "right")]
    for node, shape in zip(nodes, ((8,), (4, 6), (6, 8)), strict=True):
        node.meta["val"] = torch.empty(shape)
    product = graph.call_function(aten.addmm.default, tuple(nodes))
    signatures = Signatures(WORKERS)
    found = signatures.of(product, [(4, 8)])
    assert {"R", "S(0)", "S(1)", "P"} <= {outputs[0] for _, outputs in found}
    assert all(signatures.holds(product, pair) for pair in found)


def test_a_plan_for_others_is_refused() -> None:
    """Before anything is sent: for another number of devices, and for another step."""
    step, other = STEPS["perceptron"](), STEPS["transformer"]()
    joint, facts = described(step, group(WORKERS))
    plan = facts.plan(facts.problem, best_sharding(facts.problem), math.inf)
    state, batch = dict(step.module.named_parameters()), [*step.inputs, *step.targets]
    three, two = (DeviceMesh("cpu", torch.arange(n), _init_backend=False, _rank=0) for n in (3, WORKERS))
    with pytest.raises(NotShardable, match="for 2 devices, and there are 3"):
        distribute(joint, plan, state, batch, three)
    with pytest.raises(NotShardable, match="other parameters"):
        distribute(trace_joint(other), plan, state, batch, two)
    assert decode(LayoutPlan, json.loads(json.dumps(encode(plan))), "plan") == plan


@pytest.mark.parametrize(
    ("module", "reason"),
    [(torch.nn.BatchNorm1d(8), "writes in place"), (torch.nn.Dropout(0.5), "random numbers")],
)
def test_what_cannot_be_divided_is_named(module: torch.nn.Module, reason: str) -> None:
    both = torch.nn.Sequential(torch.nn.Linear(8, 8), module)
    step = TrainingStep(both, torch.nn.functional.mse_loss, (torch.randn(4, 8),), (torch.randn(4, 8),), Optimiser())
    with pytest.raises(NotShardable, match=reason):
        trace_joint(step)
