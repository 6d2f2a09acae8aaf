"""A training step in pieces, and on described devices."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bricolage.base.codec import decode
from bricolage.device.description import DeviceTables
from bricolage.errors import BadDevices, BadTrainingSpec

pytest.importorskip("torch")

from bricolage.search.devices.placement_methods import place_by_methods
from bricolage.train.place.placed_step import case_of_tasks, described_devices
from bricolage.train.place.step_tasks import StepTasks, tasks_of_step
from bricolage.train.predict.elsewhere import traced_step
from bricolage.train.step.spec import StepSpec, read_spec
from bricolage.work.training_step import StepGraph

DEMO = Path(__file__).parents[3] / "examples" / "demo_plan"


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> StepSpec:
    """A Transformer of one layer."""
    path = tmp_path_factory.mktemp("placed") / "step.json"
    document = {
        "module": f"{DEMO}/network.py:transformer",
        "arguments": {"layers": 1, "width": 16},
        "batch": f"{DEMO}/network.py:batch",
        "batch_size": 4,
        "optimiser": {"kind": "adamw"},
    }
    path.write_text(json.dumps(document), encoding="utf-8")
    return read_spec(path)


@pytest.fixture(scope="module")
def step(spec: StepSpec) -> StepGraph:
    return traced_step(spec)


@pytest.fixture(scope="module")
def tasks(step: StepGraph) -> StepTasks:
    return tasks_of_step(step)


def test_each_operator_is_in_one_piece_of_its_phase(step: StepGraph, tasks: StepTasks) -> None:
    assert sorted(operator for piece in tasks.operators for operator in piece) == list(range(len(step.phases)))
    assert all(len({step.phases[operator] for operator in piece}) == 1 for piece in tasks.operators)
    assert len({operator.name for operator in tasks.graph.operators}) == len(tasks.operators)
    assert sum(operator.flops for operator in tasks.graph.operators) == sum(
        operator.flops for operator in step.work.operators
    )


def test_weights_and_their_state_are_of_one_colour(step: StepGraph, tasks: StepTasks) -> None:
    piece_of = {operator: number for number, piece in enumerate(tasks.operators) for operator in piece}
    colours: dict[int, set[int]] = {}
    for tensor in step.work.tensors:
        storage = int(tensor.name[1:].partition(".")[0])
        if step.storages[storage].kind in ("weights", "optimiser state"):
            touching = [*tensor.consumers, *([tensor.producer] if tensor.producer >= 0 else [])]
            colours.setdefault(storage, set()).update(tasks.colours[piece_of[operator]] for operator in touching)
    weights = [number for number, storage in enumerate(step.storages) if storage.kind == "weights"]
    assert len(weights) > 10 and all(len(some) == 1 and -1 not in some for some in colours.values())
    assert set(weights) <= set(colours)
    # Each layer can have a device of its own: not all weights are joined.
    assert len({colour for some in colours.values() for colour in some}) >= 6
    updates = [name for name in (operator.name for operator in tasks.graph.operators) if " update " in name]
    assert len(weights) <= len(updates) <= len(weights) + 1, "a piece for each parameter; what follows the last one"


def test_what_is_kept_is_counted_once(step: StepGraph, tasks: StepTasks) -> None:
    kept = ("weights", "optimiser state", "gradients", "activations")
    touched = {int(tensor.name[1:].partition(".")[0]) for tensor in step.work.tensors}
    touched |= {number for number, storage in enumerate(step.storages) if storage.born >= 0}
    assert sum(tasks.kept_bytes) == sum(step.storages[one].bytes for one in touched if step.storages[one].kind in kept)


def tables(**changes: object) -> DeviceTables:
    """A host and two accelerators of four times its speed."""
    devices = [{"name": "host", "kind": "cpu", "memory_gb": 1.0}]
    devices += [{"name": f"gpu{number}", "kind": "gpu", "scale": 0.25, "memory_gb": 1.0} for number in range(2)]
    links = [
        {"between": pair, "gbytes": 10.0, "latency_us": 5.0}
        for pair in (["host", "gpu0"], ["host", "gpu1"], ["gpu0", "gpu1"])
    ]
    return decode(DeviceTables, {"device": devices, "link": links, **changes}, "it")


def test_described_devices_are_a_machine_around_a_host(tasks: StepTasks) -> None:
    described = tables().described()
    times = [{"host": (1.0,), "gpu0": (0.25,), "gpu1": (0.25,)} for _ in tasks.operators]
    case = case_of_tasks(tasks, times, described)
    assert case.around is not None and case.names == ("gpu0", "gpu1", "host")
    rows = {row.method: row for row in place_by_methods(case, ("heft", "m-sct", "dp", "ip"), limit_s=2.0)}
    assert all(not row.refused for row in rows.values())
    for row in rows.values():
        assert sum(row.memory.values()) == sum(tasks.kept_bytes)
        assert row.bound_ms <= (row.predicted_ms or 0.0)
    alone = len(tasks.operators) * 0.25
    assert (rows["ip"].predicted_ms or alone) < alone, "two accelerators are busy for less than one is for all"


def test_two_kinds_that_are_no_accelerators_are_placed_by_lists_alone(tasks: StepTasks) -> None:
    described = tables().described()
    times = [{"host": (1.0,), "gpu0": (0.25,), "gpu1": (0.5,)} for _ in tasks.operators]
    case = case_of_tasks(tasks, times, described)
    assert case.around is None
    rows = place_by_methods(case, ("heft", "dp"))
    assert not rows[0].refused and "alike accelerators" in rows[1].refused


def test_what_cannot_be_placed_is_said(spec: StepSpec, tasks: StepTasks) -> None:
    from dataclasses import replace

    with pytest.raises(BadTrainingSpec, match="described devices"):
        described_devices(spec)
    lacking = replace(spec, devices=tables(link=[{"between": ["host", "gpu0"], "gbytes": 1.0}]))
    with pytest.raises(BadTrainingSpec, match="'host' and 'gpu1' have no link"):
        described_devices(lacking)
    nowhere = [{} if number == 3 else {"host": (1.0,)} for number in range(len(tasks.operators))]
    with pytest.raises(BadDevices, match="none of them runs"):
        case_of_tasks(tasks, nowhere, tables().described())
