"""What tuning found, in words, tables and pages."""

from __future__ import annotations

import dataclasses
import io

import report_samples as samples
from rich.console import Console
from test_html import read

from bricolage.base.options import Options
from bricolage.driver.model_tuning import Tuned, TunedImplementation
from bricolage.measure.statistics import Ratio
from bricolage.plan.tuned import TunedKernels, TunedTask
from bricolage.report import tuning
from bricolage.report.html import render
from bricolage.tune.kernel_search import Snapshot
from bricolage.work.implementation import Implementation, KernelConfig
from tests.plan.bucket_facts import alter_bucket

WON = TunedTask(
    "conv-3", "conv", 2, {"m": 49, "n": 512}, 4.0, 2.5, (("pack", True), ("rows", 7)), 1.6, (1.5, 1.7), 40, 2
)
SAME = TunedTask("matmul-9", "matmul", 1, {"m": 1}, 9.0, 9.0, (), None, None, 30, 0)
HOSTILE = dataclasses.replace(WON, name="<script>alert(1)</script>", kind="<b>")
GAIN = Ratio(1.12, 1.1, 1.15, 30)
CURVE = (Snapshot(2.0, 10, 0, 13.0, 12.0), Snapshot(9.0, 30, 2, 12.0, 10.5))
FOUND = TunedKernels(Implementation("native", KernelConfig("f32", (("3.rows", 7),))), (SAME, WON))


def shown(gain: Ratio | None = GAIN, reason: str = "", tuned: TunedKernels = FOUND) -> TunedImplementation:
    times = (14.0, 12.5) if gain is not None else (None, None)
    return TunedImplementation({"batch": 1}, "rewritten", tuned, CURVE, *times, gain, reason)


def text(found: TunedKernels) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(tuning.tuned_table(found, 5))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_verdict_says_from_what_to_what_and_how_sure() -> None:
    words = tuning.tuning_verdict(shown())
    assert "native f32 on the rewritten graph, batch=1: 14.0 ms → 12.5 ms" in words
    assert "1.120x [1.100, 1.150] (70 trials of 2 tasks)" in words
    assert "nothing is surely faster" in tuning.tuning_verdict(shown(None))
    assert "tuned: wrong" in tuning.tuning_verdict(shown(None, "tuned: wrong"))
    empty = TunedImplementation({}, "original", TunedKernels(FOUND.implementation), (), reason="refused (no)")
    assert tuning.tuning_verdict(empty) == "native f32: not tuned (refused (no))" and tuning.search_outlook(empty) == ""
    assert "the last quarter of the time saved 4.8%" in tuning.search_outlook(shown())
    assert (
        tuning.search_course(shown()).endswith("saved 7.7% after 2.0 s, 12.5% after 9.0 s")
        and tuning.search_course(empty) == ""
    )


def test_what_saved_most_comes_first() -> None:
    lines = text(FOUND).splitlines()
    assert "2 conv" in lines[1] and "1.60x" in lines[1] and "pack True, rows 7" in lines[1]
    assert "1 matmul" in lines[2] and "as usual" in lines[2]


def test_the_page_is_complete_and_escapes_everything() -> None:
    hostile = shown(tuned=TunedKernels(FOUND.implementation, (SAME, HOSTILE)))
    found = Tuned(
        "<i>net</i>", "a machine", {"native": "1"}, Options(threads=1), (shown(), hostile, shown(None)), 61.0, True
    )
    page = tuning.tuning_page(found)
    reader = read(page)
    assert not reader.scripts and "<script" not in page and "<i>net" not in page and "<b>" not in page
    assert sum(tag == "svg" for tag, _ in reader.tags) == 3 and "interrupted" in page
    for words in ("m=49 n=512", "1.500 to 1.700", "pack True, rows 7", "as usual", "1.120× ["):
        assert words in page
    for tag, attributes in reader.tags:
        assert not ({"src", "srcset", "action"} & set(attributes)), tag


def test_a_plan_tells_of_its_tuned_kernels() -> None:
    plan, graphs = samples.small()
    bucket = alter_bucket(plan.buckets[0], tuned=(FOUND, TunedKernels(Implementation("tvm"), (SAME,))))
    page = render(dataclasses.replace(plan, buckets=(bucket, *plan.buckets[1:])), graphs)
    read(page)
    assert "Tuned kernels of native f32" in page and "save 1.5 ms a run" in page.replace("1.50", "1.5")
    assert "Tuned kernels of tvm f32" in page and "found nothing that is surely faster" in page
    assert "Tuned kernels" not in render(plan, graphs)
