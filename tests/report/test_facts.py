from __future__ import annotations

import dataclasses

import pytest
import report_samples as samples

from bricolage.plan.shipped_program import Alternative
from bricolage.report.facts import region_facts
from bricolage.work.implementation import Implementation, KernelConfig
from tests.plan.bucket_facts import alter_bucket


def test_neighbours_are_those_of_the_graph() -> None:
    plan, graphs = samples.small()
    facts = region_facts(plan.buckets[0], graphs[0])
    for index, before in enumerate(samples.SMALL_SOURCES):
        assert facts[index].before == tuple(sorted(before))
        assert facts[index].after == tuple(i for i, b in enumerate(samples.SMALL_SOURCES) if index in b)


def test_operators_are_named_and_counted() -> None:
    plan, graphs = samples.small()
    facts = region_facts(plan.buckets[0], graphs[0])
    assert facts[2].operators == ("/cell.2/conv_0", "/cell.2/batchnormalization_1", "/cell.2/relu_2")
    assert dict(facts[2].types) == {"Conv": 1, "BatchNormalization": 1, "Relu": 1}


def test_shares_add_up_to_one() -> None:
    plan, graphs = samples.nasnet_like()
    facts = region_facts(plan.buckets[0], graphs[0])
    assert sum(f.share or 0.0 for f in facts) == pytest.approx(1.0)


def test_without_a_graph_there_are_no_names() -> None:
    plan, _ = samples.small()
    assert all(not f.operators and not f.before and not f.after for f in region_facts(plan.buckets[0]))


def test_runner_up_must_have_given_a_right_answer() -> None:
    plan, graphs = samples.small()
    bucket = plan.buckets[0]
    wrong = Alternative(
        Implementation("xla", KernelConfig("bf16")), "wrong", 1e-6, (1e-6, 1e-6), 0.5, "error too large"
    )
    first = dataclasses.replace(
        bucket.program.regions[0], alternatives=(wrong, *bucket.program.regions[0].alternatives)
    )
    bucket = alter_bucket(bucket, regions=(first, *bucket.program.regions[1:]))
    fact = region_facts(bucket, graphs[0])[0]
    assert fact.runner_up is not None and fact.runner_up.implementation.backend != "xla"
    assert fact.margin == pytest.approx((fact.runner_up.median_ms or 0) / (first.cost_ms or 1) - 1)


def test_clear_needs_intervals_apart() -> None:
    plan, _ = samples.small()
    region = dataclasses.replace(
        plan.buckets[0].program.regions[0],
        implementation=Implementation("a"), cost_ms=1.0,
        alternatives=(
            Alternative(Implementation("a"), "ok", 1.0, (0.9, 1.1), 0.0),
            Alternative(Implementation("b"), "ok", 1.2, (1.05, 1.3), 0.0),
        ),
    )  # fmt: skip
    close = region_facts(alter_bucket(plan.buckets[0], regions=(region,)))[0]
    assert close.clear is False
    apart = dataclasses.replace(region.alternatives[1], ci_ms=(1.11, 1.3))
    region = dataclasses.replace(region, alternatives=(region.alternatives[0], apart))
    assert region_facts(alter_bucket(plan.buckets[0], regions=(region,)))[0].clear is True


def test_plan_of_another_graph_is_refused() -> None:
    plan, _ = samples.nasnet_like()
    _, graphs = samples.small()
    with pytest.raises(ValueError, match="the plan names operator"):
        region_facts(plan.buckets[0], graphs[0])
