"""Chances by several kinds of evidence."""

from __future__ import annotations

import pytest

from bricolage.driver.tries import pool_chances


def test_what_is_unknown_says_nothing() -> None:
    assert pool_chances() is None and pool_chances(None, None) is None
    assert pool_chances(0.3, None) == pytest.approx(0.3)
    assert pool_chances(0.3, 0.5) == pytest.approx(0.3), "a half is as good as unknown"


def test_odds_multiply() -> None:
    assert pool_chances(0.2, 0.2) == pytest.approx(1 / 17)
    assert pool_chances(0.03, 0.4) == pytest.approx(0.0202, abs=1e-3), "a wide interval does not outweigh a record"
    assert pool_chances(0.03, 0.95) == pytest.approx(0.37, abs=0.01), "a narrow one does"


def test_no_evidence_is_certain() -> None:
    no, yes = pool_chances(0.0), pool_chances(1.0)
    assert no is not None and 0.0 < no < 0.05
    assert yes is not None and 0.95 < yes < 1.0
    assert pool_chances(0.0, 1.0) == pytest.approx(0.5)
