"""Kernels beside those that DNNFusion published."""

from __future__ import annotations

import json

import pytest

from benchmarks.fusion import fusion_rate
from benchmarks.workloads import workloads


def test_each_published_network_is_a_workload() -> None:
    assert set(fusion_rate.PUBLISHED) <= set(workloads())
    assert all(one.dnnfusion < one.layers for one in fusion_rate.PUBLISHED.values())


def test_unknown_networks_are_refused() -> None:
    with pytest.raises(SystemExit):
        fusion_rate.main(["--network", "tinybert,nowhere"])


@pytest.mark.slow
def test_a_small_encoder(capsys: pytest.CaptureFixture[str]) -> None:
    assert fusion_rate.main(["--network", "tinybert", "--without-inductor", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["native"] < row["paper"] == 74 and row["native"] < min(row["peers"].values())
    assert row["rate"] == pytest.approx(row["operators"] / row["native"])
