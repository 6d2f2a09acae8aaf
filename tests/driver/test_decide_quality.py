from __future__ import annotations

import math

import pytest

from bricolage.driver.decide import assess


def test_formulas() -> None:
    quality = assess(10.0, predicted_ms=9.0, baselines_ms=[12.5, 20.0], everything_ms=[8.0, 11.0])
    assert quality.additive_error == pytest.approx(-0.1)
    assert quality.apparent_loss == pytest.approx(-0.2)
    assert quality.optimality_loss == pytest.approx(0.25)


def test_optimality_loss_counts_singles_and_the_plan_itself() -> None:
    assert assess(10.0, baselines_ms=[8.0]).optimality_loss == pytest.approx(0.25)
    assert assess(10.0, everything_ms=[12.0]).optimality_loss == 0.0


def test_nothing_to_compare_with() -> None:
    quality = assess(10.0, baselines_ms=[math.inf])
    assert (quality.additive_error, quality.apparent_loss, quality.optimality_loss) == (None, None, 0.0)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_times_must_be_positive(bad: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        assess(bad)
