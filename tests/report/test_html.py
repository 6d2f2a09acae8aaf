"""The page: complete, self-contained, safe against hostile names. How it looks is checked by eye in a browser."""

from __future__ import annotations

import dataclasses
import json
import re
import time
from html.parser import HTMLParser

import report_samples as samples

from bricolage.report.html import remake, render
from bricolage.report.palette import slots
from tests.plan.bucket_facts import alter_bucket

VOID = {"meta", "input", "br", "link", "img", "hr"}


class Reader(HTMLParser):
    """Checks that tags are balanced, and collects what the tests look at."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    assert not reader.open
    return reader


def test_page_is_complete_and_self_contained() -> None:
    plan, graphs = samples.small()
    page = render(plan, graphs, "bricolage report model.bricolage")
    reader = read(page)
    for tag, attributes in reader.tags:
        assert not ({"src", "srcset", "action"} & set(attributes)), tag
        assert (attributes.get("href") or "#").startswith("#") and tag not in ("link", "img", "iframe", "object")
    assert "url(" not in page and "@import" not in page and "http://" not in page and "https://" not in page
    assert "default-src 'none'" in page and "prefers-color-scheme:dark" in page
    for heading in ("Contestants", "Where the time goes", "Region graph", "Regions", "Transfer costs", "Accuracy"):
        assert f"<h2>{heading}</h2>" in page
    for fact in (
        "Sample CPU",
        "openvino 2025.4.0",
        "bricolage report model.bricolage",
        "2026-01-02T03:04:05Z",
        "16 MiB",
    ):
        assert fact in page
    assert remake(plan) in page


def test_every_region_is_a_box_a_row_and_a_record() -> None:
    plan, graphs = samples.nasnet_like()
    count = len(plan.buckets[0].program.regions)
    assert count >= 300
    reader = read(render(plan, graphs))
    classes = [attributes.get("class") or "" for _, attributes in reader.tags if "data-region" in attributes]
    assert sum(name.startswith("box ") for name in classes) == count
    rows = [a for tag, a in reader.tags if tag == "tr" and "data-region" in a]
    assert len(rows) == count
    data = json.loads(reader.scripts[0])
    assert len(data) == count and data[0]["operators"] and data[0]["after"]


def test_page_of_nasnet_size_is_quick_and_small() -> None:
    plan, graphs = samples.nasnet_like()
    began = time.process_time()
    page = render(plan, graphs)
    assert time.process_time() - began < 5
    assert len(page) < 1_500_000


def test_buckets_become_tabs() -> None:
    plan, graphs = samples.several()
    page = render(plan, graphs)
    assert page.count('class="bucket"') == 2 and page.count("data-tab=") == 2
    assert "--shape batch=1,8 --shape sequence=128,128" in page


def test_hostile_names_stay_text() -> None:
    plan, graphs = samples.small()
    evil = '</script><script>alert(1)</script><img src=x onerror="alert(2)">'
    assert graphs[0] is not None
    graphs[0].operators[0].node.name = evil
    bucket = plan.buckets[0]
    regions = tuple(dataclasses.replace(r, title=evil) for r in bucket.program.regions)
    contestants = tuple(dataclasses.replace(c, reason=evil) for c in bucket.race.contestants)
    named = dataclasses.replace(contestants[-1], name=evil)
    bucket = alter_bucket(bucket, regions=regions, contestants=(*contestants[:-1], named))
    reader = read(render(dataclasses.replace(plan, model=evil, buckets=(bucket,)), graphs, evil))
    tags = [tag for tag, _ in reader.tags]
    assert tags.count("script") == 2 and "img" not in tags
    assert json.loads(reader.scripts[0])[0]["operators"][0] == evil


def test_page_without_graph_and_without_costs() -> None:
    plan, _ = samples.small()
    bucket = plan.buckets[0]
    bare = tuple(dataclasses.replace(r, cost_ms=None, transfer_ms=0.0, alternatives=()) for r in bucket.program.regions)
    left = {"contestants": bucket.race.contestants[:1], "best_baseline": bucket.race.chosen, "best_other": ""}
    bucket = alter_bucket(bucket, regions=bare, transfers=(), seconds={}, **left)
    page = render(dataclasses.replace(plan, buckets=(bucket,)), [None])
    read(page)
    assert "drawn without their connections" in page and "Transfer costs" not in page


def test_winner_without_race_is_shown() -> None:
    plan, graphs = samples.small()
    bucket = alter_bucket(plan.buckets[0], chosen="torch f64", contestants=())
    assert "ships <strong>torch f64</strong>" in render(dataclasses.replace(plan, buckets=(bucket,)), graphs)


def test_the_final_race_is_named_where_there_was_one() -> None:
    plan, graphs = samples.small()
    assert "measured in turns in the final race" in render(plan, graphs)
    bucket = plan.buckets[0]
    surveyed = tuple(dataclasses.replace(c, first_run_ms=None) for c in bucket.race.contestants)
    page = render(dataclasses.replace(plan, buckets=(alter_bucket(bucket, contestants=surveyed),)), graphs)
    assert "measured in turns; whiskers" in page and "in the final race" not in page


def test_colours_stay_with_their_backend() -> None:
    assert slots(["openvino", "mine"])["openvino"] == slots(["torch", "openvino"])["openvino"]
    found = slots(["a", "onnxruntime", "b"])
    assert len(set(found.values())) == 3 and found["onnxruntime"] == 0
    many = slots([f"b{i}" for i in range(12)])
    assert max(many.values()) == 8 and sum(v == 8 for v in many.values()) == 4


def test_numbers_in_svg_are_finite() -> None:
    plan, graphs = samples.small()
    bucket = plan.buckets[0]
    worst = dataclasses.replace(
        bucket.race.contestants[1], error=float("inf"), accepted=False, median_ms=0.0, ci_ms=(0.0, 0.0)
    )
    perfect = dataclasses.replace(bucket.race.contestants[2], error=0.0)
    bucket = alter_bucket(bucket, contestants=(bucket.race.contestants[0], worst, perfect), original_error=0.0)
    page = render(dataclasses.replace(plan, buckets=(bucket,)), graphs)
    figures = "".join(re.findall(r"<svg.*?</svg>", page, re.S))
    assert not re.search(r'="[^"]*\b(nan|inf)\b', figures)
