"""The benchmark of placements, on a made instance in the authors' format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.placement.device_placement import main
from benchmarks.placement.run_searches import judge_placement, place, together
from bricolage.errors import BadOption, BadPlacementInstance, MissingFile
from bricolage.search.devices.instance_files import by_hand, read_instance
from bricolage.search.devices.solve import SEARCHES


def instance(tmp_path: Path, **changes: object) -> Path:
    """A training step of a chain of four layers; layer 3 is the head, whose colour is 7."""
    nodes, edges = [], []
    for layer in range(4):
        for number, ms in ((layer, 1.0 + layer), (7 - layer, 2.0 + layer)):
            nodes.append(
                {
                    "id": number,
                    "name": f"layer {layer}",
                    "supportedOnFpga": 1,
                    "cpuLatency": 10 * ms,
                    "fpgaLatency": ms,
                    "isBackwardNode": number > 3,
                    "colorClass": layer + 4,
                    "size": 100.0,
                }
            )
    edges = [{"sourceId": one, "destId": one + 1, "cost": 0.25, "size": 1.0} for one in range(7)]
    document = {"maxSizePerFPGA": 400.0, "maxFPGAs": 2, "maxCPUs": 1, "nodes": nodes, "edges": edges, **changes}
    path = tmp_path / "made.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, object]:
    assert main([*map(str, arguments), "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_every_search_and_an_expert(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = instance(tmp_path)
    expert = tmp_path / "expert.json"
    parts = [{"load": -1, "nodes": [0, 1, 6, 7]}, {"load": -1, "nodes": [2, 3, 4, 5]}, {"load": -1, "nodes": []}]
    expert.write_text(json.dumps({"fpgas": parts, "cpus": [{"load": 0, "nodes": []}]}), encoding="utf-8")
    found = printed(capsys, path, "--search", ",".join(SEARCHES), "--expert", expert)
    # Two layers fit on an accelerator: 3 + 5 and 7 + 9 in a row, 3 + 9 and 5 + 7 otherwise, and what crosses between them.
    by_name = {one["method"]: one["ms"] for one in found["methods"]}  # type: ignore[attr-defined]
    assert found["max_load"] == found["bound"] == by_name["integer programme, any parts"] == 13.0 and found["k"] == 2
    assert by_name["DP over downsets"] == by_name["by hand"] == by_name["integer programme, convex parts"] == 16.5
    assert printed(capsys, path, "--k", 1)["max_load"] == 80.0


def test_the_other_forms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = instance(tmp_path)
    found = printed(capsys, path, "--form", "order")
    assert {one["method"] for one in found["methods"]} >= {"HEFT", "CPOP", "m-SCT", "OS-DPOS"}  # type: ignore[attr-defined]
    latency = printed(capsys, path, "--form", "latency")
    assert latency["bound"] <= latency["latency"]  # type: ignore[operator]
    assert main([str(path), "--form", "throughput"]) == 0 and "bound" in capsys.readouterr().out


def test_bad_files_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(MissingFile):
        read_instance(tmp_path / "nothing.json")
    edge = {"sourceId": 0, "destId": 1, "cost": 1.0}
    for change, reason in (
        ({"edges": [edge | {"destId": 99}]}, "no such node"),
        ({"edges": [edge, {**edge, "sourceId": 1, "destId": 0}]}, "circle"),
        ({"edges": [edge | {"cost": -1.0}]}, "cost"),
        ({"nodes": []}, "nodes"),
        ({"maxFPGAs": "two"}, "maxFPGAs"),
        ({"maxFPGAs": 0, "maxCPUs": 0}, "no device"),
    ):
        with pytest.raises(BadPlacementInstance, match=reason):
            read_instance(instance(tmp_path, **change))
    path = instance(tmp_path)
    path.write_text("[1, 2", encoding="utf-8")
    assert main([str(path)]) == 2 and "JSON" in capsys.readouterr().err
    problem = read_instance(instance(tmp_path))
    for parts, reason in (([[0, 1, 2, 3], [3]], "two devices"), ([[0]], "other nodes"), ([[0], [1], [2]], "more than")):
        data = {"fpgas": [{"nodes": part} for part in parts], "cpus": []}
        with pytest.raises(ValueError, match=reason):
            by_hand(problem, data)
    with pytest.raises(BadOption, match="magic"):
        place(problem, ["magic"])


def test_colours_stay_together(tmp_path: Path) -> None:
    problem = read_instance(instance(tmp_path))
    best = together(place(problem))
    assert best.proven and best.devices[0] == best.devices[7]
    apart = [0] * 7 + [1]
    assert judge_placement(problem, apart, "apart").max_load == float("inf")
