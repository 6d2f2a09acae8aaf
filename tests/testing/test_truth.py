"""What is wrong with an answer is told, and what rounds otherwise is not."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from bricolage.errors import InvalidGraph
from bricolage.graph.inference import infer
from bricolage.testing import Truth
from tests.graph.models import parse

MODEL = """<ir_version: 10, opset_import: ["" : 18]> m (float[3,4] x) => (float[3,4] y, bool[3,4] b) {
    e = Exp (x)
    y = Tanh (e)
    b = Greater (x, x)
}"""


@pytest.fixture
def truth() -> Truth:
    return Truth(parse(MODEL), {"x": np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)})


def right(truth: Truth) -> dict[str, np.ndarray]:
    return {"y": truth.expected["y"].astype(np.float32), "b": truth.expected["b"]}


def what(truth: Truth, **changed: np.ndarray) -> list[tuple[str, str]]:
    return [(wrong.output, wrong.what) for wrong in truth.wrong({**right(truth), **changed})]


def test_the_right_answer_and_its_neighbours_are_right(truth: Truth) -> None:
    assert what(truth) == []
    assert what(truth, y=np.nextafter(right(truth)["y"], np.float32(2))) == []


def test_one_wrong_element_is_told(truth: Truth) -> None:
    y, b = (array.copy() for array in right(truth).values())
    y[1, 2] += np.float32(1e-3)
    b[0, 0] = True
    assert what(truth, y=y) == [("y", "value")]
    assert what(truth, b=b) == [("b", "value")]


def test_nan_and_infinity_are_values(truth: Truth) -> None:
    y = right(truth)["y"].copy()
    y[0, 0] = np.nan
    assert what(truth, y=y) == [("y", "value")]
    model = parse('<ir_version: 10, opset_import: ["" : 18]> m (float[2] x) => (float[2] y) { y = Log (x) }')
    special = Truth(model, {"x": np.asarray([-1, 0], np.float32)})
    assert special.wrong({"y": np.asarray([np.nan, -np.inf], np.float32)}) == []
    assert special.wrong({"y": np.asarray([np.nan, np.inf], np.float32)}) != []
    assert not special.finite


def test_types_shapes_and_absence_are_told(truth: Truth) -> None:
    y = right(truth)["y"]
    assert what(truth, y=y.astype(np.float64)) == [("y", "type")]
    assert what(truth, y=y.reshape(4, 3)) == [("y", "shape")]
    assert [wrong.what for wrong in truth.wrong({"y": y})] == ["missing"]


def test_a_declared_shape_that_does_not_hold_is_the_model_s_fault() -> None:
    model = parse('<ir_version: 10, opset_import: ["" : 18]> m (float[2,3] x) => (float[2,3] y) { y = Transpose (x) }')
    model.graph.outputs[0].shape = ir.Shape([2, 3])
    with pytest.raises(InvalidGraph, match="'y' is stated to be"):
        Truth(model, {"x": np.ones((2, 3), np.float32)}).disputed()


def test_a_slice_backwards_from_before_the_tensor_is_undisputed() -> None:
    """The definition gives the first element; onnx's own reference finds it empty, and is put right."""
    parameters = {name: np.asarray([value]) for name, value in (("s", -8), ("e", -9), ("a", 0), ("t", -1))}
    text = '<ir_version: 10, opset_import: ["" : 18]> m (float[5] x) => (float[1] y) { y = Slice (x, s, e, a, t) }'
    truth = Truth(parse(text, **parameters), {"x": np.arange(5, dtype=np.float32)})
    assert truth.disputed() == [] and truth.expected["y"].tolist() == [0.0]


def test_steps_amplify_no_more_than_the_model_itself() -> None:
    """An input that lies within rounding of a step: both sides of it are right, a third is not."""
    model = parse(
        '<ir_version: 10, opset_import: ["" : 18]> m (float[1] x, float[1] w) => (float[1] y) { p = Mul (x, w) y = Floor (p) }'
    )
    truth = Truth(model, {"x": np.asarray([10], np.float32), "w": np.asarray([0.1], np.float32)})
    assert truth.wrong({"y": np.asarray([1], np.float32)}) == []
    assert truth.wrong({"y": np.asarray([0], np.float32)}) == []
    assert truth.wrong({"y": np.asarray([40], np.float32)}) != []


def test_any_order_of_a_long_sum_is_right() -> None:
    """The sine of a sum of 2,000 terms: one after another they round to more than in pairs, as the libraries add."""
    model = parse(
        '<ir_version: 10, opset_import: ["" : 18]> m (float[2000] x) => (float[1] y) { s = ReduceSum (x) y = Sin (s) }'
    )
    infer(model)
    wrong, farther = 0, 0
    for seed in range(6):
        x = np.random.default_rng(seed).normal(size=2000).astype(np.float32)
        truth = Truth(model, {"x": x})
        one_after_another = np.sin(np.cumsum(x, dtype=np.float32)[-1:])
        wrong += bool(truth.wrong({"y": one_after_another}))
        farther += bool(truth.wrong({"y": np.sin(np.float32(1.0005) * x.sum(keepdims=True))}))
    assert wrong == 0 and farther == 6
