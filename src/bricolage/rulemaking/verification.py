"""Rules verified: both sides of every example, proved equal in exact arithmetic.

An example is rewritten without folding, so that the right side is written in operators on weights as the rule wrote it. Weights
are any numbers, symbolic dimensions a few sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir

from bricolage.errors import FalseRule
from bricolage.graph.inference import infer
from bricolage.graph.prepare import bind, symbolic_dimensions
from bricolage.rewrite.engine.apply import apply_once
from bricolage.rewrite.rule import Example, Rule
from bricolage.rulemaking.proof import Disproved, Proved, Verdict, prove

_SIZE = 2
"""Of symbolic dimensions: the smaller, the fewer numbers are compared."""

Status = Literal["proved", "in part", "not proved"]


@dataclass(frozen=True)
class Verified:
    """What the prover says of a rule's examples, in their order. None of them is false."""

    rule: str
    family: str
    verdicts: tuple[Verdict, ...]

    @property
    def proofs(self) -> list[Proved]:
        """Of the examples that are proved."""
        return [verdict for verdict in self.verdicts if isinstance(verdict, Proved)]

    @property
    def status(self) -> Status:
        """Whether all, some or none of the examples are proved; the others agree in float64."""
        proved = len(self.proofs)
        return "proved" if proved == len(self.verdicts) else "in part" if proved else "not proved"

    @property
    def error_bound(self) -> float:
        """The largest chance of error of a proof; 1 where nothing is proved."""
        return max((proof.error_bound for proof in self.proofs), default=1.0)


def verify(rule: Rule, *, seed: int = 0) -> Verified:
    """Proves a rule on its examples.

    Raises:
        FalseRule: on an example both sides differ; the error has the numbers that show it. Or the rule does not apply to an
            example of its own.
    """
    verdicts = []
    for number, example in enumerate(rule.examples, 1):
        left, right = _bind_model(example), _bind_model(example)
        if apply_once(right, rule, fold=False) is None:
            raise FalseRule(rule=rule.name, number=number, why="it does not apply there")
        verdict = prove(left, right, free=free_weights(example), nonnegative=example.nonnegative, seed=seed)
        if isinstance(verdict, Disproved):
            raise FalseRule(rule=rule.name, number=number, why=_describe_disproof(verdict))
        verdicts.append(verdict)
    return Verified(rule.name, rule.family, tuple(verdicts))


def _bind_model(example: Example) -> ir.Model:
    model = example.model()
    bound = bind(model, dict.fromkeys(symbolic_dimensions(model), _SIZE))
    infer(bound)
    return bound


def free_weights(example: Example) -> set[str]:
    """The weights of an example of which only the shape is given."""
    return {name for name, value in example.weights.items() if isinstance(value, tuple)}


def _describe_disproof(found: Disproved) -> str:
    given = ", ".join(f"{name} = {array.tolist()}" for name, array in found.inputs.items())
    index = f"[{', '.join(map(str, found.index))}]"
    return (
        f"{found.output}{index} is {found.left:.6g} and becomes {found.right:.6g} at {given}" if given else found.reason
    )
