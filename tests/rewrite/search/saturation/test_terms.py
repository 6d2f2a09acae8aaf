"""Operators as e-nodes, and what a class knows."""

from __future__ import annotations

import onnx_ir as ir
from hypothesis import given
from hypothesis import strategies as st

from bricolage.graph.graph import TensorInfo
from bricolage.rewrite.rule import Example
from bricolage.rewrite.search.saturation.terms import Encoder, ShapeAnalysis, fits

dimensions = st.lists(st.sampled_from([1, 2, 3, "N", "M", "?"]), min_size=2, max_size=2).map(tuple)
infos = st.builds(TensorInfo, st.just(""), st.sampled_from([None, ir.DataType.FLOAT]), st.none() | dimensions)


def encoded(example: Example) -> tuple[Encoder, dict[str, int]]:
    model = example.model()
    encoder = Encoder(model.graph.opset_imports)
    classes: dict[ir.Value, int] = {}
    encoder.nodes(list(model.graph), classes)
    return encoder, {value.name or "": number for value, number in classes.items()}


@given(infos, infos, infos)
def test_a_lattice(a: TensorInfo, b: TensorInfo, c: TensorInfo) -> None:
    join = ShapeAnalysis().join
    assert join(a, a) == a
    assert join(a, b) == join(b, a)
    assert join(join(a, b), c) == join(a, join(b, c))


@given(infos, infos)
def test_sizes_that_differ_do_not_fit(a: TensorInfo, b: TensorInfo) -> None:
    known = a.shape is not None and b.shape is not None
    differ = known and any(
        isinstance(x, int) and isinstance(y, int) and x != y for x, y in zip(a.shape or (), b.shape or (), strict=True)
    )
    assert fits(a, b) == (a.dtype == b.dtype and not differ)


def test_equal_operators_are_one_class() -> None:
    _, classes = encoded(
        Example("float[3,3] x", "a = Relu(x) b = Relu(x) c = Softmax<axis=0>(x) y = Softmax<axis=1>(x)")
    )
    assert classes["a"] == classes["b"] and classes["c"] != classes["y"]


def test_outputs_and_absent_inputs_are_told_apart() -> None:
    encoder, classes = encoded(
        Example("float[2,4] x", 'a, b = Split<axis=1, num_outputs=2>(x) c = Clip(x, l) y = Clip(x, "", l)', {"l": 0.5})
    )
    assert classes["a"] != classes["b"] and classes["c"] != classes["y"]
    assert encoder.egraph.data(classes["a"]) == TensorInfo("", ir.DataType.FLOAT, (2, 2))


def test_random_numbers_are_never_equal() -> None:
    _, classes = encoded(Example("float[3] x", "a = RandomNormalLike(x) b = RandomNormalLike(x) y = Add(a, b)"))
    assert classes["a"] != classes["b"]


def test_scalars_are_equal_by_value_weights_by_name() -> None:
    example = Example(
        "float[3] x",
        "a = Mul(x, c) b = Mul(x, d) e = Mul(x, v) y = Mul(x, w)",
        {"c": 2.0, "d": 2.0, "v": (3,), "w": (3,)},
    )
    _, classes = encoded(example)
    assert classes["a"] == classes["b"] and classes["e"] != classes["y"]
