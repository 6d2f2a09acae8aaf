"""Plans made from a spec: here, and for described devices; and what a spec cannot have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from bricolage.base.codec import decode
from bricolage.device.description import DeviceTables
from bricolage.errors import BadTrainingSpec, NoPipelinePlan
from bricolage.train.pipeline.search import best_plans
from bricolage.train.run.document import TrainingPlan, read_training_plan, write_plan
from bricolage.train.run.planning import plan_step
from bricolage.train.step.spec import Optimiser, StepSpec, read_spec

HERE = str(Path(__file__).parent)
NODE = {"name": "node", "kind": "cpu", "scale": 2.0, "memory_gb": 1.0}
LINK = {"between": ["node", "node"], "gbytes": 0.1, "latency_us": 50.0}


def planned(devices: dict[str, Any], module: str = "plain") -> TrainingPlan:
    tables = decode(DeviceTables, devices)
    spec = StepSpec(f"code.py:{module}", "code.py:batch", batch_size=8, optimiser=Optimiser("adam"), folder=HERE)
    return plan_step(replace(spec, devices=tables), seconds=0.05)


@pytest.mark.slow
def test_described_devices_take_as_long_as_they_say_and_hold_what_they_hold(tmp_path: Path) -> None:
    made = planned({"count": 4, "device": [NODE], "link": [LINK]})
    assert made.devices.count == 4 and made.devices.names == ("node.0", "node.1", "node.2", "node.3")
    assert [one.name for one in made.layers] == ["", "layers.0", "layers.1", "layers.2", "layers.3"]
    assert made.ring is None and made.devices.cores == 0
    assert made.bound_ms <= made.step_ms == min(made.ways_ms.values())
    assert made.layouts is None or made.layouts.ms >= made.step_ms
    assert made.chosen is not None and made.chosen.step_ms <= min(one.step_ms for one in made.runner_ups)
    assert all(one.sent_bytes == 8 * 16 * 4 for one in made.layers[1:-1]), "a sample's tokens and their width, float32"
    weights = sum(one.gradient_bytes for one in made.layers)
    assert 0.9 < weights / (4 * 9856) < 1.1, "four bytes for each weight"
    assert {one.change for one in made.changes} >= {"links of ten times the bandwidth", "twice the devices"}
    write_plan(made, tmp_path)
    assert read_training_plan(tmp_path)[0] == made
    with pytest.raises(NoPipelinePlan, match="4 devices of 1e-05 GB"):
        best_plans(replace(made.problem, memory_bytes=1e4))


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ("here = 2\ncount = 3", "links and counts are of described devices"),
        ("here = 0", "is not between 1 and 256"),
        ("", "devices are either"),
        ("here = 2\nmegabits = 400", "unknown field 'megabits'"),
        ("[[devices.device]]\nname = 'a'\nkind = 'cpu'\nmemory_mib = 4", "unknown field 'memory_mib'"),
        (
            "count = 2\n[[devices.device]]\nname = 'a'\nkind = 'cpu'\n[[devices.link]]\nbetween = ['a', 'b']\ngbytes = 1.0",
            "a link ends at 'b'",
        ),
    ],
)
def test_a_spec_whose_devices_cannot_be(tmp_path: Path, table: str, told: str) -> None:
    place = tmp_path / "step.toml"
    place.write_text(f"module = 'a:b'\nbatch = 'a:b'\n[devices]\n{table}\n")
    with pytest.raises(BadTrainingSpec, match=told):
        read_spec(place)


def test_devices_without_a_link_and_steps_without_devices() -> None:
    with pytest.raises(BadTrainingSpec, match=r"'node.0' and 'node.1' have no link"):
        planned({"count": 2, "device": [NODE]})
    with pytest.raises(BadTrainingSpec, match="it names no devices"):
        plan_step(StepSpec("code.py:plain", "code.py:batch", folder=HERE))
