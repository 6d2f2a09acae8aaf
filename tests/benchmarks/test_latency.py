"""Figures of a race: who counts, and how they are shown."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from benchmarks.latency import Result, averages, baselines_table, stored, table, without
from bricolage.plan.race_outcome import Contestant
from bricolage.work.implementation import Implementation, KernelConfig


def baseline(name: str, ms: float | None, speedup: float | None = None) -> Contestant:
    interval = None if speedup is None else (speedup * 0.9, speedup * 1.1)
    return Contestant(
        name,
        "baseline",
        ms,
        None if ms is None else (ms * 0.9, ms * 1.1),
        0.0,
        ms is not None,
        implementation=Implementation(*name.split()[:1], KernelConfig(name.split()[1])),
        speedup=speedup,
        speedup_ci=interval,
    )


RESULT = Result(
    workload="resnet-50",
    precision="highest",
    shipped="native f32",
    regions=1,
    bricolage_ms=2.0,
    best_baseline="onnxruntime f32",
    best_baseline_ms=1.0,
    ratio=0.5,
    ratio_ci=(0.45, 0.55),
    decided_ratio=1.0,
    significant=False,
    error=1e-7,
    bound=1e-6,
    floor_ms=0.5,
    optimize_s=3.0,
    baselines=(
        baseline("onnxruntime f32", 1.0, 1.0),
        baseline("native f32", 2.0, 0.5),
        baseline("native f32-winograd2", 2.5, 0.4),
        baseline("openvino f32", 4.0, 0.25),
        baseline("tvm f32", 3.0),
    ),
    isa="avx2",
    unkept={"onnxruntime": "AVX-512 in 90% of looks"},
)


def test_who_does_not_keep_to_the_instruction_set_does_not_count() -> None:
    other, gain = RESULT.best_other, RESULT.gain
    assert other is not None and other.name == "tvm f32", "though it was not in the race"
    assert gain is not None and gain[0] == pytest.approx(1.5) and RESULT.alone == pytest.approx(1.5)
    raced = dataclasses.replace(RESULT, baselines=RESULT.baselines[:-1])
    assert raced.best_other is not None and raced.best_other.name == "openvino f32"
    assert raced.gain is not None and raced.gain[0] == pytest.approx(2) and raced.alone == pytest.approx(2)
    free = dataclasses.replace(RESULT, isa="", unkept={})
    assert free.best_other is not None and free.best_other.name == "onnxruntime f32"
    assert free.gain == (0.5, 0.45, 0.55) and free.alone == pytest.approx(0.5)


def test_the_gain_is_of_rounds_that_both_had_where_the_race_says_it() -> None:
    free = dataclasses.replace(RESULT, isa="", unkept={}, best_baseline="native f32", ratio=1.01, ratio_ci=(0.9, 1.1))
    paired = dataclasses.replace(free, raced_other="onnxruntime f32", over_other=1.4, over_other_ci=(1.38, 1.42))
    assert paired.gain == (1.4, 1.38, 1.42)
    kept = dataclasses.replace(paired, unkept=RESULT.unkept)
    assert kept.best_other is not None and kept.best_other.name == "tvm f32" and kept.gain != paired.gain, (
        "that one does not count"
    )


def test_times_from_elsewhere_count_where_nobody_else_raced() -> None:
    few = dataclasses.replace(RESULT, baselines=tuple(c for c in RESULT.baselines if c.name != "openvino f32"))
    assert few.best_other is not None and few.best_other.name == "tvm f32"
    assert few.alone == pytest.approx(1.5) and few.gain is not None and few.gain[0] == pytest.approx(1.5)


def test_who_is_out_of_reach_of_the_race_counts_by_its_time() -> None:
    seen = [baseline("torch f32", 3.2), baseline("xla f32", 9.0)]
    row = dataclasses.replace(RESULT, baselines=(*RESULT.baselines[:3], *seen))
    assert row.gain is not None and row.gain[0] == pytest.approx(1.6) and row.alone == pytest.approx(1.6)


def test_a_race_without_other_tools_has_no_gain() -> None:
    lonely = dataclasses.replace(RESULT, baselines=(RESULT.baselines[1], baseline("tvm f32", None)))
    assert lonely.best_other is None and lonely.gain is None and lonely.alone is None
    assert table([lonely]).count("\n") == 2
    assert averages([lonely]).splitlines()[-1] == "| highest, avx2 |  |  |  |  |"


def test_tables_say_who_kept_to_it() -> None:
    head, rule, row = table([RESULT]).splitlines()
    assert head.count("|") == rule.count("|") == row.count("|")
    assert "highest, avx2" in row and "| **1.500** [" in row and "| 1.500 |" in row
    shown = baselines_table([RESULT])
    assert "1†" in shown and "4†" not in shown
    assert shown.splitlines()[-1] == "† resnet-50: onnxruntime did not keep to avx2 (AVX-512 in 90% of looks)"
    assert "| highest, avx2 | 1.50 (1) | 1.50 (1) | 1.50 (1) | 1.50 (1) |" in averages([RESULT])


def test_rows_come_back_from_files_each_regime_apart(tmp_path: Path) -> None:
    free = dataclasses.replace(RESULT, isa="", unkept={})
    rows = [dataclasses.asdict(r) for r in (RESULT, free)]
    del rows[1]["isa"], rows[1]["unkept"]  # as it was written before there were instruction sets
    path = tmp_path / "latency.json"
    path.write_text(json.dumps({"results": rows}), encoding="utf-8")
    assert stored([path]) == [free, RESULT]


def test_backends_are_left_out_by_name() -> None:
    assert without([]) is None
    left = without(["native"])
    assert left and "native" not in left
    with pytest.raises(SystemExit, match="there is no backend 'nativ' to leave out; there are: "):
        without(["nativ"])
