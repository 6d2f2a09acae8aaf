"""Fingerprints: the same however a graph is written, and the same predicted as counted."""

from __future__ import annotations

import onnx_ir as ir
from hypothesis import given, settings

from bricolage.rewrite.catalogue import written_rules
from bricolage.rewrite.rule import Example
from bricolage.rewrite.search.fingerprint import Fingerprint
from bricolage.rewrite.search.workspace import Workspace
from tests.rewrite.search.models import square_models


def number(body: str, **weights: object) -> int:
    return Fingerprint(Example("float[3,3] x", body, weights or {"w": (3, 3), "v": (3, 3)}).model().graph).number


@settings(max_examples=25, deadline=None)
@given(square_models())
def test_what_is_predicted_is_what_comes_of_it(model: ir.Model) -> None:
    home = Workspace(model, written_rules(), lazy=True)
    fingerprint = Fingerprint(model.graph)
    predicted = []
    for proposal in home.proposals():
        predicted.append((proposal.step, fingerprint.after(proposal)))
        proposal.discard()
    for step, expected in predicted:
        after = home.copy()
        after.accept(after.find(step))
        assert Fingerprint(after.model.graph).number == expected


def test_names_and_order_do_not_count() -> None:
    first = number("a = Relu(x) b = Tanh(x) y = Add(a, b)")
    assert first == number("q = Tanh(x) p = Relu(x) y = Add(p, q)")
    assert first != number("a = Relu(x) b = Tanh(x) y = Add(b, a)")
    assert first != number("a = Relu(x) b = Relu(x) y = Add(a, b)")


def test_what_is_computed_twice_differs_from_what_is_shared() -> None:
    assert number("a = Relu(x) y = Add(a, a)") != number("a = Relu(x) b = Relu(x) y = Add(a, b)")


def test_attributes_and_weights_count() -> None:
    assert number("y = Softmax<axis=0>(x)") != number("y = Softmax<axis=1>(x)")
    assert number("y = MatMul(x, w)") != number("y = MatMul(x, v)")
    assert number("y = Mul(x, c)", c=2.0) == number("y = Mul(x, d)", d=2.0) != number("y = Mul(x, d)", d=3.0)


def test_which_output_is_which_counts() -> None:
    def two(outputs: str) -> int:
        return Fingerprint(Example("float[3] x", "a = Relu(x) b = Tanh(x)", outputs=outputs).model().graph).number

    assert two("a, b") != two("b, a")
