"""The benchmark of predicted training steps, on one network and few changes."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from benchmarks.training import training_prediction  # noqa: E402


def mlp() -> nn.Module:
    """As the benchmark's, and a tenth as wide."""
    return nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))


def mlp_batch(size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[size, 784], and one of 10 classes."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, 784, generator=generator), torch.randint(10, (size,), generator=generator)


@pytest.mark.slow
def test_predicted_and_measured_in_one_run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_prediction, "CODE", __name__)
    training_prediction.main(["--network", "mlp", "--change", "fused", "--seconds", "0.1", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert [row["change"] for row in found["results"]] == ["as it is", "fused"]
    assert found["changes"] == 1 and found["worst_error"] >= found["median_error"] >= 0
    assert found["worst_peak_error"] < 0.05
    assert all(row["low_ms"] <= row["measured_ms"] <= row["high_ms"] for row in found["results"])


def test_every_network_has_a_batch_and_parts_to_freeze() -> None:
    for network in training_prediction.BATCHES:
        assert len(training_prediction.changes(network)) >= 6
        assert network in training_prediction.FROZEN


def test_what_is_refused() -> None:
    with pytest.raises(SystemExit):
        training_prediction.main(["--network", "poem"])
