"""Placements that run: on processes of this machine that are unlike, compared with what was predicted."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from bricolage.base.codec import decode
from bricolage.base.options import available_cores
from bricolage.device.description import DeviceTables
from bricolage.errors import BadDevices, BadOption, NotTraceable

pytest.importorskip("torch")

from bricolage.api.train_place import open_placement, place_operators
from bricolage.report.placements import placement_parts
from bricolage.search.devices.placement_methods import MethodPlacement
from bricolage.train.place.placed_step import described_devices, step_case
from bricolage.train.place.placement_runs import run_placements
from bricolage.train.run.pace import Pace, PacedDevice, paced_machine
from bricolage.train.step.spec import read_spec

DEMO = Path(__file__).parents[3] / "examples" / "demo_plan"
CODE = Path(__file__).parents[1] / "run" / "code.py"
LINK = {"between": ["fast", "slow"], "gbytes": 0.5, "latency_us": 100.0}


def devices(**slow: object) -> list[dict[str, object]]:
    return [
        {"name": "slow", "kind": "cpu", "cores": 1, "scale": 2.0, **slow},
        {"name": "fast", "kind": "accelerator", "cores": 1},
    ]


def step_file(folder: Path, **keys: object) -> Path:
    document = {
        "module": f"{DEMO}/network.py:transformer",
        "arguments": {"layers": 1, "width": 16},
        "batch": f"{DEMO}/network.py:batch",
        "batch_size": 4,
        "optimiser": {"kind": "adamw"},
        "devices": {"device": devices(), "link": [LINK]},
        **keys,
    }
    path = folder / "step.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def test_placements_by_several_methods_run_and_give_the_gradients_of_one_process(tmp_path: Path) -> None:
    if available_cores() < 2:
        pytest.skip("a second core")
    # All operators of the slow device cannot hold all, so that something has to move.
    request = open_placement(step_file(tmp_path), ("heft", "m-topo", "dp", "ip"))
    comparison = place_operators(request, seconds=0.1, limit_s=1.0, run=True)
    assert {name for run in comparison.runs for name in run.methods} == {
        *("heft", "m-topo", "dp", "ip"),
        *("all on slow", "all on fast"),
    }
    for run in comparison.runs:
        assert not run.refused and run.check is not None and run.check.accepted
        assert run.check.error <= run.check.limit and run.check.own_error < 1e-5
        assert run.measured is not None and run.predicted_ms and run.error is not None
        assert (run.moves > 0) == (run.moved_bytes > 0)
        link_ms = 0.1 + run.moved_bytes / max(run.moves, 1) / 0.5e6
        assert not run.moves or run.measured.median_ms > link_ms, "no message is used before the link's time has passed"
    divided = next(run for run in comparison.runs if "m-topo" in run.methods)
    assert len(divided.devices) == 2 and divided.moves, "m-topo balances memory between both"
    whole = next(run for run in comparison.runs if "all on fast" in run.methods)
    assert whole.devices == ("fast",) and not whole.moves
    assert "Steps on processes of this machine" in str(
        [getattr(part, "title", "") for part in placement_parts(comparison)]
    )


def test_operators_that_write_in_place_run_on_several_devices_and_random_ones_are_refused(tmp_path: Path) -> None:
    if available_cores() < 2:
        pytest.skip("a second core")
    keys = {"module": f"{CODE}:awkward", "batch": f"{CODE}:batch"}
    spec = read_spec(step_file(tmp_path, **keys, arguments={}))
    step = step_case(spec, seconds=0.05, here=True)
    # As divided as colours allow.
    numbers = [colour if colour >= 0 else piece for piece, colour in enumerate(step.tasks.colours)]
    devices = tuple(step.case.names[number % 2] for number in numbers)
    placement = MethodPlacement("alternating", "sample", devices)
    runs = run_placements(spec, step, paced_machine(described_devices(spec)), [placement], seconds=0.05)
    assert runs[0].methods == ("alternating",) and runs[0].moves > 5 and not any(run.refused for run in runs)
    # A bias before a normalisation has no gradient but rounding: its error is that of the single process.
    checks = [run.check for run in runs if run.check is not None]
    assert len(checks) == len(runs) == 3 and all(check.accepted for check in checks)
    random = open_placement(step_file(tmp_path, **keys, arguments={"dropout": 0.5}), ("heft",))
    with pytest.raises(NotTraceable, match="draws random numbers"):
        place_operators(random, seconds=0.05, run=True)


def test_what_cannot_run_here_is_said(tmp_path: Path) -> None:
    def machine(*some: dict[str, object]) -> None:
        link = {**LINK, "between": [some[0]["name"], some[1]["name"]]}
        paced_machine(decode(DeviceTables, {"device": list(some), "link": [link]}).described())

    slow, fast = devices()
    with pytest.raises(BadDevices, match="faster than this machine"):
        machine(slow, {**fast, "scale": 0.5})
    with pytest.raises(BadDevices, match="is a gpu"):
        machine(slow, {**fast, "kind": "gpu"})
    with pytest.raises(BadDevices, match="has peaks"):
        machine(slow, {**fast, "gflops": 100.0, "gbytes": 10.0})
    with pytest.raises(BadDevices, match="cores together"):
        machine({**slow, "cores": available_cores()}, fast)
    instance = Path(__file__).parents[2] / "data" / "device-placement" / "bert24_inference.json"
    with pytest.raises(BadOption, match="times and no operators to run"):
        place_operators(open_placement(instance, ("heft",)), run=True)


def test_a_slow_device_really_takes_longer() -> None:
    pace = Pace(PacedDevice("slow", 1, scale=3.0, operators={"aten::mm": 5.0}))
    begun = time.perf_counter()
    pace.owe("aten::add", 0.01)
    pace.owe("aten::mm", 0.01)
    pace.pay()
    assert time.perf_counter() - begun >= 0.06, "twice and four times as long again"
