"""What a decision measured and left out, wherever it is shown."""

from __future__ import annotations

import dataclasses
import json

import report_samples as samples

from bricolage.base.codec import decode, encode
from bricolage.plan.agenda_record import AgendaItem
from bricolage.plan.plan import Bucket
from bricolage.plan.race_outcome import Contestant
from bricolage.report import agenda_rows, tables, words
from bricolage.report.explain import overview
from bricolage.report.html import render
from bricolage.report.summary import bucket_summary
from tests.plan.bucket_facts import alter_bucket

ITEMS = (
    AgendaItem(
        "rewritten graph",
        "measured",
        "rewritten graphs have no record here",
        3.0,
        gain=0.1,
        seconds=4.25,
        gained=0.031,
        interval=(0.01, 0.05),
        candidate="native f32 rewritten",
    ),
    AgendaItem("regions", "measured", "mixtures have no record here", 9.0, gain=0.1, seconds=8.0),
    AgendaItem("whole model on xla f32", "unlikely", "on 14 networks <before>", 6.0, 0.7, 0.03, 0.12),
    AgendaItem("whole model on tvm f32", "unlikely", "on 13 networks before", 11.0, None, 0.1, 0.04),
    AgendaItem("schedules", "bounded", "side by side could save 0.4 % at most", 11.0, 0.004, None, 0.004),
    AgendaItem("kernel tuning", "no time", "it gained in 3 of 6", 60.0, None, 0.5, 0.09),
)


def with_agenda() -> Bucket:
    plan, _ = samples.small()
    return alter_bucket(plan.buckets[0], agenda=ITEMS)


def test_sentences_lead_with_what_was_measured_and_give_each_reason_a_line() -> None:
    assert agenda_rows.sentences(with_agenda()) == [
        "also measured: rewritten graph (saved 3.1 % [1.0 %, 5.0 %]), regions",
        "bounded, no more than 0.4 % to save: schedules",
        "unlikely, chances of 10.0 % or less to save 12.0 % or less: whole model on xla f32, tvm f32",
        "no time: kernel tuning",
        "expected to be lost by all that was left out: 5.3 %",
    ]
    plan, _ = samples.small()
    assert agenda_rows.sentences(alter_bucket(plan.buckets[0], contestants=())) == []


def test_contestants_of_which_nothing_was_compiled_are_a_line_for_each_reason() -> None:
    """The table has no rows of dashes."""
    bucket = with_agenda()
    left = ("xla f32", "jax f32", "ours f32", "theirs f32")
    reasons = (
        "unlikely: so",
        "unlikely: so",
        "no time: it was up before its turn",
        "no time: it was up before its turn",
    )
    contestants = tuple(
        Contestant(name, "baseline", None, None, None, False, reason)
        for name, reason in zip(left, reasons, strict=True)
    )
    bucket = alter_bucket(bucket, contestants=(*bucket.race.contestants, *contestants))
    assert not {"xla f32", "ours f32"} & {one.name for one in words.rank_contestants(bucket)}
    assert "no time: it was up before its turn: ours f32, theirs f32" in agenda_rows.sentences(bucket)
    assert agenda_rows.short_sentences(bucket)[-1].startswith(
        "left out: 1 bounded, 2 unlikely, 1 no time, 3 not tried;"
    )
    assert sum("xla f32" in line for line in agenda_rows.sentences(bucket)) == 1


def test_the_decision_and_its_explanation_show_it() -> None:
    bucket = with_agenda()
    short = " ".join(tables.render_text(tables.decision(bucket, 80), 80).split())
    assert "also measured: rewritten graph (saved 3.1 % [1.0 %, 5.0 %]), and 1 more" in short
    assert (
        "left out: 1 bounded, 2 unlikely, 1 no time; expected loss 5.3 % (-v lists them)" in short
        and "xla f32" not in short
    )
    shown = tables.render_text(tables.decision(bucket, 100, verbose=True), 100)
    assert "unlikely, chances of 10.0 % or less to save 12.0 % or less: whole model on xla f32, tvm f32" in shown
    _, graphs = samples.small()
    text = tables.render_text(overview(bucket, graphs[0]), 80)
    assert max(map(len, text.splitlines())) <= 80
    flowing = " ".join(text.split())
    for wanted in ("Agenda", "Bound", "Chance", "10.0 %", "3.1 %", "unlikely", "bounded", "no time", "unknown"):
        assert wanted in flowing, wanted


def test_a_bound_and_a_chance_are_never_one_for_the_other() -> None:
    told = json.loads(json.dumps(bucket_summary(with_agenda())["agenda"]))
    facts = {item["name"]: (item["bound"], item["chance"]) for item in told}
    assert facts["whole model on xla f32"] == (0.7, 0.03) and facts["whole model on tvm f32"] == (None, 0.1)
    assert facts["schedules"] == (0.004, None) and facts["rewritten graph"] == (None, None)
    cells = {row[0]: row[2:4] for row in agenda_rows.agenda_rows(with_agenda())}
    assert cells["whole model on tvm f32"] == (words.MISSING, "10.0 %") and cells["schedules"] == ("0.4 %", "unknown")


def test_the_page_and_the_json_hold_it() -> None:
    plan, graphs = samples.small()
    page = render(dataclasses.replace(plan, buckets=(with_agenda(),)), graphs)
    assert "<h2>Agenda</h2>" in page and "on 14 networks &lt;before&gt;" in page and "<td>unlikely</td>" in page
    assert "<h2>Agenda</h2>" not in render(plan, graphs), "plans of before have none"
    told = bucket_summary(with_agenda())["agenda"]
    assert decode(tuple[AgendaItem, ...], encode(told)) == ITEMS
