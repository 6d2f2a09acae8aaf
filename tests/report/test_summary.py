from __future__ import annotations

import json

import pytest
import report_samples as samples

from bricolage.base.codec import decode
from bricolage.plan.plan import Plan
from bricolage.report.summary import summary


def test_summary_has_what_scripts_rely_on() -> None:
    plan, _ = samples.small()
    loaded = json.loads(json.dumps(summary(plan)))
    assert {
        "model",
        "precision",
        "chosen",
        "speedup_vs_baseline",
        "speedup_ci",
        "significant",
        "headline",
        "best_other",
        "speedup_vs_other",
        "speedup_vs_other_ci",
        "plan",
        "seconds",
    } <= set(loaded)
    assert {"name", "median_ms", "ci_ms", "error", "accepted", "reason"} <= set(loaded["contestants"][0])
    assert (loaded["best_other"], loaded["speedup_vs_other"]) == ("openvino f32", 1.14)
    assert loaded["speedup_vs_other_ci"] == pytest.approx([1.12, 1.16])
    by_name = {one["name"]: one for one in loaded["contestants"]}
    assert by_name["plan exact"]["speedup_vs_baseline"]["ci"] == pytest.approx([1.12, 1.16])
    assert by_name["torch f32"]["speedup_vs_other"] == {"value": pytest.approx(1 / 2.6), "ci": None}
    assert by_name["iree f32"]["speedup_vs_other"] is None
    assert loaded["provisional"] == [] and loaded["continued"] == 0 == loaded["disturbance"]["given_back_s"]
    assert decode(Plan, loaded["plan"]) == plan
    assert "buckets" not in loaded


def test_several_buckets_are_listed_and_the_first_is_on_top() -> None:
    plan, _ = samples.several()
    result = summary(plan)
    assert [b["sizes"]["batch"] for b in result["buckets"]] == [1, 8]
    assert result["chosen"] == result["buckets"][0]["chosen"] != result["buckets"][1]["chosen"]
