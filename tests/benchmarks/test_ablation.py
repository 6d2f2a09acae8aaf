"""The ablation, whole, on a small network with two backends."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

from torch import nn  # noqa: E402

from benchmarks import ablation  # noqa: E402
from benchmarks.workloads.inputs import normal  # noqa: E402
from benchmarks.workloads.registry import Workload  # noqa: E402


def small() -> nn.Module:
    """Two convolutions and what stands around them: as many ways to cut it as a test needs."""
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 8 * 8, 10))
    return nn.Sequential(*layers).eval()


SMALL = Workload(
    "small",
    "demo",
    small,
    lambda seed: {"x": normal((1, 3, 12, 12), seed)},
    ("x",),
    ("y",),
    2e-6 * (8 * 27 * 100 + 8 * 72 * 64 + 5120),
)


@pytest.mark.slow
def test_every_search_is_told_with_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRICOLAGE_CACHE", str(tmp_path))
    monkeypatch.setenv("BRICOLAGE_WORKLOADS", str(tmp_path / "workloads"))
    monkeypatch.setattr(ablation, "workloads", lambda: {"small": SMALL})
    monkeypatch.setattr(ablation, "_TRANSFERS_S", 2.0)
    monkeypatch.setattr(ablation, "_REFINING_S", 1.0)
    options = ablation.Options(budget_s=3.0, backends=("native", "onnxruntime"))
    result = ablation.run("small", 2, options, genetic_s=0.5)
    assert result.batch == 2 and result.best_single_ms > 0
    rows = {row.variant: row for row in result.rows}
    assert {"priority", "per operator", "collage op", "exact", "two-level"} <= set(rows)
    for row in result.rows:
        summed = row.variant == "exact" or row.variant.startswith("+")  # by what the bound is of
        if summed and row.predicted_ms is not None and row.bound_ms is not None:
            assert row.predicted_ms >= row.bound_ms * (1 - 1e-9), row
        assert row.ms is not None or row.note, row
    assert rows["exact"].regions >= 1
    if result.mix is not None:
        assert result.mix.ms > 0 and len(result.mix.backends) > 1
    text = ablation.table(result)
    assert all(name in text for name in rows) and "nan" not in text
    assert "geometric mean" in ablation.summary([result])
