"""The benchmark of replicas on more workers than cores."""

from __future__ import annotations

import json

import pytest

from tests.needed import needs

pytest.importorskip("torch")

from benchmarks.training import replicas_at_scale

needs("sklearn")


@pytest.mark.slow
def test_compression_among_four(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--accordion", "--workers", "4", "--epochs", "1", "--seeds", "2", "--lr", "0.05", "--setting", "slow"]
    replicas_at_scale.main([*words, "--network", "mlp", "--json"])
    rows = json.loads(capsys.readouterr().out)["results"]
    sent = {row["method"]: row["sent_bytes"] for row in rows}
    assert len(rows) == 4 and all(len(row["losses"]) == 2 and row["seconds"] > 0 for row in rows)
    weak, turns, strong = (sent[f"allreduce compression=powersgd{rest}"] for rest in ("", " accordion=1", " rank=1"))
    assert sent["allreduce"] > weak >= turns >= strong
