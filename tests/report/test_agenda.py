"""What a decision measured and left out, wherever it is shown."""

from __future__ import annotations

import dataclasses

import report_samples as samples

from bricolage.codec import decode, encode
from bricolage.plan.agenda import AgendaItem
from bricolage.plan.plan import Bucket
from bricolage.report import agenda, tables
from bricolage.report.explain import overview
from bricolage.report.html import render
from bricolage.report.summary import bucket_summary

ITEMS = (
    AgendaItem("rewritten graph", "measured", 0.1, "rewritten graphs have no record here", 3.0, 4.25, 0.031),
    AgendaItem("whole model on xla f32", "left out", 0.004, "on 14 networks <before>", 6.0),
    AgendaItem("whole model on tvm f32", "left out", 0.0, "on 13 networks before", 11.0),
    AgendaItem("kernel tuning", "no time", 0.09, "it gained in 3 of 6", 60.0),
)


def with_agenda() -> Bucket:
    plan, _ = samples.small()
    return dataclasses.replace(plan.buckets[0], agenda=ITEMS)


def test_sentences_lead_with_what_was_measured() -> None:
    assert agenda.sentences(with_agenda()) == [
        "also measured: rewritten graph (saved 3.1 %)",
        "left out, since it could save 0.4 % at most: whole model on xla f32, tvm f32",
        "no time for what could save 9.0 % at most: kernel tuning",
    ]
    plan, _ = samples.small()
    assert agenda.sentences(plan.buckets[0]) == []


def test_the_decision_and_its_explanation_show_it() -> None:
    bucket = with_agenda()
    shown = tables.text(tables.decision(bucket, 100), 100)
    assert "left out, since it could save 0.4 % at most: whole model on xla f32, tvm f32" in shown
    _, graphs = samples.small()
    text = tables.text(overview(bucket, graphs[0]), 80)
    assert max(map(len, text.splitlines())) <= 80
    flowing = " ".join(text.split())
    for wanted in ("Agenda", "Could save", "10.0 %", "3.1 %", "measured: rewritten graphs", "no time for it"):
        assert wanted in flowing, wanted


def test_the_page_and_the_json_hold_it() -> None:
    plan, graphs = samples.small()
    page = render(dataclasses.replace(plan, buckets=(with_agenda(),)), graphs)
    assert "<h2>Agenda</h2>" in page and "left out: on 14 networks &lt;before&gt;" in page
    assert "<h2>Agenda</h2>" not in render(plan, graphs), "plans of before have none"
    told = bucket_summary(with_agenda())["agenda"]
    assert decode(tuple[AgendaItem, ...], encode(told)) == ITEMS
