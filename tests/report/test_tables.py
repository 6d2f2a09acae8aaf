from __future__ import annotations

import dataclasses
import io

import pytest
import report_samples as samples
from rich.console import Console

from bricolage.report import tables
from tests.plan.bucket_facts import alter_bucket


@pytest.mark.parametrize("width", [80, 120])
def test_result_fits_the_width_and_says_everything(width: int) -> None:
    plan, _ = samples.small()
    text = tables.render_text(tables.result(plan, width), width)
    assert max(map(len, text.splitlines())) <= width
    for wanted in (
        "plan exact",
        "4.83 ms",
        "4.76-4.93 ms",
        "1.14x",
        "3.1e-07",
        "yes",
        "no",
        "Sample CPU",
        "openvino 2025.4.0",
    ):
        assert wanted in text
    assert "error 8.0e-03 exceeds the limit 1.2e-06" in text
    said = " ".join(text.split())
    assert "~14.00x" not in said, "that of paired rounds is exact"
    assert said.endswith(
        "1.14 [1.12, 1.16] times as fast as openvino f32, the best other tool here and the best single configuration."
    )


def test_a_decision_is_short_leads_with_the_gain_and_keeps_what_ships() -> None:
    plan, _ = samples.small()
    bucket = plan.buckets[0]
    slow = [dataclasses.replace(bucket.race.contestants[-1], name=f"slow {n}", reason="refused") for n in range(30)]
    bucket = dataclasses.replace(
        bucket, race=dataclasses.replace(bucket.race, contestants=(*bucket.race.contestants, *slow))
    )
    lines = tables.render_text(tables.decision(bucket, 80), 80).splitlines()
    assert len(lines) <= 25 and max(map(len, lines)) <= 80
    assert lines[0].startswith("plan exact (4.83 ms) is 1.14")
    assert any(line.startswith("> plan exact") for line in lines)
    hidden = len(bucket.race.contestants) - tables.MOST_ROWS
    assert f"  and {hidden} slower or refused ones (-v lists them)" in lines
    assert len(tables.render_text(tables.decision(bucket, 80, verbose=True), 80).splitlines()) > 35


def test_reasons_stand_under_the_table_where_it_is_narrow() -> None:
    plan, _ = samples.small()
    assert "Reason" not in tables.render_text(tables.contestants(plan.buckets[0], 80), 80)
    assert "Reason" in tables.render_text(tables.contestants(plan.buckets[0], 120), 120)


def test_every_bucket_is_shown() -> None:
    plan, _ = samples.several()
    text = tables.render_text(tables.result(plan, 100))
    assert "batch=1, sequence=128" in text and "batch=8, sequence=128" in text
    said = " ".join(text.split())
    assert "plan exact (4.83 ms) is 1.14 [1.12, 1.16] times as fast as openvino f32" in said
    assert (
        "openvino f32 (" in said and "is the best other tool here, and neither our engine nor a plan beats it." in said
    )


def colours(monkeypatch: pytest.MonkeyPatch, no_color: bool) -> str:
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    else:
        monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    plan, _ = samples.small()
    stream = io.StringIO()
    Console(file=stream, width=100, force_terminal=True).print(tables.result(plan, 100))
    return stream.getvalue()


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[1;32m" in colours(monkeypatch, no_color=False)
    assert "32m" not in colours(monkeypatch, no_color=True)


def test_names_are_neither_markup_nor_terminal_commands() -> None:
    plan, _ = samples.small()
    bucket = plan.buckets[0]
    odd = dataclasses.replace(bucket.race.contestants[-1], name="[bold]x\x1b[2J", reason="[/nothing] \x1b]0;t\x07")
    bucket = alter_bucket(bucket, contestants=(*bucket.race.contestants[:-1], odd))
    text = tables.render_text(tables.contestants(bucket, 120), 120)
    assert r"[bold]x\x1b[2J" in text and r"[/nothing] \x1b]0;t\x07" in text and "\x1b" not in text


def test_a_mere_comparison_ships_nothing() -> None:
    plan, _ = samples.small(gain=False)
    text = tables.render_text(tables.result(plan, 100, ships=False), 100)
    said = " ".join(text.split())
    assert "ships" not in said
    assert said.endswith(
        "is 0.99 [0.97, 1.01] times as fast as openvino f32, the best other tool here and the best single "
        "configuration, which is within the noise."
    )


def test_interrupted_search_says_so() -> None:
    plan, _ = samples.small()
    assert "interrupted" not in tables.render_text(tables.result(plan, 100))
    bucket = alter_bucket(plan.buckets[0], interrupted=True)
    assert "interrupted: this is the best plan" in tables.render_text(
        tables.result(dataclasses.replace(plan, buckets=(bucket,)), 100)
    )
