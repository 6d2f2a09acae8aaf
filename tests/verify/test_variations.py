"""Other inputs: what they are, what is told wrong on them, and that what is right stays right."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bricolage.graph.graph import Graph
from bricolage.graph.store import Store
from bricolage.verify import reference
from bricolage.verify.bound import rounding_errors
from bricolage.verify.named_arrays import load_limits, load_values
from bricolage.verify.variations import Allowance, Allowances, Variation, evaluate_variations, kinds, write_variations
from tests.graph.models import graph

POOL = "p = Constant <value_ints = [0,0,1,1,0,0,1,1]> () a = Pad (x, p) y = MaxPool <kernel_shape = [3,3], strides = [3,3]> (a)"


def pool() -> Graph:
    return graph(POOL, "float[1,2,7,7] x", "float[1,2,3,3] y")


def varied(network: Graph, folder: Path, seed: int = 0) -> dict[str, Variation]:
    inputs = drawn(network, seed)
    outputs = reference.evaluate(network.model, inputs)
    names = [value.name or "" for value in network.model.graph.outputs]
    wanted = {name: outputs[name] for name in names}
    moved = rounding_errors(network.model, inputs, wanted, 2)
    varied = evaluate_variations(network, inputs, wanted, reference.evaluate)
    found = write_variations(network, varied, wanted, moved, Store(folder), reference.evaluate)
    return {one.kind: one for one in found}


def drawn(network: Graph, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {info.name: rng.standard_normal(info.sizes).astype(info.numpy) for info in network.inputs}


def judged(one: Variation, answer: Any, names: list[str]) -> float:
    """As workers' answers are judged: first by the limits on the first inputs, then by what rounding does here."""
    values = load_values(one.expected, names)
    wanted = {name: values[name] for name in names}
    limits = dict(zip(names, load_limits(one.expected, names), strict=True))
    given = dict(zip(names, answer, strict=True))
    first = one.excess(given, wanted, {name: Allowance(limit) for name, limit in limits.items()})
    return min(first, one.excess(given, wanted, one.allowances()))


def test_kinds_are_what_they_say_and_always_the_same() -> None:
    network = pool()
    inputs = drawn(network)
    found, again = dict(kinds(network, inputs)), dict(kinds(network, inputs))
    assert list(found) == ["negative", "wide", "saturated", "ties", "moved"]
    for kind, given in found.items():
        np.testing.assert_array_equal(given["x"], again[kind]["x"])
        assert given["x"].shape == inputs["x"].shape and given["x"].dtype == np.float32
    assert (found["negative"]["x"] < 0).all()
    sizes = np.abs(found["wide"]["x"])
    assert sizes.max() / sizes.min() > 1e3 and {-1.0, 1.0} == set(np.sign(found["wide"]["x"]).ravel())
    assert np.unique(found["ties"]["x"]).size < 10 and (found["ties"]["x"] == 0).any()
    assert np.abs(found["saturated"]["x"]).min() > 30
    assert 0 < np.abs(found["moved"]["x"] - inputs["x"]).max() < 1


def test_only_floats_change_and_they_keep_what_is_not_finite() -> None:
    network = graph("y = Where (c, x, x)", "float[4] x, bool[4] c")
    given = {"x": np.float32([np.nan, np.inf, 1, -2]), "c": np.array([True, False, True, False])}
    for _, changed in kinds(network, given):
        np.testing.assert_array_equal(changed["c"], given["c"])
        assert np.isnan(changed["x"][0]) and changed["x"][1] == np.inf and np.isfinite(changed["x"][2:]).all()


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        (graph("y = RandomNormalLike (x)"), []),
        (graph("a = Cast <to = 6> (x) y = Cast <to = 1> (a)"), ["ties", "moved"]),
        (graph("a = CastLike (x, w) y = CastLike (a, x)", w=np.int32([1])), ["ties", "moved"]),
        (
            graph("y = Gather <axis = 0> (w, i)", "int64[3] i", "float[3] y", w=np.float32([1, 2, 3, 4])),
            ["drawn again"],
        ),
    ],
    ids=["random", "a cast to integers", "a cast to the type of integers", "no floats"],
)
def test_what_means_nothing_is_not_asked(network: Graph, expected: list[str]) -> None:
    inputs = {"i": np.int64([0, 1, 2])} if expected == ["drawn again"] else {"x": np.ones(4, np.float32)}
    assert [kind for kind, _ in kinds(network, inputs)] == expected


def test_a_large_model_has_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bricolage.verify.variations.flops", lambda _: 1e9)
    assert [kind for kind, _ in kinds(pool(), drawn(pool()))] == ["negative", "wide", "saturated"]


@pytest.mark.parametrize("seed", range(3))
def test_a_pool_that_pads_with_something_else_is_told_on_every_seed(seed: int, tmp_path: Path) -> None:
    network = pool()
    for kind, one in varied(network, tmp_path, seed).items():
        x = load_values(one.inputs)["x"]
        assert isinstance(x, np.ndarray)
        zeros, fused = (np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=fill) for fill in (0, -np.inf))
        right, wrong = (a.reshape(1, 2, 3, 3, 3, 3).max((3, 5)) for a in (zeros, fused))
        assert judged(one, [right], ["y"]) == 0.0
        if kind == "negative":
            assert judged(one, [wrong], ["y"]) > 0.1


MODELS = {
    "softmax": ("y = Softmax <axis = -1> (x)", "float[3,8] x", "float[3,8] y"),
    "exponential": ("a = Exp (x) b = Exp (a) y = Reciprocal (b)", "float[16] x", "float[16] y"),
    "cancelling": ("a = Add (x, k) y = Sub (a, k)", "float[16] x", "float[16] y"),
    "indices": ("a = ReduceSum <keepdims = 1> (x) b = Add (x, a) y = ArgMax <axis = 1> (b)", "float[4,8] x", "int64[4,1] y"),
    "logarithm": ("a = Log (x) y = Relu (a)", "float[16] x", "float[16] y"),
    "sigmoid": ("a = Sigmoid (x) b = Sub (one, a) y = Log (b)", "float[16] x", "float[16] y"),
    "half": ("a = Cast <to = 10> (x) b = Exp (a) y = Cast <to = 1> (b)", "float[16] x", "float[16] y"),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_plain_float32_is_right_on_all_of_them(name: str, tmp_path: Path) -> None:
    """Whatever overflows, cancels or ties: what the model makes in its own types is never told wrong."""
    body, given, wanted = MODELS[name]
    constants = {"k": np.float32([1e4]), "one": np.float32([1])}
    network = graph(body, given, wanted, **{key: value for key, value in constants.items() if key in body})
    own = partial(reference.evaluate, network.model, dtype=np.float32)
    for one in varied(network, tmp_path).values():
        assert judged(one, [own(load_values(one.inputs))["y"]], ["y"]) <= 1e-6, one.kind


def test_nothing_is_told_where_a_normalisation_divides_rounding_by_rounding() -> None:
    network = graph("y = LayerNormalization (x, k)", "float[2,16] x", "float[2,16] y", k=np.ones(16, np.float32))
    x = np.random.default_rng(0).standard_normal((2, 16)).astype(np.float32)
    for inputs, told in (({"x": x}, True), ({"x": 1 + np.float32(1e-4) * x}, False)):
        found = reference.evaluate(network.model, inputs)
        (allowed,) = Allowances(network.model, inputs, found, {"y": 1e-7}, reference.evaluate)().values()
        assert np.isfinite(allowed.limit) == told, inputs


VANISHING = {
    "a saturated gate": (
        "a = Sigmoid (x) one = Constant <value_float = 1.0> () b = Sub (one, a) y = Mul (a, b)",
        "float[2,6] y",
    ),
    "a tail": ("a = Mul (x, x) b = Neg (a) y = Exp (b)", "float[2,6] y"),
    "a sequence of tails": ("a = Mul (x, x) b = Neg (a) c = Exp (b) y = SequenceConstruct (c, c)", "seq(float[2,6]) y"),
}


@pytest.mark.parametrize("name", VANISHING)
def test_an_output_that_vanishes_may_be_zero(name: str, tmp_path: Path) -> None:
    text, output = VANISHING[name]
    network = graph(text, "float[2,6] x", output)
    found = varied(network, tmp_path)
    one = found["saturated"]
    (wanted,) = load_values(one.expected, ["y"]).values()
    members = wanted if isinstance(wanted, list) else [wanted]
    assert 0 < max(np.abs(member).max() for member in members) < 1e-9
    flushed = [np.zeros_like(member) for member in members]
    assert judged(one, [flushed if isinstance(wanted, list) else flushed[0]], ["y"]) < 1e-9
    wrong = [member + 0.01 * one.sizes["y"] for member in members]
    assert judged(one, [wrong if isinstance(wanted, list) else wrong[0]], ["y"]) > 1e-3
