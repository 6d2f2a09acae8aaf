"""The rewrite pipeline: which rules make a variant of a graph, so that a variant can be varied by one rule, and made again at
other sizes.

It runs in steps: the model is raised to an opset, if the configuration names one, whose operators more rules can use; all
canonicalising rules but those that are disabled; each cost-based rule that is enabled, at every operator of the graph but those
whose signature it leaves out; then the canonicalising rules again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from bricolage.frontends.clean import raise_opset
from bricolage.graph.graph import describe
from bricolage.graph.prepare import simplify
from bricolage.plan.rewrite_steps import EnabledRule, OperatorSignature, RewriteConfig
from bricolage.rewrite.engine.apply import Application, apply_everywhere, rewrite
from bricolage.rewrite.engine.fuel import Fuel
from bricolage.rewrite.rule import Rule


@dataclass(frozen=True)
class RewriteResult:
    """What a configuration made of a model."""

    model: ir.Model
    applications: tuple[Application, ...]
    signatures: dict[str, tuple[OperatorSignature, ...]]
    """By cost-based rule: those of the operators at which it was applied."""


class PipelineRunner:
    """Runs configurations on one model. What canonicalising rules alone make of it is kept, since most begin alike."""

    def __init__(
        self, model: ir.Model, rules: Sequence[Rule], store: Callable[[ir.Model], None] = lambda _: None
    ) -> None:
        """`model` is simplified (see `bricolage.graph.prepare`) and not changed. `store` may move the weights of what is kept out
        of memory."""
        self._model, self._rules, self._store = model, {rule.name: rule for rule in rules}, store
        self._begun: dict[tuple[int | None, frozenset[str]], tuple[ir.Model, tuple[Application, ...]]] = {}

    def run(self, config: RewriteConfig, fuel: Fuel | None = None) -> RewriteResult:
        """What a configuration makes of a copy of the model, with no more applications than there is `fuel` for; the model
        itself stays as it is.

        Raises:
            EndlessRewriting: rules undo each other.
            KeyError: the configuration enables a rule that there is not.
            UnsupportedOpset, OpsetOutOfReach: the model cannot be raised.
        """
        canonicalising = [rule for name, rule in self._rules.items() if name not in config.disabled]
        begun, first = self._canonicalise_model(config, canonicalising, fuel)
        model, applications = begun.clone(), list(first)
        signatures: dict[str, tuple[OperatorSignature, ...]] = {}
        for entry in config.enabled:
            entry_signatures: dict[OperatorSignature, None] = {}
            applications += self._apply(model, entry, entry_signatures, fuel)
            signatures[entry.rule] = tuple(entry_signatures)
        if any(signatures.values()):
            applications += rewrite(model, canonicalising, fuel=fuel)
            simplify(model)
        return RewriteResult(model, tuple(applications), signatures)

    def _canonicalise_model(
        self, config: RewriteConfig, rules: Sequence[Rule], fuel: Fuel | None
    ) -> tuple[ir.Model, tuple[Application, ...]]:
        key = config.opset, config.disabled
        if fuel is None and key in self._begun:
            return self._begun[key]
        model = self._model.clone()
        if config.opset is not None:
            raise_opset(model, config.opset)
            simplify(model)
        applications = tuple(rewrite(model, rules, fuel=fuel))
        simplify(model)
        if fuel is None:
            self._store(model)
            self._begun[key] = (model, applications)
        return model, applications

    def _apply(
        self, model: ir.Model, entry: EnabledRule, found: dict[OperatorSignature, None], fuel: Fuel | None
    ) -> list[Application]:
        applied = apply_everywhere(
            model,
            self._rules[entry.rule],
            lambda node: operator_signature(node) not in entry.not_at,
            lambda node: found.update({operator_signature(node): None}),
            fuel,
        )
        if applied:
            simplify(model)
        return applied


def cost_based_rules(rules: Sequence[Rule]) -> list[EnabledRule]:
    """What a configuration could enable."""
    return [EnabledRule(rule.name) for rule in rules if rule.cost_based]


def newer_opsets(model: ir.Model, rules: Sequence[Rule]) -> list[int]:
    """Opsets above the model's from which on more rules apply, the newest first."""
    model_opset = model.graph.opset_imports.get("", 0)
    return sorted({rule.since for rule in rules if rule.since > model_opset}, reverse=True)


def operator_signature(node: ir.Node) -> OperatorSignature:
    """Type, attributes and shapes of an operator as text."""
    attributes = sorted(f"{name}={attribute.value}" for name, attribute in node.attributes.items())
    shapes = ["-" if value is None else str(describe(value).shape) for value in (*node.inputs, *node.outputs)]
    return " ".join([node.op_type, *attributes, *shapes])
