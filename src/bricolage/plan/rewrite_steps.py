"""What a plan says of a rewritten variant: the steps that made it, and the rules that were enabled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from bricolage.base.codec import Within
from bricolage.plan.field_types import Count


@dataclass(frozen=True)
class RewriteStep:
    """One application of a rewrite rule, in names of the graph: which of the rule's patterns, the values that it replaces, and
    the values of its variables. The same steps on the same graph give the same graph."""

    rule: str
    pattern: Count
    roots: tuple[str, ...]
    bound: tuple[tuple[str, str | None], ...]


OperatorSignature = str
"""Type, attributes and shapes of an operator. Layers that are alike have one signature."""


@dataclass(frozen=True)
class EnabledRule:
    """A cost-based rule, by name, applied wherever it can be, but not at operators of some signatures."""

    rule: str
    not_at: frozenset[OperatorSignature] = frozenset()

    def __str__(self) -> str:
        signatures = "one operator signature" if len(self.not_at) == 1 else f"{len(self.not_at)} operator signatures"
        return self.rule + (f" except at {signatures}" if self.not_at else "")


@dataclass(frozen=True)
class RewriteConfig:
    """What a rewrite pipeline does. The default is what `rewrite.engine.apply.rewrite` does. The same configuration on the
    same graph gives the same graph."""

    disabled: frozenset[str] = frozenset()
    """Names of canonicalising rules."""
    enabled: tuple[EnabledRule, ...] = ()
    """Cost-based rules, in the order in which they are applied."""
    opset: Annotated[int, Within(1, 10_000)] | None = None
    """To which the model is raised first."""

    def __str__(self) -> str:
        raised = [] if self.opset is None else [f"opset {self.opset}"]
        left_out = [f"without {name}" for name in sorted(self.disabled)]
        return ", ".join([*raised, "canonicalising rules", *left_out, *map(str, self.enabled)])
