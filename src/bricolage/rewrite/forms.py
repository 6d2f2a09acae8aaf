"""Forms of a graph: equal graphs among which placement and the race choose."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from bricolage.errors import EndlessRewriting, OpsetOutOfReach, UnsupportedOpset
from bricolage.graph.graph import Graph
from bricolage.graph.identity import Identities
from bricolage.graph.prepare import simplify
from bricolage.plan.plan import ORIGINAL
from bricolage.rewrite.apply import Application, counts, rewrite
from bricolage.rewrite.catalogue import chosen, rules
from bricolage.rewrite.proposal import Step
from bricolage.rewrite.recipe import Kitchen, Recipe
from bricolage.rewrite.rule import Mismatch
from bricolage.rewrite.search.cost import OperatorCost
from bricolage.rewrite.search.options import SearchOptions
from bricolage.rewrite.search.search import repeat, search

_LOG = logging.getLogger(__name__)

REWRITTEN = "rewritten"
SEARCHED = "searched"
TAILORED = "tailored"


@dataclass(frozen=True)
class Form:
    """One of the equal graphs of a model: the original, or what rewriting made of it."""

    name: str
    graph: Graph
    rules: dict[str, int] = field(default_factory=dict)
    """How often each rule was applied, by name."""
    steps: tuple[Step, ...] = ()
    """How to make a form that was searched again."""
    recipe: Recipe | None = None
    """How to make a form that was tailored again."""
    predicted_ms: float | None = None

    @property
    def key(self) -> str:
        """Identity of the graph: equal for forms that differ in names and large weights only."""
        return Identities(self.graph).key(self.graph.everything)


def rewritten(graph: Graph) -> tuple[Form, ...]:
    """The graph with every rule applied that is a gain; empty where none is. The same every time."""
    model = graph.model.clone()
    try:
        applications = tuple(rewrite(model, rules()))
    except EndlessRewriting as error:
        _LOG.warning("the graph is used as it is: %s", error)
        return ()
    return (_form(REWRITTEN, model, graph, applications),) if applications else ()


def searched(
    graph: Graph, cost: OperatorCost, options: SearchOptions, known: Sequence[Form], *, generated: bool = False
) -> tuple[Form, ...]:
    """The cheapest graphs that a search over all rules finds that lose no accuracy, cheapest first: those that are cheaper than all
    that are `known`. With `generated`, the rules that were found by enumeration take part."""
    lowest = min(sum(map(cost, form.graph.operators)) for form in known)
    try:
        result = search(graph.model, chosen(stable=True, generated=generated), cost, options)
    except EndlessRewriting as error:
        _LOG.warning("no search for better graphs: %s", error)
        return ()
    keys = {form.key for form in known}
    found: list[Form] = []
    for candidate in result.candidates:
        if candidate.cost >= lowest or len(candidate.steps) < len(candidate.applications):
            continue
        form = _form(
            f"{SEARCHED}-{len(found) + 1}",
            candidate.model,
            graph,
            candidate.applications,
            candidate.steps,
            candidate.cost,
        )
        if form.key not in keys:
            keys.add(form.key)
            found.append(form)
    return tuple(found)


def tailored(graph: Graph, recipe: Recipe) -> Form:
    """The form that a recipe makes of a graph.

    Raises:
        EndlessRewriting: rules undo each other.
        KeyError: the recipe names a rule that there is not.
        UnsupportedOpset, OpsetOutOfReach: the graph cannot be raised to the recipe's opset.
    """
    followed = Kitchen(graph.model, rules()).follow(recipe)
    form = _form(TAILORED, followed.model, graph, followed.applications)
    return replace(form, recipe=recipe)


def again(graph: Graph, name: str, steps: Sequence[Step], recipe: Recipe | None = None) -> Form | None:
    """The form of a graph that was called `name`, made again; None where the rules do not lead to it any more."""
    if name == ORIGINAL:
        return Form(ORIGINAL, graph)
    if recipe is not None:
        try:
            return tailored(graph, recipe)
        except (KeyError, EndlessRewriting, OpsetOutOfReach, UnsupportedOpset):
            return None
    if not steps:
        return next(iter(rewritten(graph)), None)
    try:
        model = repeat(graph.model, rules(), steps)
    except (Mismatch, KeyError):  # a rule is gone or does something else now
        return None
    return _form(name, model, graph, (), tuple(steps))


def _form(
    name: str,
    model: ir.Model,
    original: Graph,
    applications: Sequence[Application],
    steps: tuple[Step, ...] = (),
    predicted_ms: float | None = None,
) -> Form:
    model.graph.name = f"{original.model.graph.name} {name}"  # its regions' files must not be taken for the original's
    return Form(name, simplify(model), counts(applications), steps, predicted_ms=predicted_ms)
