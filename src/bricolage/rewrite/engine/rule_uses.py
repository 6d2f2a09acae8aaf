"""What each of some rules does to a model: where it applies, and where it nearly does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from bricolage.graph.prepare import simplify
from bricolage.rewrite.engine.apply import Application, FailedMatch, failed_matches, rewrite
from bricolage.rewrite.rule import Rule


@dataclass(frozen=True)
class RuleUse:
    """What a rule does to a model: where it applies, and where it finds its whole pattern in the result and is refused."""

    rule: str
    family: str
    applied: tuple[Application, ...]
    refused: tuple[FailedMatch, ...]


def find_rule_uses(model: ir.Model, rules: Sequence[Rule]) -> list[RuleUse]:
    """The rules that apply to a model or nearly do, in their order; the model is simplified, and rewritten by them, in place."""
    simplify(model)
    applications = rewrite(model, rules)
    simplify(model)
    rule_uses = []
    for rule in rules:
        applied = tuple(application for application in applications if application.rule == rule.name)
        refused = tuple(refusal for refusal in failed_matches(model, rule) if refusal.near)
        if applied or refused:
            rule_uses.append(RuleUse(rule.name, rule.family, applied, refused))
    return rule_uses
