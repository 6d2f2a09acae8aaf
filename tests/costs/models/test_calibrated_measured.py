from __future__ import annotations

import numpy as np
import pytest

from bricolage.costs.models.calibrated import Calibrated, calibrate
from bricolage.costs.models.roofline import NOMINAL
from bricolage.graph.graph import Graph
from bricolage.graph.identity import operator_key
from bricolage.graph.work import operator_work
from bricolage.rewrite.search.operator_prices import price_operators
from bricolage.work.cost import Work
from tests.graph.models import graph as graph_of


def works(graph: Graph) -> list[Work]:
    return [operator_work(one) for one in graph.operators]


@pytest.fixture
def graph() -> Graph:
    body = "a=MatMul(x,w) b=Relu(a) c=MatMul(b,w) d=Tanh(c) y=Relu(d)"
    return graph_of(body, "float[8,64] x", "float[8,64] y", w=np.ones((64, 64), np.float32))


@pytest.fixture
def model() -> Calibrated:
    return calibrate([])


def test_measured_operators_are_brought_to_the_scale_of_the_graph(graph: Graph, model: Calibrated) -> None:
    product, tanh = operator_key(graph.operators[0]), operator_key(graph.operators[3])
    alone = {product: 3.0, tanh: 1.0}
    costs = model.with_operators(alone, works(graph))
    known = [graph.operators[i] for i in (0, 2, 3)]
    assert price_operators(costs, NOMINAL, known) == pytest.approx(price_operators(model, NOMINAL, known)), (
        "their sum is the model's"
    )
    assert price_operators(costs, NOMINAL, [graph.operators[0]]) == pytest.approx(
        3 * price_operators(costs, NOMINAL, [graph.operators[3]])
    ), "their proportions are measured"
    assert price_operators(costs, NOMINAL, [graph.operators[0]]) == price_operators(
        costs, NOMINAL, [graph.operators[2]]
    ), "equal operators take equal time"


def test_what_was_not_measured_is_the_models(graph: Graph, model: Calibrated) -> None:
    costs = model.with_operators({operator_key(graph.operators[0]): 3.0}, works(graph))
    for number in (1, 3, 4):
        assert price_operators(costs, NOMINAL, [graph.operators[number]]) == price_operators(
            model, NOMINAL, [graph.operators[number]]
        )


def test_measurements_of_other_graphs_keep_their_scale(graph: Graph, model: Calibrated) -> None:
    """Nothing says how those relate to this graph."""
    other = graph_of("y=Exp(x)").operators[0]
    costs = model.with_operators({operator_key(other): 0.7}, works(graph))
    assert price_operators(costs, NOMINAL, [other]) == 0.7
    assert all(
        price_operators(costs, NOMINAL, [operator]) == price_operators(model, NOMINAL, [operator])
        for operator in graph.operators
    )


def test_operators_that_took_no_time_cost_nothing(graph: Graph, model: Calibrated) -> None:
    key = operator_key(graph.operators[1])
    assert price_operators(model.with_operators({key: 0.0}, works(graph)), NOMINAL, [graph.operators[1]]) == 0.0
