"""Recipes: which rules make a form of a graph, so that a form can be varied by one rule, and made again at other sizes.

A recipe is followed in steps: the model is raised to an opset, if it names one, whose operators more rules can use; all gains
but those that it leaves out; each exploring rule that it names, at every operator of the graph but at the kinds of place that it
names; then the gains again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from bricolage.frontends import raise_opset
from bricolage.graph.graph import describe
from bricolage.graph.prepare import simplify
from bricolage.rewrite.apply import Application, apply_everywhere, rewrite
from bricolage.rewrite.rule import Rule

Place = str
"""What an operator is: its type, attributes and shapes. Layers that are alike are one kind of place."""


@dataclass(frozen=True)
class Exploration:
    """An exploring rule, applied wherever it can be, but not at some kinds of place."""

    rule: str
    not_at: frozenset[Place] = frozenset()

    def __str__(self) -> str:
        places = "one kind" if len(self.not_at) == 1 else f"{len(self.not_at)} kinds"
        return self.rule + (f" but at {places} of place" if self.not_at else "")


@dataclass(frozen=True)
class Recipe:
    """Gains that are left out, by name, and exploring rules in their order. The empty one is what `apply.rewrite` does."""

    without: frozenset[str] = frozenset()
    exploring: tuple[Exploration, ...] = ()
    opset: int | None = None
    """To which the model is raised first."""

    def __str__(self) -> str:
        raised = [] if self.opset is None else [f"opset {self.opset}"]
        left_out = [f"without {name}" for name in sorted(self.without)]
        return ", ".join([*raised, "all gains", *left_out, *map(str, self.exploring)])


@dataclass(frozen=True)
class Followed:
    """What a recipe made of a model."""

    model: ir.Model
    applications: tuple[Application, ...]
    places: dict[str, tuple[Place, ...]]
    """The kinds of place where each exploring rule was applied."""


class Kitchen:
    """Follows recipes for one model. What gains alone make of it is kept, since most recipes begin alike."""

    def __init__(
        self, model: ir.Model, rules: Sequence[Rule], store: Callable[[ir.Model], None] = lambda _: None
    ) -> None:
        """`model` is simplified (see `bricolage.graph.prepare`) and not changed. `store` may move the weights of what is kept out
        of memory."""
        self._model, self._rules, self._store = model, {rule.name: rule for rule in rules}, store
        self._begun: dict[tuple[int | None, frozenset[str]], tuple[ir.Model, tuple[Application, ...]]] = {}

    def follow(self, recipe: Recipe) -> Followed:
        """What a recipe makes of the model.

        Raises:
            EndlessRewriting: rules undo each other.
            UnsupportedOpset, OpsetOutOfReach: the model cannot be raised.
        """
        gains = [rule for name, rule in self._rules.items() if name not in recipe.without]
        begun, first = self._gains(recipe, gains)
        model, applications = begun.clone(), list(first)
        places: dict[str, tuple[Place, ...]] = {}
        for exploration in recipe.exploring:
            found: dict[Place, None] = {}
            applications += self._explore(model, exploration, found)
            places[exploration.rule] = tuple(found)
        if any(places.values()):
            applications += rewrite(model, gains)
            simplify(model)
        return Followed(model, tuple(applications), places)

    def _gains(self, recipe: Recipe, gains: Sequence[Rule]) -> tuple[ir.Model, tuple[Application, ...]]:
        key = recipe.opset, recipe.without
        if key not in self._begun:
            model = self._model.clone()
            if recipe.opset is not None:
                raise_opset(model, recipe.opset)
                simplify(model)
            applications = tuple(rewrite(model, gains))
            simplify(model)
            self._store(model)
            self._begun[key] = (model, applications)
        return self._begun[key]

    def _explore(self, model: ir.Model, exploration: Exploration, found: dict[Place, None]) -> list[Application]:
        applied = apply_everywhere(
            model,
            self._rules[exploration.rule],
            lambda node: place(node) not in exploration.not_at,
            lambda node: found.update({place(node): None}),
        )
        if applied:
            simplify(model)
        return applied


def explorations(rules: Sequence[Rule]) -> list[Exploration]:
    """What could be put into a recipe."""
    return [Exploration(rule.name) for rule in rules if rule.exploring]


def opsets(model: ir.Model, rules: Sequence[Rule]) -> list[int]:
    """Opsets above the model's from which on more rules apply, the newest first."""
    own = model.graph.opset_imports.get("", 0)
    return sorted({rule.since for rule in rules if rule.since > own}, reverse=True)


def place(node: ir.Node) -> Place:
    """The kind of place that an operator is."""
    attributes = sorted(f"{name}={attribute.value}" for name, attribute in node.attributes.items())
    shapes = ["-" if value is None else str(describe(value).shape) for value in (*node.inputs, *node.outputs)]
    return " ".join([node.op_type, *attributes, *shapes])
