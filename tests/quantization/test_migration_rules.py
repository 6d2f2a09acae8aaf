"""The equations that move outliers into weights: proved as those of the catalogue, and refused where they do not hold."""

from __future__ import annotations

import pytest

from bricolage.rewrite.engine.apply import apply_once, failed_matches
from bricolage.rewrite.rule import Rule
from bricolage.rewrite.rules.migration import MigrateScaleIntoProduct, ScaleBeforeRectifier
from bricolage.rulemaking.verification import verify

RULES: tuple[Rule, ...] = (MigrateScaleIntoProduct(), ScaleBeforeRectifier())


def test_proved_for_every_kind_of_product() -> None:
    assert verify(RULES[0]).status == "proved"
    verify(RULES[1])  # agrees in float64: the prover has no law of a maximum's factor


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_counterexamples(rule: Rule) -> None:
    for example in rule.counterexamples:
        (refusal,) = failed_matches(example.model(), rule)
        assert example.why in refusal.reason
        assert apply_once(example.model(), rule) is None
