"""The benchmark of exchanges: what it predicts of ghost zones is what plans of layers count, and what processes send."""

from __future__ import annotations

import json

import pytest

from benchmarks.training import exchanges
from bricolage.train.sparse.sparse_runs import predict_sent
from tests.needed import needs


@pytest.mark.parametrize("depth", [1, 2])
def test_ghost_zones_are_exchanges_before_several_layers(depth: int) -> None:
    """Nine blocks, each with eight neighbours: 8 messages of each where cells are packed, 9 where they lie in order."""
    stencil = exchanges.Stencil((3, 3), 5)
    plan = exchanges.plan_stencil(stencil, 2)
    packed, unpacked, ordered = exchanges.list_ways(depth, 2)
    zones = stencil.zones(depth)
    assert sum(map(len, zones.values())) == 9 * ((5 + 2 * depth) ** 2 - 25)
    planned = plan.exchanges(packed.ends)
    assert {way: set(cells.tolist()) for way, cells in planned[0].routes.items()} == zones
    count = 2 // depth
    size = 4 * count * sum(map(len, zones.values()))
    assert predict_sent(plan, packed, planned, 1) == (count * 9 * 8, size)
    assert predict_sent(plan, ordered, planned, 1) == (count * 9 * 9, size)
    assert predict_sent(plan, unpacked, planned, 1)[0] > count * 9 * 9


def test_two_processes_send_what_coordinates_say(capsys: pytest.CaptureFixture[str]) -> None:
    needs("torch")
    words = ["stencil", "--grid", "1x2", "--side", "8", "--depths", "1,2", "--steps", "3", "--repeats", "1", "--json"]
    assert exchanges.main(words) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["exchanges"] for row in rows] == [3, 3, 3, 2, 2, 2]
    assert all(row["error"] < 1e-6 for row in rows)
    assert [row["messages"] for row in rows if row["way"] == "packed"] == [6, 4]
    assert all((row["packed_bytes"] > 0) == (row["way"] == "packed") for row in rows)
    assert rows[3]["operations"] > rows[0]["operations"]


def test_radix_rows_have_the_expectation(capsys: pytest.CaptureFixture[str]) -> None:
    assert exchanges.main(["radix", "--methods", "alternate,blocks,residues,random", "--json"]) == 0
    rows = {row["rows_by"]: row["words"] for row in json.loads(capsys.readouterr().out)}
    assert rows["random (expected)"] == [13_413, 13_413]
    assert rows["alternate"] == [1_425, 960] and rows["residues"] == [15_360, 0]
    assert sum(rows["random"]) == pytest.approx(2 * 13_413, rel=0.03)
