"""Plans as data: what is written is read again, and what does not fit is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from bricolage.errors import BadPlan, MissingFile, NewerTrainingPlan
from bricolage.report.parallel import parallel_page, plan_table
from bricolage.train.pipeline.search import simulate_plan
from bricolage.train.run.document import PLAN, TABLE, FullyShardedPlan, read_training_plan, table_of, write_plan
from bricolage.train.sharded.planned_layouts import LayoutPlan, OperatorLayouts
from tests.train.run.made import plan


def test_a_plan_is_read_as_it_was_written_and_predicts_the_same(tmp_path: Path) -> None:
    made = plan(4)
    assert made.chosen is not None
    assert made.chosen.devices > 1 and made.begins(made.chosen)[0].startswith("layers.")
    write_plan(made, tmp_path)
    found, schedule = read_training_plan(tmp_path)
    assert found == made and schedule == table_of(made.chosen)
    assert not Path(json.loads((tmp_path / PLAN).read_text())["step"]["folder"]).is_absolute()
    assert found.chosen is not None
    times, curves = simulate_plan(found.problem, found.chosen)
    last = max(one.end_ms for one in times.passes)
    assert last <= found.chosen.step_ms <= last + found.chosen.exchange_ms + 1e-9
    peaks = [max(size for _, size in some) for some in curves]
    assert max(peaks) == pytest.approx(found.chosen.peak_bytes, rel=1e-6)


def test_passes_may_change_places_and_must_all_be_there(tmp_path: Path) -> None:
    write_plan(plan(4), tmp_path)
    table = tmp_path / TABLE
    rows = table.read_text().splitlines()
    table.write_text("\n".join([",".join(rows[0].split(",")[:-1]), *rows[1:]]))
    with pytest.raises(BadPlan, match="has the passes"):
        read_training_plan(tmp_path)
    table.write_text("\n".join([rows[0].replace("0F0", "0X0"), *rows[1:]]))
    with pytest.raises(BadPlan, match="'0X0' is no pass"):
        read_training_plan(tmp_path)
    table.write_text("0F0,0B0\n")
    with pytest.raises(BadPlan, match="differ"):
        read_training_plan(tmp_path)


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("format", 0, "format is not between 1 and 4"),
        ("single_ms", "fast", "single_ms is no float"),
        ("unit", "seconds", "unknown field 'unit'"),
        ("layers", [], "layers has 0 items"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, field: str, value: object, told: str) -> None:
    write_plan(plan(2), tmp_path)
    place = tmp_path / PLAN
    data = json.loads(place.read_text())
    place.write_text(json.dumps({**data, field: value}))
    with pytest.raises(BadPlan, match=told):
        read_training_plan(tmp_path)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"parameters": {"w": "S(one)"}}, "'S\\(one\\)' is no layout"),
        ({"relays": {"mm.0": "halves"}}, "'halves' is no layout"),
        ({"workers": 3}, "its layouts are for 3 devices of 2"),
    ],
)
def test_layouts_that_do_not_fit_are_refused(tmp_path: Path, changes: dict[str, object], told: str) -> None:
    layouts = LayoutPlan(
        2,
        {"w": "S(0)"},
        {},
        ("S(0)", "R"),
        (OperatorLayouts("mm", ("S(0)",), ("P",)),),
        {},
        5.0,
        1.0,
        4.0,
        1e6,
        math.inf,
        9.0,
        "elimination",
    )
    made = replace(plan(2), layouts=layouts, way="sharded")
    assert made.step_ms == made.ways_ms["sharded"] == 5.0 and layouts.divides and layouts.divided_parameters == 1
    write_plan(made, tmp_path)
    assert read_training_plan(tmp_path)[0] == made
    place = tmp_path / PLAN
    data = json.loads(place.read_text())
    place.write_text(json.dumps({**data, "layouts": {**data["layouts"], **changes}}))
    with pytest.raises(BadPlan, match=told):
        read_training_plan(tmp_path)
    place.write_text(json.dumps({**data, "layouts": None}))
    with pytest.raises(BadPlan, match="it chooses 'sharded', and has no such plan"):
        read_training_plan(tmp_path)


def test_a_plan_without_pipelines_has_no_table(tmp_path: Path) -> None:
    """What fits only with divided weights."""
    whole = FullyShardedPlan(7.0, 2.0, 1e6)
    made = replace(plan(2), chosen=None, runner_ups=(), data_parallel_ms=None, way="fully sharded", fully_sharded=whole)
    write_plan(made, tmp_path)
    assert not (tmp_path / TABLE).exists() and read_training_plan(tmp_path) == (made, None)
    assert made.step_ms == 7.0 and made.pipelined is None and "fully sharded, 2 devices" in parallel_page(made)
    assert plan_table(made).row_count == 1


def test_a_plan_of_a_later_format_is_refused_although_it_has_other_fields(tmp_path: Path) -> None:
    write_plan(plan(2), tmp_path)
    (tmp_path / PLAN).write_text('{"format": 5, "new": 1}')
    with pytest.raises(NewerTrainingPlan, match="has format 5; this version reads up to 4"):
        read_training_plan(tmp_path)


def test_a_plan_for_more_devices_than_it_names_or_a_batch_that_does_not_divide_is_damaged(tmp_path: Path) -> None:
    made = plan(4)
    write_plan(made, tmp_path)
    data = json.loads((tmp_path / PLAN).read_text())
    for path, value in (("replicas", 8), ("micro_batches", 3), ("begins", [0, 9]), ("divided", [9])):
        changed = {**data, "chosen": {**data["chosen"], path: value}}
        (tmp_path / PLAN).write_text(json.dumps(changed))
        with pytest.raises(BadPlan, match="damaged"):
            read_training_plan(tmp_path)
    with pytest.raises(MissingFile):
        read_training_plan(tmp_path / "nowhere")
