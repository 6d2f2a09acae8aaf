"""Every operator of the vocabulary means what its ONNX form means, over the reals; residues follow the same definitions."""

from __future__ import annotations

import numpy as np
import pytest

from bricolage.equations.evaluate_term import concrete, evaluate_term, instances
from bricolage.equations.number_domains import P, Reals, Residues
from bricolage.equations.term import Equation, Term
from bricolage.equations.vocabulary import OPERATORS, TermOperator
from bricolage.rewrite.onnx_ops import ONNX_OPERATORS
from bricolage.rewrite.rule_from_equation import EquationRule
from bricolage.verify.reference import evaluate as evaluate_onnx


def alone(operator: TermOperator) -> Term:
    return (operator.name, *(f"x{i}" for i in range(len(operator.inputs))))


def test_every_operator_has_a_form() -> None:
    assert set(ONNX_OPERATORS) == {operator.name for operator in OPERATORS}


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)
def test_meaning_in_onnx(operator: TermOperator) -> None:
    term = alone(operator)
    rule = EquationRule("one", Equation((term,), (term,)))
    generator = np.random.default_rng(0)
    for example, shapes in zip(rule.examples, instances(rule.stated), strict=False):
        drawn = {name: np.asarray(generator.standard_normal(concrete(shape))) for name, shape in shapes.items()}
        model = example.model()
        found = evaluate_onnx(model, {name: array.astype(np.float32) for name, array in drawn.items()})
        rounded = {name: array.astype(np.float32).astype(np.float64) for name, array in drawn.items()}
        wanted = evaluate_term(term, rounded, shapes, Reals())
        (output,) = model.graph.outputs
        np.testing.assert_allclose(np.asarray(found[output.name or ""]), wanted, rtol=1e-9, atol=1e-9)


LINEAR = [o for o in OPERATORS if not o.name.startswith(("relu", "tanh", "sigmoid", "mean", "average"))]


@pytest.mark.parametrize("operator", LINEAR, ids=lambda operator: operator.name)
def test_residues_agree_with_whole_numbers(operator: TermOperator) -> None:
    """On small whole numbers nothing wraps around, so the field and the reals give the same."""
    term = alone(operator)
    generator = np.random.default_rng(1)
    for shapes in instances(Equation((term,), (term,))):
        drawn = {n: np.asarray(generator.integers(-50, 50, (2, 3, *concrete(shape)))) for n, shape in shapes.items()}
        exact = evaluate_term(term, drawn, shapes, Residues())
        real = evaluate_term(term, {n: array.astype(np.float64) for n, array in drawn.items()}, shapes, Reals())
        assert (exact == real).all()


def test_residues_are_a_field() -> None:
    xp, generator = Residues(), np.random.default_rng(2)
    a, b, c = (xp.draw(generator, 3, (64,)) for _ in range(3))
    assert (xp.multiply(a, xp.add(b, c)) == xp.add(xp.multiply(a, b), xp.multiply(a, c))).all()
    assert (xp.multiply(xp.divide(a, 9), np.full_like(a, 9)) == a).all()
    wide = xp.draw(generator, 3, (5, 64))
    exact = [[sum(int(x) * int(y) for x, y in zip(row, w, strict=True)) % P for w in a] for row in wide[0]]
    assert (xp.matmul(wide[0], a.T) % P == np.asarray(exact)).all()


@pytest.mark.parametrize("name", ["relu", "sigmoid", "tanh"])
def test_functions_grow_and_keep_their_laws(name: str) -> None:
    xp = Residues()
    points = np.sort(np.random.default_rng(3).integers(-P // 2 + 1, P // 2, 4096))
    made = xp.function(name, points)
    assert (np.diff(made) >= 0).all()
    assert np.abs(made).max() <= P // 2
    if name == "tanh":
        assert (xp.function(name, -points) == -made).all() and xp.function(name, np.zeros(1, np.int64))[0] == 0
        assert (xp.function("relu", made) == xp.function(name, xp.function("relu", points))).all()
    if name == "sigmoid":
        assert (xp.function("relu", made) == made).all() and (made > 0).all()
    if name != "relu":  # no linear function: sums are not kept
        a, b = points[::2], points[1::2]
        assert (xp.function(name, xp.add(a, b)) != xp.add(xp.function(name, a), xp.function(name, b))).mean() > 0.9
