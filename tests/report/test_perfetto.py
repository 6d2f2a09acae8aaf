"""The file that Perfetto reads, and the words on regions side by side."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence

import report_samples as samples

from bricolage.graph.graph import Graph
from bricolage.plan.plan import Bucket, Plan
from bricolage.plan.schedules import PlannedSchedule, ScheduleAttempt
from bricolage.report import concurrency
from bricolage.report.facts import region_facts
from bricolage.report.html import render
from bricolage.report.perfetto import chrome_trace
from bricolage.runtime.spans import RunSpan
from tests.plan.bucket_facts import alter_bucket


def test_a_trace_has_a_row_for_each_thread_and_an_event_for_each_call() -> None:
    plan, _ = samples.small()
    bucket = plan.buckets[0]
    count = len(bucket.program.regions)
    assert count >= 2
    cores = tuple((step % 2,) for step in range(count))
    bucket = alter_bucket(bucket, schedule=PlannedSchedule(cores, "by hand", 1.0, 1.0, 2.0))
    starts = [1_000_000 + 2_000 * step for step in range(count)]
    spans = [RunSpan(step, start, start + 1_000, 70 + step % 2, step % 2) for step, start in enumerate(starts)]
    made = json.loads(json.dumps(chrome_trace("m.onnx", bucket, spans)))
    for event in made["traceEvents"]:  # the trace event format: "complete" events, and metadata that names their rows
        assert {"name", "ph", "pid", "tid"} <= set(event) and event["ph"] in ("X", "M")
        assert all(isinstance(event[name], int) for name in ("pid", "tid"))
        assert event["ph"] == "M" or (event["ts"] >= 0 and event["dur"] >= 0)
    calls = [event for event in made["traceEvents"] if event["ph"] == "X"]
    assert [(call["ts"], call["dur"], call["tid"]) for call in calls] == [
        (2.0 * n, 1.0, 1 + n % 2) for n in range(count)
    ]
    assert calls[0]["cat"] == bucket.program.regions[0].implementation.backend and calls[1]["args"]["cores"] == [1]
    rows = [event["args"]["name"] for event in made["traceEvents"] if event["name"] == "thread_name"]
    assert rows == ["thread 70", "thread 71"]


def test_a_shape_that_was_not_planned_has_numbers_only() -> None:
    made = chrome_trace("m.onnx", None, [RunSpan(0, 5, 1_005, 7, None)])
    assert made["traceEvents"][-1] == {
        "name": "region 1", "ph": "X", "pid": 1, "tid": 1, "ts": 0.0, "dur": 1.0, "args": {},
    }  # fmt: skip
    assert [event["ph"] for event in chrome_trace("m.onnx", None, [])["traceEvents"]] == ["M"]


def test_what_side_by_side_could_save_is_told() -> None:
    plan, graphs = samples.small()
    bucket = plan.buckets[0]
    facts = region_facts(bucket, graphs[0])
    problem = concurrency.as_problem(facts, 2)
    assert len(problem) == len(facts)
    for index, one in enumerate(facts):
        assert problem.graph.predecessors[index] == one.before
    assert "at most" in concurrency.describe_concurrency(bucket, facts, 2)
    assert not concurrency.describe_concurrency(bucket, facts[:1], 2)
    unknown = (dataclasses.replace(facts[0], planned=dataclasses.replace(facts[0].planned, cost_ms=None)), *facts[1:])
    assert not concurrency.describe_concurrency(bucket, unknown, 2)


def page(plan: Plan, graphs: Sequence[Graph | None], bucket: Bucket) -> str:
    return render(dataclasses.replace(plan, buckets=(bucket,)), graphs[:1])


def test_what_was_tried_is_told() -> None:
    plan, graphs = samples.small()
    tried = ScheduleAttempt("native f32", 5, 4.0, 2.5, "measured, it is slower", 3.0, 4.25)
    bucket = alter_bucket(plan.buckets[0], attempts=(tried,))
    line = concurrency.attempt(tried)
    for fact in ("native f32 (4.00 ms)", "in 5 regions", "at least 2.50 ms", "predicted 3.00 ms", "measured 4.25 ms"):
        assert fact in line
    assert line.endswith(": measured, it is slower") and line in page(plan, graphs, bucket)
    whole = ScheduleAttempt("native f32", 1, 4.0, 4.0, "the time was up")
    assert concurrency.attempt(whole) == "side by side, native f32 (4.00 ms): the time was up"


def test_a_schedule_is_told_with_its_bounds() -> None:
    plan, graphs = samples.small()
    cores = ((0,),) * len(plan.buckets[0].program.regions)
    bucket = alter_bucket(plan.buckets[0], schedule=PlannedSchedule(cores, "CPR", 3.0, 2.5, 4.0))
    told = concurrency.describe_concurrency(bucket, region_facts(bucket, graphs[0]), 2)
    assert "raced" not in told
    some = tuple(0.5 for _ in cores)
    regions_ = tuple(dataclasses.replace(one, start_ms=0.5 * n) for n, one in enumerate(bucket.program.regions))
    kept = PlannedSchedule(cores, "CPR", 3.0, 2.5, 4.0, 1.25, (1.1, 1.3), some)
    won = alter_bucket(bucket, regions=regions_, schedule=kept)
    assert "1.250 times as fast" in concurrency.describe_concurrency(won, region_facts(won, graphs[0]), 2)
    (picture,) = re.findall(r'<svg class="chart"[^>]*aria-label="Predicted schedule.*?</svg>', page(plan, graphs, won))
    count = len(won.program.regions)
    assert picture.count("<rect") == count and "core 0" in picture and "no schedule below" in picture
    assert "Predicted schedule" not in page(plan, graphs, bucket), "a plan without times"
    assert "by CPR" in told and "3.00 ms" in told and "2.50 ms" in told and "4.00 ms" in told
