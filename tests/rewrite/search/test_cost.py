"""The cost that is assumed without measurements."""

from __future__ import annotations

import pytest

from bricolage.device.device import Peaks
from bricolage.graph.graph import Operator
from bricolage.perf.roofline import OperatorRoofline
from bricolage.rewrite.rule import Example
from bricolage.rewrite.search.cost import Pricing


def cost(example: Example, roofline: OperatorRoofline) -> float:
    model = example.model()
    return Pricing(roofline, model.graph.opset_imports).total(model.graph)


def test_the_longer_of_computing_and_moving() -> None:
    product = Example("float[100,100] x", "y = MatMul(x, w)", {"w": (100, 100)})
    assert cost(product, OperatorRoofline(Peaks(1e-3, 1e3), 0.0)) == pytest.approx(2000.0)
    assert cost(product, OperatorRoofline(Peaks(1e3, 1e-3), 0.0)) == pytest.approx(120.0)
    assert cost(product, OperatorRoofline(Peaks(1e9, 1e9), 5e5)) == pytest.approx(500.0)


def test_symbolic_dimensions_have_a_size() -> None:
    product = Example("float[N,100] x", "y = MatMul(x, w)", {"w": (100, 100)})
    slow = Peaks(1e-3, 1e3)
    assert cost(product, OperatorRoofline(slow, 0.0, {"N": 100})) == pytest.approx(2000.0)
    assert cost(product, OperatorRoofline(slow, 0.0)) == pytest.approx(320.0)


def test_what_is_folded_costs_nothing() -> None:
    model = Example("float[3] x", "c = Relu(w) y = Add(x, c)", {"w": (3,)}).model()
    pricing = Pricing(OperatorRoofline(), model.graph.opset_imports)
    assert [pricing.of(node) > 0.0 for node in model.graph] == [False, True]


def test_an_operator_is_priced_once() -> None:
    asked: list[str] = []

    def count(operator: Operator) -> float:
        asked.append(operator.name)
        return 1.0

    model = Example("float[3] x", "a = Relu(x) y = Tanh(a)").model()
    pricing = Pricing(count, model.graph.opset_imports)
    assert pricing.total(model.graph) == pricing.total(model.clone().graph) == 2.0
    assert len(asked) == 2
