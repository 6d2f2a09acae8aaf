"""What a rule is: an equation between two small graphs, with the conditions under which it holds."""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir

from bricolage.graph.inference import infer
from bricolage.rewrite.engine.matching import Match
from bricolage.rewrite.pattern import Op, Roots

Result = ir.Value | tuple[ir.Value | None, ...]
"""What takes the place of a root, or of several; None for one that stays."""


class MatchFailure(Exception):
    """A pattern was found, but the rule does not apply: a condition does not hold, or it is not profitable. The text says which."""


class Operators(Protocol):
    """What the right side of a rule is written with: `op.Mul(x, y)` is an operator, its result a value with type and
    shape. Rules compute no weights: they write operators on weights, and the engine that applies them folds these."""

    def __getattr__(self, op_type: str) -> Callable[..., ir.Value]:
        """An operator of the default domain with one output: inputs by position (None is an absent one), attributes by
        name (None leaves one out)."""

    def many(self, op_type: str, outputs: int, *inputs: ir.Value | None, **attributes: object) -> tuple[ir.Value, ...]:
        """An operator with several outputs."""

    def copy(self, node: ir.Node, *inputs: ir.Value | None, **attributes: object) -> ir.Value:
        """An operator like `node`, attributes included, on other inputs; attributes given here replace its own."""

    def set_insertion_point(self, before: ir.Node) -> None:
        """What is written from here on stands before this operator of the graph. A rule that replaces a part of any size keeps its
        order in this way; others need not say."""

    def integers(self, values: Sequence[int]) -> ir.Value:
        """A list of int64: a shape, axes, pads."""

    def number(self, value: float, like: ir.Value) -> ir.Value:
        """A scalar constant of the element type of `like`."""


@dataclass(frozen=True)
class Example:
    """A small model in ONNX's text syntax: its inputs with types, and its nodes.

    `weights` are initializers: a tuple is the shape of random floats, anything else the value (int64 or float32).
    `why` is, for a counterexample, (part of) the reason for which the rule refuses it. `nonnegative` names inputs and weights that
    are never negative where the equation holds, for its proof.
    """

    inputs: str
    body: str
    weights: Mapping[str, Any] = field(default_factory=dict)
    outputs: str = "y"
    opset: int = 18
    why: str = ""
    nonnegative: tuple[str, ...] = ()

    def but(
        self, why: str = "", body: str = "", *, inputs: str = "", outputs: str = "", opset: int = 0, **weights: object
    ) -> Example:
        """The same, but for what is given; weights are in the place of those of their names, or come in addition."""
        return replace(
            self,
            why=why,
            body=body or self.body,
            inputs=inputs or self.inputs,
            outputs=outputs or self.outputs,
            opset=opset or self.opset,
            weights={**self.weights, **weights},
        )

    def model(self) -> ir.Model:
        """The model, with types and shapes inferred. The same values every time."""
        graph = onnx.parser.parse_graph(f"g ({self.inputs}) => ({self.outputs}) {{ {self.body} }}")
        rng = np.random.default_rng(0)
        for name, value in self.weights.items():
            array = rng.uniform(0.5, 1.5, value).astype(np.float32) if isinstance(value, tuple) else np.asarray(value)
            if array.dtype == np.float64:
                array = array.astype(np.float32)
            graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        opsets = [onnx.helper.make_opsetid("", self.opset)]
        version = max(8, onnx.helper.find_min_ir_version_for(opsets))
        model: ir.Model = ir.from_proto(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=version))
        for index, node in enumerate(model.graph):
            node.name = node.name or f"{node.op_type}_{index}"
        infer(model)
        return model


class Rule(ABC):
    """One equation. The first line of the docstring states it, the rest its conditions; `examples` are models on which it
    applies, `counterexamples` such on which it must not, one for each condition at least.

    A canonicalising rule, the usual one, applies where its right side costs less by counting (see
    `bricolage.rewrite.analyses.profitability`), until it applies nowhere. An `enabling` one may also keep the cost, and says itself
    (in `check`) that it brings another rule nearer and cannot go on forever. A `cost_based` rule may win or lose: a search or a
    measurement decides, never the fixpoint.
    """

    family: ClassVar[str]
    since: ClassVar[int] = 13
    """First opset of the default domain that has the operators of the right side."""
    enabling: ClassVar[bool] = False
    cost_based: bool = False
    unstable: bool = False
    """Loses accuracy in float32 by measurement: decisions leave it out."""
    examples: ClassVar[Sequence[Example]] = ()
    counterexamples: ClassVar[Sequence[Example]] = ()

    @property
    def name(self) -> str:
        """`ComposeTransposes` is called compose-transposes."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", type(self).__name__).lower()

    @property
    def equation(self) -> str:
        """The first line of the docstring."""
        return (inspect.getdoc(type(self)) or "").partition("\n")[0].rstrip(".")

    @property
    def conditions(self) -> str:
        """The side conditions in one paragraph; empty where there are none."""
        return " ".join((inspect.getdoc(type(self)) or "").partition("\n")[2].split())

    @abstractmethod
    def patterns(self) -> Sequence[Roots]:
        """Left sides, tried in order: an operator each, or a tuple of operators that share variables."""

    def check(self, match: Match) -> None:  # noqa: B027 - a rule without conditions has nothing to check
        """Looks at what the pattern cannot say: shapes, types, attributes, values.

        Raises:
            MatchFailure: a condition does not hold.
        """

    @abstractmethod
    def rewrite(self, op: Operators, match: Match) -> Result:
        """The values that take the place of the roots, in their order; None for a root that stays, since the rule only needs it
        to be there. A root with several outputs that is the only one gives as many values as it has outputs.

        Raises:
            MatchFailure: the right side cannot be written for this match.
        """


Replacement = Callable[[Operators], Mapping[ir.Value, ir.Value]]
"""Writes the right side of a `GraphRule`: values of the graph with what replaces them. The rule sees to it that no cycle comes
about. Raises MatchFailure."""


class GraphRule(Rule):
    """A whole-graph rule: one that no pattern can state, since it speaks of any operators, or of subgraphs of any size. It goes
    over the graph itself; `patterns` is empty and `rewrite` never called."""

    runs_last: ClassVar[bool] = False
    """Whether it waits until no other rule applies, since what it does would hide from others what they look for."""

    def patterns(self) -> Sequence[Op]:
        """None: the rule finds its sites itself."""
        return ()

    @abstractmethod
    def find_sites(self, graph: ir.Graph) -> Iterator[tuple[ir.Node, Replacement]]:
        """Where the rule may apply: the first operator of each site, with what applies it there, in the graph's order. It comes to
        an end although the graph changes between two steps."""

    def rewrite(self, op: Operators, match: Match) -> Result:
        """Never called: `find_sites` gives what writes the right side."""
        raise NotImplementedError
