"""The benchmark of sweeps trained as one, on a few turns."""

from __future__ import annotations

import json

import pytest

from tests.needed import needs

pytest.importorskip("torch")

from benchmarks.training import fused_training

needs("sklearn")


@pytest.mark.slow
def test_all_ways_are_timed_in_one_run(capsys: pytest.CaptureFixture[str]) -> None:
    fused_training.main(["--models", "2", "--network", "mlp", "--rounds", "1", "--turn", "0.05", "--json"])
    (row,) = json.loads(capsys.readouterr().out)["results"]
    assert {"2 processes", "serial, 1 threads", "fused, 1 threads"} <= set(row["speeds"])
    assert row["deviation"] < 1e-2 and all(row[kind]["median"] > 0 for kind in ("serial", "fused", "processes"))


def test_what_is_refused() -> None:
    for words in (["--network", "poem"], ["--models", "0"]):
        with pytest.raises(SystemExit):
            fused_training.main(words)
