from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.costs.models.calibrated import Calibrated, CalibrationSample, calibrate
from bricolage.graph.graph import Graph, Operator
from bricolage.graph.operator_kinds import VIEWS
from bricolage.graph.prepare import simplify
from bricolage.graph.work import bytes_moved, flops, operator_work
from bricolage.work.workload import OperatorWork
from tests.graph.models import parse

MODEL = """<ir_version: 8, opset_import: ["" : 18]> net (float[1,64,56,56] x, float[128,256] q)
    => (float[1,64,56,56] y, float[128,512] r) {
    c = Conv<pads=[1,1,1,1]>(x, w) a = Relu(c) d = Conv<pads=[1,1,1,1],group=64>(a, k) y = Add(d, x)
    p = MatMul(q, u) s = Softmax(p) shape = Constant<value_ints=[128,512]>() r = Reshape(s, shape) }"""


@pytest.fixture(scope="module")
def graph() -> Graph:
    rng = np.random.default_rng(0)
    shapes = {"w": (64, 64, 3, 3), "k": (64, 1, 3, 3), "u": (256, 512)}
    return simplify(parse(MODEL, **{name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}))


def works(*operators: Operator) -> tuple[OperatorWork, ...]:
    return tuple(operator_work(one).operators[0] for one in operators)


def truth(operator: Operator) -> float:
    """A machine of 200 GFLOP/s and 20 GB/s, on which the two add up, with 3 µs for every operator."""
    if operator.op_type in VIEWS:
        return 0.0
    return 3e-3 + flops(operator) / 2e8 + bytes_moved(operator) / 2e7


def test_a_machine_that_the_model_describes_is_found(graph: Graph) -> None:
    operators = graph.operators
    samples = [CalibrationSample(works(o), truth(o)) for o in operators if o.op_type not in VIEWS]
    samples += [
        CalibrationSample(works(*operators[i:j]), sum(map(truth, operators[i:j])))
        for i in range(len(operators))
        for j in range(i + 2, len(operators) + 1)
    ]
    model = calibrate(samples)
    for operator in operators:
        assert model.predict(works(operator)) == pytest.approx(truth(operator), rel=0.1, abs=2e-3)
    assert model.predict(works(*operators)) == pytest.approx(sum(map(truth, operators)), rel=0.02)
    assert model.error < 0.1


def test_without_measurements_it_says_that_it_knows_nothing(graph: Graph) -> None:
    model = calibrate([])
    assert model.error == float("inf")
    for operator in graph.operators:
        assumed = 0.0 if operator.op_type in VIEWS else 1e-3 + flops(operator) * 1e-8 + bytes_moved(operator) * 1e-7
        assert model.predict(works(operator)) == pytest.approx(assumed)


@settings(max_examples=30, deadline=None)
@given(times=st.lists(st.floats(1e-3, 1e2), min_size=1, max_size=12), seed=st.integers(0, 99))
def test_costs_are_never_negative(graph: Graph, times: list[float], seed: int) -> None:
    rng = np.random.default_rng(seed)
    operators = graph.operators
    chosen = [tuple(operators[i] for i in sorted(rng.choice(len(operators), 3, replace=False))) for _ in times]
    model = calibrate([CalibrationSample(works(*own), ms) for own, ms in zip(chosen, times, strict=True)])
    assert isinstance(model, Calibrated)
    assert all(model.predict(works(operator)) >= 0.0 for operator in operators)
    assert model.error >= 0.0


def test_times_of_nothing_are_left_out(graph: Graph) -> None:
    assert calibrate([CalibrationSample((), 1.0), CalibrationSample(works(graph.operators[0]), 0.0)]).samples == ()
