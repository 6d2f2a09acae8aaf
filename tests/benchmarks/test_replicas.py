"""The benchmark of replicas in step, on one method."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from benchmarks import replicas


@pytest.mark.slow
def test_one_method(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "--method",
        "local",
        "--epochs",
        "1",
        "--seeds",
        "1",
        "--lr",
        "0.05",
        "--straggler",
        "1",
        "--network",
        "mlp",
    ]
    replicas.main([*words, "--json"])
    (row,) = json.loads(capsys.readouterr().out)["results"]
    assert row["method"] == "local" and row["accuracy"] == row["worst_lr"] and row["straggler_samples_s"] > 0


def test_what_is_refused() -> None:
    with pytest.raises(SystemExit):
        replicas.main(["--method", "magic"])
