"""The bound: what rounding in float32 explains, and what it does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from bricolage.errors import InvalidGraph, NoReference, ReferenceLimit
from bricolage.graph.graph import Graph
from bricolage.graph.prepare import prepare
from bricolage.graph.store import Store
from bricolage.verify.bound import FACTOR, draws_for, error_limits, rounding_errors
from bricolage.verify.compare import deviation, errors
from bricolage.verify.inputs import draw_inputs
from bricolage.verify.named_arrays import load_limits
from bricolage.verify.oracle import Oracle
from bricolage.verify.reference import evaluate
from bricolage.verify.rounding import round_model
from tests.verify.models import BOOL, I64, F, bert_like, convolutional, looping, make

MODELS: dict[str, Callable[[], ir.Model]] = {"conv": convolutional, "bert": bert_like, "loop": looping}
HIGHEST = 1e-6


def weights(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def measured(model: ir.Model, inputs: Mapping[str, Any], draws: int = 4) -> tuple[dict[str, Any], dict[str, float]]:
    """Float64 outputs, and the limits of float32."""
    reference = evaluate(model, inputs)
    return reference, error_limits(rounding_errors(model, inputs, reference, draws), reference)


def accepted(answer: Sequence[Any], reference: Mapping[str, Any], own: Mapping[str, float]) -> bool:
    return deviation(answer, list(reference.values()), list(own.values())).excess <= HIGHEST


@pytest.mark.parametrize("name", MODELS)
def test_float32_is_within_the_limits_and_not_far_below(name: str) -> None:
    model = MODELS[name]()
    inputs = draw_inputs(model)
    reference, own = measured(model, inputs)
    plain = evaluate(model, inputs, dtype=np.float32)
    (error,) = errors([plain["y"]], [reference["y"]])
    assert own["y"] / 50 < error < own["y"] < 1e-5


@pytest.mark.parametrize("name", MODELS)
def test_the_limits_are_the_same_without_torch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    model = MODELS[name]()
    inputs = draw_inputs(model)
    _, with_torch = measured(model, inputs, 2)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    _, without = measured(model, inputs, 2)
    assert without == pytest.approx(with_torch, rel=1e-5)


def test_the_same_model_has_the_same_limits_each_time() -> None:
    model, again = convolutional(), convolutional()
    inputs = draw_inputs(model)
    assert measured(model, inputs)[1] == measured(again, inputs)[1]


def orders(x: np.ndarray, w: np.ndarray) -> dict[str, np.ndarray]:
    """A product of matrices in float32, summed up in different orders."""
    one_by_one, blocks = np.zeros((len(x), w.shape[1]), np.float32), []
    for k in range(x.shape[1]):
        one_by_one += x[:, k : k + 1] * w[k]
    backwards = np.zeros_like(one_by_one)
    for k in reversed(range(x.shape[1])):
        backwards += x[:, k : k + 1] * w[k]
    for start in range(0, x.shape[1], 64):
        block = np.zeros_like(one_by_one)
        for k in range(start, min(start + 64, x.shape[1])):
            block += x[:, k : k + 1] * w[k]
        blocks.append(block)
    return {"one by one": one_by_one, "backwards": backwards, "blocks": np.sum(blocks, axis=0), "library": x @ w}


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("terms", [16, 300, 4096])
def test_every_order_of_summation_is_accepted(terms: int, positive: bool) -> None:
    """Also the worst, one term after the other, where all terms have one sign and where they cancel."""
    x, w = weights(8, terms, seed=1), weights(terms, 8, seed=2)
    if positive:
        x, w = np.abs(x), np.abs(w)
    model = make([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": (F, [8, terms])}, {"y": (F, [8, 8])}, {"w": w})
    reference, own = measured(model, {"x": x})
    for order, answer in orders(x, w).items():
        assert accepted([answer], reference, own), order
    assert own["y"] < 5e-5


def saturated() -> tuple[ir.Model, dict[str, np.ndarray]]:
    """A map of probabilities that are all tiny, beside an output that is not."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["h", "low"], ["logits"]),
        helper.make_node("Sigmoid", ["logits"], ["p"]),
        helper.make_node("Relu", ["h"], ["r"]),
    ]
    shape = [1, 1, 32, 32]
    constants = {"w": weights(1, 3, 3, 3, scale=0.1), "low": np.float32(-12.0)}
    model = make(nodes, {"x": (F, [1, 3, 32, 32])}, {"p": (F, shape), "r": (F, shape)}, constants)
    return model, {"x": weights(1, 3, 32, 32, seed=3)}


def test_small_probabilities_are_judged_on_the_scale_of_one_and_others_are_not() -> None:
    """1 / (1 + exp(-x)) and (1 + tanh(x / 2)) / 2 are both float32; the second is off by 1e-3 of a probability of 1e-5."""
    model, inputs = saturated()
    reference, own = measured(model, inputs)
    plain = evaluate(model, inputs, dtype=np.float32, keep=["logits"])
    by_tanh = np.float32(0.5) * (np.float32(1) + np.tanh(np.float32(0.5) * plain["logits"].astype(np.float32)))
    relu = plain["r"].astype(np.float32)
    (error, _) = errors([by_tanh, relu], list(reference.values()))
    assert error > 1e-4, "far more than the word highest says"
    assert accepted([by_tanh, relu], reference, own)
    assert not accepted([by_tanh + np.float32(1e-4), relu], reference, own)
    assert not accepted([by_tanh, relu * np.float32(1 + 1e-4)], reference, own), "the other output keeps its own limit"


@pytest.mark.parametrize("name", MODELS)
def test_wrong_answers_are_refused(name: str) -> None:
    model = MODELS[name]()
    inputs = draw_inputs(model)
    reference, own = measured(model, inputs)
    plain = np.array(evaluate(model, inputs, dtype=np.float32)["y"])
    assert accepted([plain], reference, own)
    for at in range(0, plain.size, 3):
        planted = plain.copy()
        planted.reshape(-1)[at] += 1e-3 * np.abs(plain).max()
        assert not accepted([planted], reference, own), "an error planted in one element"
    assert not accepted([plain.reshape(-1)[::-1].reshape(plain.shape)], reference, own)
    assert not accepted([np.swapaxes(plain, -1, -2).reshape(plain.shape)], reference, own), "a wrong layout"


def test_a_dropped_bias_and_a_wrong_epsilon_are_refused() -> None:
    model = convolutional()
    inputs = draw_inputs(model)
    reference, own = measured(model, inputs)
    changes: dict[str, Callable[[ir.Model], None]] = {
        "bias": lambda m: _constant(m, "b", np.zeros(4, np.float32)),
        "one of four": lambda m: _constant(m, "b", np.float32([0, 1, -1, 1e-4])),
        "epsilon": lambda m: m.graph[1].attributes.add(ir.AttrFloat32("epsilon", 1e-3)),
    }
    for what, change in changes.items():
        wrong = convolutional()
        change(wrong)
        answer = evaluate(wrong, inputs, dtype=np.float32)["y"]
        assert not accepted([answer], reference, own), what


def _constant(model: ir.Model, name: str, array: np.ndarray) -> None:
    model.graph.initializers[name].const_value = ir.tensor(array, name=name)


def test_cancellation_widens_the_limit_and_only_there() -> None:
    """(x + 1000) - 1000 keeps four digits; rounding says so, one evaluation may happen to be exact."""
    nodes = [
        helper.make_node("Add", ["x", "large"], ["a"]),
        helper.make_node("Sub", ["a", "large"], ["y"]),
        helper.make_node("Mul", ["x", "x"], ["z"]),
    ]
    model = make(nodes, {"x": (F, [100])}, {"y": (F, [100]), "z": (F, [100])}, {"large": np.float32(1000)})
    reference, own = measured(model, {"x": weights(100)})
    assert 2e-5 < own["y"] < 1e-3 and own["z"] < HIGHEST
    assert reference["z"].shape == (100,)


def test_ties_of_indices_are_seen() -> None:
    """Scores that differ by less than rounding change places; others may not."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["s"]),
        helper.make_node("ArgMax", ["s"], ["y"], axis=-1, keepdims=0),
    ]
    w = weights(64, 10)
    model = make(nodes, {"x": (F, [50, 64])}, {"y": (I64, [50])}, {"w": w})
    assert measured(model, {"x": weights(50, 64, seed=1)})[1] == {"y": 0.0}
    tied = w.copy()
    tied[:, 1::2] = tied[:, ::2]
    tied[0, 1::2] *= np.float32(1 + 2e-7)
    close = make(nodes, {"x": (F, [50, 64])}, {"y": (I64, [50])}, {"w": tied})
    assert 0.0 < measured(close, {"x": weights(50, 64, seed=1)})[1]["y"] <= 0.5


def test_half_precision_has_its_own_rounding() -> None:
    half = TensorProto.FLOAT16
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Tanh", ["h"], ["y"])]
    w = weights(64, 64, scale=0.1).astype(np.float16)
    model = make(nodes, {"x": (half, [4, 64])}, {"y": (half, [4, 64])}, {"w": w})
    inputs = {"x": weights(4, 64).astype(np.float16)}
    reference, own = measured(model, inputs)
    plain = evaluate(model, inputs, dtype=np.float32)["y"]
    assert 1e-4 < own["y"] < 2e-2 and accepted([plain], reference, own)


def test_infinite_values_do_not_stop_the_noise() -> None:
    """Attention masks are often minus infinity."""
    nodes = [helper.make_node("Add", ["x", "mask"], ["s"]), helper.make_node("Softmax", ["s"], ["y"], axis=-1)]
    mask = np.where(np.arange(8) < 5, 0.0, -np.inf).astype(np.float32)
    model = make(nodes, {"x": (F, [4, 8])}, {"y": (F, [4, 8])}, {"mask": mask})
    _, own = measured(model, {"x": weights(4, 8)})
    assert 1e-8 < own["y"] < 1e-5


def test_what_rests_on_integers_alone_stays_exact() -> None:
    """Sizes and masks computed in floats: Floor(2.0) must not become 1."""
    nodes = [
        helper.make_node("Cast", ["n"], ["f"], to=F),
        helper.make_node("Mul", ["f", "half"], ["h"]),
        helper.make_node("Floor", ["h"], ["size"]),
        helper.make_node("Equal", ["size", "two"], ["e"]),
        helper.make_node("Where", ["e", "x", "size"], ["y"]),
    ]
    constants = {"half": np.float32(0.5), "two": np.float32(2)}
    model = make(nodes, {"n": (I64, [4]), "x": (F, [4])}, {"y": (F, [4]), "e": (BOOL, [4])}, constants)
    _, own = measured(model, {"n": np.full(4, 4), "x": weights(4)})
    assert own["e"] == 0.0 and own["y"] < 1e-6


def test_declared_shapes_that_are_wrong_do_not_stop_the_noise() -> None:
    model = make(
        [helper.make_node("Exp", ["x"], ["h"]), helper.make_node("Log", ["h"], ["y"])], {"x": (F, [7])}, {"y": (F, [7])}
    )
    model.graph[0].outputs[0].shape = ir.Shape([3])
    _, own = measured(model, {"x": weights(7)})
    assert 1e-8 < own["y"] < 1e-4


def test_the_model_itself_is_not_touched() -> None:
    model = looping()
    before = ir.to_proto(model).SerializeToString()
    noisy = round_model(model)
    assert len(noisy.model.graph) > len(model.graph) and ir.to_proto(model).SerializeToString() == before
    assert [value.name for value in noisy.model.graph.outputs] == [value.name for value in model.graph.outputs]


def test_one_model_serves_all_draws() -> None:
    """What evaluates prepares it once, however many operators it has; fields of signs are few."""
    nodes = [helper.make_node("Tanh", [f"h{i}"], [f"h{i + 1}"]) for i in range(100)]
    model = prepare(make(nodes, {"h0": (F, [4, 9])}, {"h100": (F, [4, 9])}, {}), {}).model
    asked: list[ir.Model] = []

    def evaluator(one: ir.Model, *arguments: Any, **named: Any) -> dict[str, Any]:
        asked.append(one)
        return evaluate(one, *arguments, **named)

    inputs = {"h0": weights(4, 9)}
    found = rounding_errors(model, inputs, evaluate(model, inputs), 8, evaluator)
    assert len(asked) == 8 and len({id(one) for one in asked}) == 1 and 1e-8 < found["h100"] < 1e-5
    noisy = round_model(model)
    assert len(noisy.fields) <= 32 and noisy.noise(3).keys() == noisy.fields.keys()
    assert all(np.array_equal(one, noisy.noise(3)[name]) for name, one in noisy.noise(3).items())
    assert any(not np.array_equal(one, noisy.noise(4)[name]) for name, one in noisy.noise(3).items())


def test_larger_models_have_fewer_draws() -> None:
    def product(size: int) -> Graph:
        node = helper.make_node("MatMul", ["x", "x"], ["y"])
        return Graph(prepare(make([node], {"x": (F, [size, size])}, {"y": (F, [size, size])}), {}).model)

    assert [draws_for(product(size)) for size in (8, 1000, 4000)] == [8, 4, 2]


# --- the oracle -------------------------------------------------------------------------------------------------------


def test_the_oracle_writes_the_limits_beside_what_it_expects(tmp_path: Path) -> None:
    graph = prepare(saturated()[0], {})
    inputs = saturated()[1]
    oracle = Oracle(graph, inputs, Store(tmp_path), HIGHEST, "model")
    _, expected, bound = oracle.files(graph.everything)
    found = load_limits(expected, ["p", "r"])
    assert bound == HIGHEST and found[0] > 1e-4 > found[1] and oracle.bound == pytest.approx(found[0])
    assert oracle.bound == pytest.approx(FACTOR * oracle.original_error)


def test_a_tolerance_in_numbers_is_taken_literally(tmp_path: Path) -> None:
    graph = prepare(saturated()[0], {})
    oracle = Oracle(graph, saturated()[1], Store(tmp_path), 1e-5, "model", literal=True)
    fair = Oracle(graph, saturated()[1], Store(tmp_path), 1e-5, "model")
    _, expected, bound = oracle.files(graph.everything)
    assert load_limits(expected, ["p", "r"]) == [0.0, 0.0] and bound == oracle.bound == 1e-5
    assert oracle.original_error == fair.original_error > 0
    assert oracle.data(graph.everything) != fair.data(graph.everything), "judgements of the two are not mixed up"


def test_regions_have_limits_of_their_own(tmp_path: Path) -> None:
    """A region that cancels may be as far off as rounding moves it, on exactly its inputs."""
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["m"]),
        helper.make_node("Add", ["m", "large"], ["a"]),
        helper.make_node("Sub", ["a", "large"], ["y"]),
    ]
    graph = prepare(make(nodes, {"x": (F, [100])}, {"y": (F, [100])}, {"large": np.float32(1000)}), {})
    oracle = Oracle(graph, {"x": weights(100)}, Store(tmp_path), HIGHEST, "model")
    assert load_limits(oracle.files(graph.region(0b110))[1], ["y"]) == [0.0]
    assert oracle.limits(graph.region(0b001))["m"] < HIGHEST < 2e-5 < oracle.limits(graph.region(0b110))["y"]


@pytest.mark.parametrize("error", [NoReference(reason="x"), ReferenceLimit(reason="x"), InvalidGraph(reason="x")])
def test_a_draw_that_fails_ends_nothing(error: Exception) -> None:
    """Noise can lengthen a loop beyond its limit, or change the shape of what is found."""
    nodes = [helper.make_node("Tanh", ["x"], ["y"])]
    model = prepare(make(nodes, {"x": (F, [9])}, {"y": (F, [9])}, {}), {}).model
    tried: list[int] = []

    def fails_once(*arguments: Any, **named: Any) -> dict[str, Any]:
        tried.append(1)
        if len(tried) == 1:
            raise error
        return evaluate(*arguments, **named)

    inputs = {"x": weights(9)}
    found = rounding_errors(model, inputs, evaluate(model, inputs), 1, fails_once)
    assert len(tried) == 2 and 1e-9 < found["y"] < 1e-6


def test_integers_near_a_tie_may_go_either_way_and_others_may_not() -> None:
    """A runtime that multiplies by 1 / scale is right, and one that is off by one in every hundredth element is not."""
    scale = np.float32(0.021)
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"])]
    shape = [100, 600]
    model = make(nodes, {"x": (F, shape)}, {"q": (TensorProto.UINT8, shape)}, {"s": scale, "z": np.uint8(128)})
    x = np.float32(scale * (np.random.default_rng(0).integers(-100, 100, shape) + 0.5))
    reference, own = measured(model, {"x": x}, 8)
    other = np.clip(np.rint(x * (np.float32(1) / scale)) + 128, 0, 255).astype(np.uint8)
    (apart,) = errors([other], [reference["q"]])
    assert apart > 0 and accepted([other], reference, own)
    far = np.float32(scale * (np.random.default_rng(0).integers(-100, 100, shape) + 0.2))
    reference, own = measured(model, {"x": far}, 8)
    wrong = reference["q"].copy()
    wrong[:, ::100] += 1
    assert own["q"] == 0.0 and not accepted([wrong], reference, own)


def test_a_model_that_allows_coarse_factors_is_judged_by_them() -> None:
    def limit(level: int) -> float:
        attributes = {"K": 64, "N": 8, "bits": 4, "block_size": 32, "accuracy_level": level}
        node = helper.make_node("MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", **attributes)
        packed = np.random.default_rng(0).integers(0, 256, (8, 2, 16)).astype(np.uint8)
        initializers = {"w": packed, "s": np.abs(weights(8, 2))}
        model = make([node], {"x": (F, [16, 64])}, {"y": (F, [16, 8])}, initializers)
        return measured(model, {"x": weights(16, 64)})[1]["y"]

    assert limit(0) < 1e-5 and 3e-3 < limit(4) < 3e-2
