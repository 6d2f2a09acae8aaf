"""Making a rule file from nothing: the generator's equations, proved as rules on ONNX graphs."""

from __future__ import annotations

from pathlib import Path

from bricolage.base.progress import Progress
from bricolage.equations.term import Equation, is_directed
from bricolage.errors import FalseRule, NotWritable
from bricolage.rewrite import rulefile
from bricolage.rewrite.rule_from_equation import EquationRule
from bricolage.rulemaking.rulegen.generate import GenerationResult, generate_equations
from bricolage.rulemaking.verification import verify

_CHANCE = 1e-9


def is_proved(equation: Equation) -> bool:
    """Whether the prover proves the equation on an example at least, with hardly a chance of error, in every direction that it
    has, and refutes it on none."""
    rules = [
        EquationRule("candidate", direction) for direction in (equation, equation.turned) if is_directed(direction)
    ]
    try:
        return bool(rules) and all(any(proof.error_bound < _CHANCE for proof in verify(rule).proofs) for rule in rules)
    except FalseRule:
        return False


def generate_rules(max_operators: int = 4, seed: int = 0, progress: Progress | None = None) -> GenerationResult:
    """The rules of all grammars."""
    return generate_equations(max_operators=max_operators, seed=seed, proved=is_proved, progress=progress)


def write_generated(found: GenerationResult, path: Path, derived: Path | None) -> None:
    """Writes the rules to one file, and what follows from them to another if there is one.

    Raises:
        NotWritable
    """
    try:
        rulefile.write_rules(path, found.rules)
        if derived is not None:
            derived.write_text("".join(f"{equation}\n" for equation in found.derived), encoding="utf-8")
    except OSError as error:
        raise NotWritable(path=path, reason=error.strerror or str(error)) from error
