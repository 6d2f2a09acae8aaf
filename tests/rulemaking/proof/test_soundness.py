"""Whatever the field calls equal is equal in float64: over thousands of expressions, not over equations thought up by hand.

Expressions are enumerated from the inputs up, as a generator of rules would do it; those that agree in exact arithmetic are
compared at real points, among them zeros, ties and negative numbers.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from scipy.special import erf

from bricolage.rulemaking.proof import transcendental
from bricolage.rulemaking.proof.arrays import FieldArrays
from bricolage.rulemaking.proof.degree import VARIABLE
from bricolage.rulemaking.proof.field import ZeroDivisor
from bricolage.rulemaking.proof.field_evaluation import REGISTRY
from bricolage.rulemaking.proof.lattice import RandomOrder
from bricolage.rulemaking.proof.random_point import RandomPoint
from bricolage.rulemaking.proof.tensor import FLOAT, FieldTensor

POINTS = {
    "x": np.asarray([0.7, -1.3, 2.0, 0.0, 1.5, -2.0, 0.25, -0.5]),
    "y": np.asarray([-0.4, 1.1, 2.0, 1.0, -1.5, 0.3, 0.5, -0.5]),
    "b": np.asarray([0.3, 1.7, 4.0, 0.0, 1.0, 2.5, 0.0625, 0.5]),
}
LITERALS = (0.0, 1.0, -1.0, 2.0, 0.5, 3.0, 4.0, 9.0, -3.0)
FEW = (-1.0, 0.0, 1.0)
UNARY: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "Abs": np.abs,
    "Ceil": np.ceil,
    "Cos": np.cos,
    "Cosh": np.cosh,
    "Erf": erf,
    "Exp": np.exp,
    "Floor": np.floor,
    "Log": np.log,
    "Neg": np.negative,
    "Reciprocal": np.reciprocal,
    "Relu": lambda v: np.maximum(v, 0),
    "Round": np.round,
    "Sigmoid": lambda v: 1 / (1 + np.exp(-v)),
    "Sign": np.sign,
    "Sin": np.sin,
    "Sinh": np.sinh,
    "Softplus": lambda v: np.logaddexp(v, 0),
    "Sqrt": np.sqrt,
    "Tan": np.tan,
    "Tanh": np.tanh,
    "Atan": np.arctan,
}
BINARY: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "Add": np.add,
    "Div": np.divide,
    "Max": np.maximum,
    "Min": np.minimum,
    "Mul": np.multiply,
    "Sub": np.subtract,
    "Pow": np.power,
    "Greater": lambda a, b: np.greater(a, b).astype(np.float64),
    "LessOrEqual": lambda a, b: np.less_equal(a, b).astype(np.float64),
    "Equal": lambda a, b: np.equal(a, b).astype(np.float64),
}
COMPARISONS = frozenset({"Greater", "LessOrEqual", "Equal"})


@dataclass(frozen=True)
class Expression:
    text: str
    operator: str
    parts: tuple[int, ...]
    real: np.ndarray
    """At the points; NaN where this or a part of it is not finite."""


def combined(operator: str, parts: tuple[int, ...], known: list[Expression]) -> Expression:
    arguments = [known[i].real for i in parts]
    with np.errstate(all="ignore"):
        real = (UNARY | BINARY)[operator](*arguments)
    broken = ~np.isfinite(real) | np.any([np.isnan(a) for a in arguments], axis=0)
    text = f"{operator}({', '.join(known[i].text for i in parts)})"
    return Expression(text, operator, parts, np.where(broken, np.nan, real))


def enumerated(
    seed: int, count: int, literals: Sequence[float] = LITERALS, operators: Collection[str] = (*UNARY, *BINARY)
) -> list[Expression]:
    """All expressions of one operator, functions of those of two inputs, and random ones of up to four operators."""
    r = random.Random(seed)
    known = [Expression(name, "", (), values) for name, values in POINTS.items()]
    known += [Expression(str(c), "", (), np.full(8, c)) for c in literals]
    unary, binary = ([name for name in table if name in operators] for table in (UNARY, BINARY))
    leaves = range(len(known))
    for name in unary:
        known += [combined(name, (i,), known[: len(leaves)]) for i in leaves]
    for name in binary:
        known += [combined(name, (i, j), known[: len(leaves)]) for i in leaves for j in leaves]
    small = len(known)
    of_inputs = [i for i, e in enumerate(known) if len(e.parts) == 2 and max(e.parts) < len(POINTS)]
    for name in unary:
        known += [combined(name, (i,), known) for i in of_inputs]
    for _ in range(count):
        # Mostly parts of one operator, so that different ways to the same value meet.
        pick = lambda: r.randrange(len(known) if r.random() < 0.2 else small if r.random() < 0.5 else len(leaves))  # noqa: E731
        if r.random() < 0.4:
            found = combined(r.choice(unary), (pick(),), known)
        else:
            found = combined(r.choice(binary), (pick(), pick()), known)
        if found.text.count("(") <= 4 and not np.isnan(found.real).all():
            known.append(found)
    return known


def fingerprints(known: list[Expression], seed: int, ordered: bool = False) -> list[bytes | None]:
    """What each expression is in exact arithmetic; None for those that divide by zero."""
    point = RandomPoint(seed, 1024, RandomOrder(FEW)) if ordered else RandomPoint(seed, 1)
    xp = FieldArrays(point)
    values: list[Any] = []
    for e in known:
        if not e.operator:
            values.append(xp.constant(np.asarray(float(e.text))) if e.text not in POINTS else drawn(point, e.text))
            continue
        arguments = [values[i] for i in e.parts]
        entry = REGISTRY.find("", e.operator, 20)
        assert entry is not None
        try:
            values.append(None if any(x is None for x in arguments) else entry.function(xp, *arguments).typed(FLOAT))
        except ZeroDivisor:
            values.append(None)
    return [None if v is None else v.values[::2].tobytes() for v in values]


def drawn(point: RandomPoint, name: str) -> FieldTensor:
    if name == "b":
        return FieldTensor(point, point.draw_square(name, ()), VARIABLE.power(2))
    return FieldTensor(point, point.draw(name, ()), VARIABLE)


def disagreements(known: list[Expression], exact: list[bytes | None]) -> tuple[list[str], int]:
    """Pairs that are equal in exact arithmetic and differ at a real point, and how many pairs were compared."""
    groups: dict[bytes, list[Expression]] = defaultdict(list)
    for e, mark in zip(known, exact, strict=True):
        if mark is not None and not np.isnan(e.real).all():
            groups[mark].append(e)
    wrong, pairs = [], 0
    for first, *others in groups.values():
        for other in others:
            pairs += first.text != other.text
            with np.errstate(invalid="ignore"):
                apart = np.abs(first.real - other.real) > 1e-9 * (1 + np.abs(first.real))
            if apart.any():  # where a side is NaN nothing is apart
                wrong.append(f"{first.text} and {other.text}: {first.real} and {other.real}")
    return wrong, pairs


@pytest.mark.parametrize("seed", range(2))
def test_what_is_equal_in_exact_arithmetic_is_equal_at_real_points(seed: int) -> None:
    known = enumerated(seed, 2000)
    wrong, pairs = disagreements(known, fingerprints(known, seed))
    assert not wrong, "\n".join(wrong[:20])
    assert pairs > 500


def test_what_is_equal_in_every_order_is_equal_at_real_points() -> None:
    chosen = ("Add", "Greater", "Max", "Min", "Mul", "Neg", "Relu", "Sub")
    known = enumerated(7, 500, FEW, chosen)
    wrong, pairs = disagreements(known, fingerprints(known, 7, ordered=True))
    assert not wrong, "\n".join(wrong[:20])
    assert pairs > 100


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 110))
def test_many_more_of_them(seed: int) -> None:
    known = enumerated(seed, 30000)
    wrong, _ = disagreements(known, fingerprints(known, seed))
    assert not wrong, "\n".join(wrong[:20])


def test_a_law_too_many_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models that are tempting and wrong: a root that is a root modulo P, and truth at the random point."""
    known = enumerated(0, 2000)

    def root(x: FieldTensor) -> FieldTensor:
        exponents = [(int(m) + 1) // 4 for m in x.point.field.moduli]
        return x.derived(x.point.field.power(x.values, exponents), VARIABLE)

    def zero(x: FieldTensor) -> FieldTensor:
        return x.derived((x.values == 0).astype(np.int64), VARIABLE, np.dtype(np.bool_))

    with monkeypatch.context() as patch:
        patch.setitem(transcendental.UNARY, "sqrt", root)  # the root of x * x is x for half of the draws
        assert any(disagreements(known, fingerprints(known, seed))[0] for seed in range(8))
    with monkeypatch.context() as patch:
        patch.setattr("bricolage.rulemaking.proof.tensor.is_zero", zero)
        assert disagreements(known, fingerprints(known, 0))[0]
