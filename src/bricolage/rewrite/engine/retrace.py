"""Making a variant of a graph again with less: up to one of its applications, or without some of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from bricolage.graph.prepare import simplify
from bricolage.plan.rewrite_steps import RewriteConfig, RewriteStep
from bricolage.rewrite.engine.apply import Application, rewrite
from bricolage.rewrite.engine.fuel import Fuel, Site, site_of
from bricolage.rewrite.engine.pipeline import PipelineRunner
from bricolage.rewrite.rule import Rule
from bricolage.rewrite.search.workspace import Workspace, repeat_without


@dataclass(frozen=True)
class Retraced:
    """A variant that was made again."""

    model: ir.Model
    """Simplified."""
    applications: tuple[Application, ...]
    exact: bool
    """Whether everything that was to be left out came up."""


class Retrace(ABC):
    """How a variant came about, application by application. The model that it began with is simplified, and is not changed."""

    @abstractmethod
    def made(self, limit: int | None = None, without: Collection[Site] = ()) -> Retraced:
        """The variant after its first `limit` applications (all where it is None), with none at the places `without`. Up to
        the first place that is left out it goes as it went; what comes behind may differ.

        Raises:
            EndlessRewriting: rules undo each other.
        """


class Fixpoint(Retrace):
    """Canonicalising rules until none is profitable."""

    def __init__(self, model: ir.Model, rules: Sequence[Rule]) -> None:
        """`rules` are tried in their order."""
        self._model, self._rules = model, rules

    def made(self, limit: int | None = None, without: Collection[Site] = ()) -> Retraced:
        """See `Retrace.made`."""
        fuel, model = Fuel(limit, without), self._model.clone()
        applications = rewrite(model, self._rules, fuel=fuel)
        simplify(model)
        return Retraced(model, tuple(applications), fuel.left_out == set(without))


class Configured(Retrace):
    """What a configuration of the pipeline does. Raising the opset is its first application, where it does that."""

    def __init__(self, model: ir.Model, rules: Sequence[Rule], config: RewriteConfig) -> None:
        """`rules` are all that the configuration may name."""
        self._model, self._rules, self._config = model, rules, config

    def made(self, limit: int | None = None, without: Collection[Site] = ()) -> Retraced:
        """See `Retrace.made`."""
        config, given = self._config, set(without)
        raising = config.opset is not None
        site: Site = (f"opset {config.opset}", ())
        first = [Application(1, site[0], "opset", (), (), site)] if raising and limit != 0 and site not in given else []
        if raising and not first:
            config = replace(config, opset=None)
        fuel = Fuel(None if limit is None else max(0, limit - len(first)), given)
        rewrite_result = PipelineRunner(self._model, self._rules).run(config, fuel)
        simplify(rewrite_result.model)
        behind = [
            replace(application, number=len(first) + n) for n, application in enumerate(rewrite_result.applications, 1)
        ]
        return Retraced(rewrite_result.model, (*first, *behind), fuel.left_out == given - {site})


class Recorded(Retrace):
    """Steps that a search has found."""

    def __init__(self, model: ir.Model, rules: Sequence[Rule], steps: Sequence[RewriteStep]) -> None:
        """`rules` are those that were searched with, `steps` all that were made."""
        self._model, self._rules, self._steps = model, rules, tuple(steps)

    def made(self, limit: int | None = None, without: Collection[Site] = ()) -> Retraced:
        """See `Retrace.made`. Of what comes behind, only what rests on a step that is left out falls with it."""
        steps, given = self._steps[:limit], set(without)
        out = {number for number, step in enumerate(steps) if site_of(step) in given}
        if out:
            workspace = repeat_without(self._model, self._rules, steps, out)
        else:
            workspace = Workspace(self._model.clone(), self._rules, lazy=False)
            workspace.repeat(steps)
        simplify(workspace.model)
        return Retraced(workspace.model, tuple(workspace.applications), {site_of(steps[n]) for n in out} == given)


class Finished(Retrace):
    """A variant of which nothing is known but the result: one application that cannot be divided."""

    def __init__(self, model: ir.Model, made: ir.Model, rules: Sequence[str]) -> None:
        """`rules` are the names of those that took part."""
        self._model, self._made, self._rules = model, made, ", ".join(rules)

    def made(self, limit: int | None = None, without: Collection[Site] = ()) -> Retraced:
        """See `Retrace.made`."""
        site: Site = (self._rules, ())
        if limit == 0 or site in without:
            return Retraced(self._model, (), True)
        return Retraced(self._made, (Application(1, self._rules, "", (), (), site),), not without)
