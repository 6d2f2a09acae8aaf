"""The cost that is assumed without measurements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from bricolage.costs.models.roofline import NOMINAL, OperatorRoofline
from bricolage.device.device import Peaks
from bricolage.rewrite.rule import Example
from bricolage.rewrite.search.operator_prices import Pricing
from bricolage.work.cost import Work
from tests.rewrite.search.models import per_operator, pricing


def cost(example: Example, peaks: Peaks, start_us: float, sizes: Mapping[str, int] | None = None) -> float:
    model, on = example.model(), replace(NOMINAL, device=replace(NOMINAL.device, peaks=peaks))
    return Pricing(OperatorRoofline(start_us), on, model.graph.opset_imports, sizes or {}).total(model.graph)


def test_the_longer_of_computing_and_moving() -> None:
    product = Example("float[100,100] x", "y = MatMul(x, w)", {"w": (100, 100)})
    assert cost(product, Peaks(1e-3, 1e3), 0.0) == pytest.approx(2000.0)
    assert cost(product, Peaks(1e3, 1e-3), 0.0) == pytest.approx(120.0)
    assert cost(product, Peaks(1e9, 1e9), 5e5) == pytest.approx(500.0)


def test_symbolic_dimensions_have_a_size() -> None:
    product = Example("float[N,100] x", "y = MatMul(x, w)", {"w": (100, 100)})
    slow = Peaks(1e-3, 1e3)
    assert cost(product, slow, 0.0, {"N": 100}) == pytest.approx(2000.0)
    assert cost(product, slow, 0.0) == pytest.approx(320.0)


def test_what_is_folded_costs_nothing() -> None:
    model = Example("float[3] x", "c = Relu(w) y = Add(x, c)", {"w": (3,)}).model()
    prices = pricing(OperatorRoofline(), model)
    assert [prices.of(node) > 0.0 for node in model.graph] == [False, True]


def test_an_operator_is_priced_once() -> None:
    asked: list[str] = []

    def count(work: Work) -> float:
        asked.append(work.key)
        return 1.0

    model = Example("float[3] x", "a = Relu(x) y = Tanh(a)").model()
    prices = pricing(per_operator(count), model)
    assert prices.total(model.graph) == prices.total(model.clone().graph) == 2.0
    assert len(asked) == 2
