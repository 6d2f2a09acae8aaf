from __future__ import annotations

import dataclasses
import json

import pytest
import report_samples as samples

from bricolage.errors import BadOption
from bricolage.report import explain, tables
from bricolage.report.facts import region_facts


def test_find_by_exact_name_then_part_then_type() -> None:
    plan, graphs = samples.small()
    facts = region_facts(plan.buckets[0], graphs[0])
    assert [f.number for f in explain.find_regions(facts, "/cell.8/gemm_0")] == [9]
    assert [f.number for f in explain.find_regions(facts, "cell.4")] == [5]
    assert [f.number for f in explain.find_regions(facts, "GlobalAveragePool")] == [8]


def test_unknown_operator_is_a_usage_error_with_examples() -> None:
    plan, graphs = samples.small()
    with pytest.raises(BadOption, match=r"/cell\.0/conv_0"):
        explain.find_regions(region_facts(plan.buckets[0], graphs[0]), "nothing")


def test_details_say_why() -> None:
    plan, graphs = samples.small()
    facts = region_facts(plan.buckets[0], graphs[0])
    text = tables.render_text(explain.details(facts[8], len(facts)), 160)
    assert "Region 9 of 10: Gemm (1 operator) on onnxruntime (f32)" in text
    assert "the fastest of 3 measured; openvino (f32) is 50.2 % slower (the intervals do not overlap)" in text
    assert "tvm (f32): timed-out, no answer within 60 s" in text
    assert "regions 2, 8" in text and "region 10" in text and "/cell.8/gemm_0" in text


def test_slower_choice_is_not_called_fastest() -> None:
    plan, graphs = samples.nasnet_like()
    facts = [f for f in region_facts(plan.buckets[0], graphs[0]) if f.margin is not None and f.margin < 0]
    assert facts
    assert all(
        "faster by itself" in explain.explain_choice(f) and "fastest" not in explain.explain_choice(f) for f in facts
    )


def test_region_without_measurement_says_so() -> None:
    plan, _ = samples.small(gain=False)
    fact = region_facts(plan.buckets[0])[0]
    assert "not measured by itself" in explain.explain_choice(fact)
    unknown = dataclasses.replace(fact, planned=dataclasses.replace(fact.planned, cost_ms=None), share=None)
    assert "time not known" in explain.describe_cost(unknown)


@pytest.mark.parametrize("width", [80, 120])
def test_overview_fits_and_hides_the_cheap_ones(width: int) -> None:
    plan, graphs = samples.nasnet_like()
    bucket = plan.buckets[0]
    text = tables.render_text(explain.overview(bucket, graphs[0]), width)
    assert max(map(len, text.splitlines())) <= width
    assert f"and {len(bucket.program.regions) - explain.SHOWN} regions that take less time" in text
    whole = tables.render_text(explain.overview(bucket, graphs[0], everything=True), width)
    assert "take less time" not in whole and len(whole.splitlines()) > len(bucket.program.regions)


def test_json_holds_the_evidence() -> None:
    plan, graphs = samples.small()
    facts = region_facts(plan.buckets[0], graphs[0])
    loaded = json.loads(json.dumps(explain.region_json(facts[8])))
    assert (
        loaded["implementation"]["backend"] == "onnxruntime"
        and loaded["reads_from"] == [2, 8]
        and loaded["feeds"] == [10]
    )
    assert loaded["alternatives"][0]["median_ms"] == loaded["cost_ms"]
    assert loaded["operator_names"] == ["/cell.8/gemm_0"] and loaded["margin"] > 0 and loaded["clear"] is True
