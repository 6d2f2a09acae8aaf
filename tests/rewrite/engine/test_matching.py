"""Patterns: variables, constants, commutative operators, alternatives, several roots; and why something does not match."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.rewrite.engine.matching import Match, PatternMatcher
from bricolage.rewrite.pattern import AnyValue, Either, Number, Op, Weight, op
from bricolage.rewrite.rule import Example

a, b, x = AnyValue("a"), AnyValue("b"), AnyValue("x")


def matches(model: ir.Model, *roots: Op) -> list[Match]:
    matcher = PatternMatcher(18)
    return [match for node in model.graph for match in matcher.matches(roots, node)]


def names(found: Sequence[Match]) -> list[dict[str, str | None]]:
    return [{key: value.name if value else None for key, value in match.values.items()} for match in found]


def test_a_variable_stands_for_one_value() -> None:
    model = Example("float[2] x, float[2] z", "t = Relu(x) y = Mul(x, t) u = Mul(z, t)", outputs="y, u").model()
    assert names(matches(model, op.Mul(x, op.Relu(x)))) == [{"x": "x"}]


def test_commutative_operators_match_in_both_orders() -> None:
    model = Example("float[2] x, float[2] z", "t = Relu(x) y = Mul(t, z) u = Sub(t, z)", outputs="y, u").model()
    assert names(matches(model, op.Mul(a, op.Relu(b)))) == [{"a": "z", "b": "x"}]
    assert not matches(model, op.Sub(a, op.Relu(b)))
    assert len(matches(model, op.Mul(a, b))) == 2


def test_a_square_matches_once() -> None:
    assert len(matches(Example("float[2] x", "y = Mul(x, x)").model(), op.Mul(a, b))) == 1


def test_optional_inputs() -> None:
    model = Example("float[2] x", "t = Clip(x) y = Clip(t, , h)", {"h": 1.0}).model()
    pattern = op.Clip(x, AnyValue("low", optional=True), Weight("high", optional=True))
    assert names(matches(model, pattern)) == [
        {"x": "x", "low": None, "high": None},
        {"x": "t", "low": None, "high": "h"},
    ]
    assert not matches(model, op.Clip(x, AnyValue("low"), AnyValue("high")))
    assert len(matches(model, op.Clip(x))) == 1, "inputs that the pattern does not name must be absent"


def test_weights_and_numbers() -> None:
    model = Example(
        "float[2] x, float[2] z", "t = Mul(x, h) u = Mul(t, v) y = Mul(u, z)", {"h": [0.5], "v": [0.5, 0.5]}
    ).model()
    assert len(matches(model, op.Mul(x, Weight("w")))) == 2
    assert names(matches(model, op.Mul(x, Number(0.5)))) == [{"x": "x"}]
    assert not matches(model, op.Mul(x, Number(0.25)))


@given(st.floats(-1e3, 1e3, allow_nan=False), st.integers(-2, 2))
@settings(max_examples=50, deadline=None)
def test_numbers_match_up_to_their_rounding(value: float, steps: int) -> None:
    stored = np.float32(value)
    for _ in range(abs(steps)):
        stored = np.nextafter(stored, np.float32(np.sign(steps) * np.inf), dtype=np.float32)
    model = Example("float[2] x", "y = Mul(x, c)", {"c": stored}).model()
    near = abs(float(stored) - value) <= 4 * 2.0**-24 * abs(value)
    assert bool(matches(model, op.Mul(x, Number(value)))) == near


def test_alternatives_and_sets_of_types() -> None:
    model = Example("float[2] x", "t = Relu(x) u = Tanh(t) y = Neg(u)").model()
    either = Either(op.Relu(x), op.Tanh(x))
    assert names(matches(model, op.Neg(either))) == [{"x": "t"}]
    assert len(matches(model, op.one_of("Relu", "Neg")(x))) == 2


def test_a_named_operator_is_the_same_everywhere() -> None:
    shared = op.Exp(x, name="e")
    pattern = op.Mul(shared, op.Neg(shared))
    twice = Example("float[2] x", "e = Exp(x) n = Neg(e) y = Mul(e, n)").model()
    apart = Example("float[2] x", "e = Exp(x) f = Exp(x) n = Neg(f) y = Mul(e, n)").model()
    assert len(matches(twice, pattern)) == 1 and not matches(apart, pattern)


def test_outputs_other_than_the_first() -> None:
    model = Example("float[2,4] x", "p, q = Split<axis=1, num_outputs=2>(x) y = Relu(q)").model()
    sizes = AnyValue("sizes", optional=True)
    assert len(matches(model, op.Relu(op.Split(x, sizes, output=1)))) == 1
    assert not matches(model, op.Relu(op.Split(x, sizes)))


def test_several_roots_are_found_through_what_they_share() -> None:
    model = Example("float[2] x, float[2] z", "p = Relu(x) q = Neg(x) r = Neg(p) s = Neg(z)", outputs="q, r, s").model()
    assert [m.roots[1].name for m in matches(model, op.Relu(x), op.Neg(x))] == ["q"]
    assert [m.roots[1].name for m in matches(model, op.Neg(x), op.Neg(op.Relu(x)))] == ["r"]
    with pytest.raises(ValueError, match="shares no variable"):
        matches(model, op.Relu(x), op.Neg(a))


def test_roots_are_different_operators() -> None:
    model = Example("float[2] x", "p = Relu(x) q = Relu(x) r = Relu(x)", outputs="p, q, r").model()
    pairs = {tuple(value.name for value in m.roots) for m in matches(model, op.Relu(x), op.Relu(x))}
    assert pairs == set(itertools.permutations(["p", "q", "r"], 2))


def test_other_domains_are_left_alone() -> None:
    model = Example("float[2] x", "y = Relu(x)").model()
    model.graph.node(0).domain = "com.example"
    assert not matches(model, op.Relu(x))


def test_a_miss_says_why() -> None:
    model = Example("float[2] x", "t = Tanh(x) y = Neg(t)").model()
    misses: list[tuple[int, str]] = []
    node = model.graph.node("Neg_1")
    assert not list(PatternMatcher(18, misses).matches([op.Neg(op.Relu(x))], node))
    assert misses == [(1, "'t' is not computed by Relu")]
