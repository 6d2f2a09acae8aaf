"""The models grow, every block is rewritten, and the added rules match nothing."""

from __future__ import annotations

import pytest

from benchmarks.rewrites.rewrite_scaling import _Copy, exponent, network, timing
from bricolage.rewrite.catalogue import written_rules
from bricolage.rewrite.engine.apply import apply_once
from bricolage.rewrite.rule import GraphRule


def test_every_block_is_rewritten() -> None:
    small, large = (timing(network(size), written_rules(), 1) for size in (30, 120))
    assert 30 <= small.operators < 70 and 120 <= large.operators < 160
    assert large.applications >= 3 * small.applications > 0


def test_added_rules_never_apply() -> None:
    model = network(30)
    for rule in written_rules():
        if not isinstance(rule, GraphRule):
            assert apply_once(model, _Copy(rule, 0)) is None


def test_exponent() -> None:
    assert exponent([(10, 3.0), (100, 30.0), (1000, 300.0)]) == pytest.approx(1.0)
    assert exponent([(10, 2.0), (1000, 2.0)]) == pytest.approx(0.0)
