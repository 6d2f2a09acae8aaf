"""The contract of quantised graphs: integers are exact, whatever a precision word allows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from bricolage.base.options import BOUNDS, Options
from bricolage.graph.prepare import prepare
from bricolage.graph.store import Store
from bricolage.verify.compare import deviation, errors
from bricolage.verify.named_arrays import load_limits, load_values
from bricolage.verify.oracle import Oracle
from bricolage.verify.quantised import EXACT_BOUND, TIES, accepted_bound, is_quantised, precision_of
from tests.verify.models import F, make

K, N, ROWS = 64, 32, 40
STEP = np.float32(0.02)
U8, S8 = TensorProto.UINT8, TensorProto.INT8


def product(requantised: bool) -> ir.Model:
    """x [ROWS, K] in steps of u8, times weights of s8; its result as float32, or in steps once more."""
    rng = np.random.default_rng(0)
    weights = rng.integers(-60, 61, (K, N)).astype(np.int8)
    weights[:2, :2] = 127  # neighbours of one sign: where vpmaddubsw adds them for large activations, it saturates
    constants = {"s": STEP, "z": np.uint8(0), "w": weights, "sw": np.float32(0.01), "so": np.float32(1.0)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "sw"], ["wd"]),
        helper.make_node("MatMul", ["xd", "wd"], ["y" if not requantised else "yf"]),
    ]
    if requantised:
        constants["zo"] = np.int8(3)
        nodes.append(helper.make_node("QuantizeLinear", ["yf", "so", "zo"], ["y"]))
    return make(nodes, {"x": (F, [ROWS, K])}, {"y": (S8 if requantised else F, [ROWS, N])}, constants)


def inputs() -> dict[str, np.ndarray]:
    x = np.random.default_rng(1).uniform(0, 2.0, (ROWS, K)).astype(np.float32)
    x[0] = 255 * STEP  # all 255
    return {"x": x}


def by_pairs(x: np.ndarray, model: ir.Model, *, saturating: bool) -> np.ndarray:
    """What a kernel makes of it that adds two products at a time in int16, as vpmaddubsw does, or in int32."""
    bytes_ = np.clip(np.rint(x / STEP), 0, 255).astype(np.int64)
    tensor = model.graph.initializers["w"].const_value
    assert tensor is not None
    pairs = bytes_.reshape(ROWS, K // 2, 2, 1) * tensor.numpy().astype(np.int64).reshape(1, K // 2, 2, N)
    sums = pairs.sum(axis=2)
    sums = np.clip(sums, -(2**15), 2**15 - 1) if saturating else sums
    return sums.sum(axis=1).astype(np.float32) * STEP * np.float32(0.01)


def judged(model: ir.Model, answer: np.ndarray, folder: Path, *, literal: bool = False) -> tuple[float, float]:
    """What of an answer rounding does not explain, and what is accepted, at the word `low`."""
    graph = prepare(model, {})
    oracle = Oracle(graph, inputs(), Store(folder), BOUNDS["low"], "m", literal=literal)
    _, expected, bound = oracle.files(graph.everything)
    found = deviation([answer], [load_values(expected, ["y"])["y"]], load_limits(expected, ["y"]))
    return found.excess, bound


def test_a_product_that_saturates_is_refused_at_low(tmp_path: Path) -> None:
    model = product(requantised=False)
    saturated, right = (by_pairs(inputs()["x"], model, saturating=one) for one in (True, False))
    excess, bound = judged(model, saturated, tmp_path)
    assert bound < excess < BOUNDS["low"], "the word alone would hide it"
    assert judged(model, right, tmp_path)[0] == 0.0


def test_a_tolerance_in_numbers_is_taken_literally(tmp_path: Path) -> None:
    model = product(requantised=False)
    excess, bound = judged(model, by_pairs(inputs()["x"], model, saturating=True), tmp_path, literal=True)
    assert excess < bound == BOUNDS["low"]


def steps(values: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(values / np.float32(1.0)) + 3, -128, 127).astype(np.int8)


def test_requantised_numbers_may_be_a_step_off_where_they_tie_and_no_more(tmp_path: Path) -> None:
    model = product(requantised=True)
    right = steps(by_pairs(inputs()["x"], model, saturating=False))
    assert judged(model, right, tmp_path)[0] == 0.0
    one_tie, one_far = right.copy(), right.copy()
    one_tie[7, 7] += 1 if right[7, 7] < 127 else -1
    one_far[7, 7] += 3 if right[7, 7] < 125 else -3
    excess, bound = judged(model, one_tie, tmp_path)
    assert excess <= bound
    excess, bound = judged(model, one_far, tmp_path)
    assert excess > bound
    many = right.copy()
    many[:, 0] += 1
    excess, bound = judged(model, many, tmp_path)
    assert excess > bound
    excess, bound = judged(model, steps(by_pairs(inputs()["x"], model, saturating=True)), tmp_path)
    assert excess > bound


def test_a_region_of_a_quantised_graph_has_its_contract(tmp_path: Path) -> None:
    graph = prepare(product(requantised=True), {})
    oracle = Oracle(graph, inputs(), Store(tmp_path), BOUNDS["low"], "m")
    bits = sum(1 << one.number for one in graph.operators if one.op_type == "MatMul")
    region = graph.region(bits)
    assert oracle.files(region)[2] == EXACT_BOUND == oracle.accepted


def test_what_counts_as_quantised() -> None:
    assert is_quantised(product(requantised=False))
    weights = {"w": np.ones((4, 4), np.int8), "s": np.float32(0.1)}
    nodes = [helper.make_node("DequantizeLinear", ["w", "s"], ["wd"]), helper.make_node("MatMul", ["x", "wd"], ["y"])]
    stored = make(nodes, {"x": (F, [2, 4])}, {"y": (F, [2, 4])}, weights)
    assert not is_quantised(stored), "weights alone are stored so: all that is computed is float"
    assert accepted_bound(stored, BOUNDS["low"]) == BOUNDS["low"]
    assert accepted_bound(product(requantised=False), BOUNDS["highest"]) == BOUNDS["highest"]


def test_backends_offer_a_quantised_graph_nothing_that_its_contract_refuses() -> None:
    model = product(requantised=False)
    words = ("highest", "high", "medium", "low")
    assert [precision_of(model, Options(precision=word)) for word in words] == ["highest", "high", "high", "high"]
    assert precision_of(model, Options(precision="low", tolerance=0.1)) == "low"
    floats = make([helper.make_node("Relu", ["x"], ["y"])], {"x": (F, [2])}, {"y": (F, [2])})
    assert precision_of(floats, Options(precision="low")) == "low"


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_steps_beyond_the_first_count_each(kind: type) -> None:
    right = np.full(10_000, 100, kind)
    off = right.copy()
    off[0] = 101
    assert errors([off], [right]) == [1e-4] <= [TIES]
    off[0] = 127
    assert errors([off], [right]) == [pytest.approx(26 / 255)]
