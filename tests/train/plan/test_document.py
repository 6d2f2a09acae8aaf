"""Plans as data: what is written is read again, and what does not fit is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bricolage.errors import BadPlan, MissingFile, NewerTrainingPlan
from bricolage.train.plan.document import PLAN, TABLE, read_plan, table_of, write_plan
from bricolage.train.plan.pipelines import simulated
from tests.train.parallel.made import plan


def test_a_plan_is_read_as_it_was_written_and_predicts_the_same(tmp_path: Path) -> None:
    made = plan(4)
    assert made.chosen.devices > 1 and made.begins(made.chosen)[0].startswith("layers.")
    write_plan(made, tmp_path)
    found, schedule = read_plan(tmp_path)
    assert found == made and schedule == table_of(made.chosen)
    assert not Path(json.loads((tmp_path / PLAN).read_text())["step"]["folder"]).is_absolute()
    times, curves = simulated(found.problem, found.chosen)
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
        read_plan(tmp_path)
    table.write_text("\n".join([rows[0].replace("0F0", "0X0"), *rows[1:]]))
    with pytest.raises(BadPlan, match="'0X0' is no pass"):
        read_plan(tmp_path)
    table.write_text("0F0,0B0\n")
    with pytest.raises(BadPlan, match="differ"):
        read_plan(tmp_path)


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("format", 0, "format is not between 1 and 2"),
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
        read_plan(tmp_path)


def test_a_plan_of_a_later_format_is_refused_although_it_has_other_fields(tmp_path: Path) -> None:
    write_plan(plan(2), tmp_path)
    (tmp_path / PLAN).write_text('{"format": 3, "new": 1}')
    with pytest.raises(NewerTrainingPlan, match="has format 3; this version reads up to 2"):
        read_plan(tmp_path)


def test_a_plan_for_more_devices_than_it_names_or_a_batch_that_does_not_divide_is_damaged(tmp_path: Path) -> None:
    made = plan(4)
    write_plan(made, tmp_path)
    data = json.loads((tmp_path / PLAN).read_text())
    for path, value in (("replicas", 8), ("micro_batches", 3), ("begins", [0, 9])):
        changed = {**data, "chosen": {**data["chosen"], path: value}}
        (tmp_path / PLAN).write_text(json.dumps(changed))
        with pytest.raises(BadPlan, match="damaged"):
            read_plan(tmp_path)
    with pytest.raises(MissingFile):
        read_plan(tmp_path / "nowhere")
