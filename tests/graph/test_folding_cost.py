"""Folding has limits: for one operator, and for all of a model; what is beyond them stays as it is."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from bricolage.graph.constant_folding import fold
from bricolage.graph.folding_cost import MOST_STEPS, FoldingBudget, folding_steps
from bricolage.graph.inference import infer
from tests.graph.models import parse


def model(body: str, inputs: str = "float[1] x", **known: np.ndarray):
    made = parse(f'<ir_version: 8, opset_import: ["" : 18]> t ({inputs}) => (float[] y) {{ {body} }}', **known)
    made.graph.outputs[0].shape = None
    return made


GROWING = {
    "Range(a,b,c)": [np.float32(0), np.float32(1e12), np.float32(1)],
    "ConstantOfShape(a)": [np.array([1 << 20, 1 << 20])],
    "Expand(a,b)": [np.ones(1, np.float32), np.array([1 << 20, 1 << 20])],
    "Tile(a,b)": [np.ones((1, 1), np.float32), np.array([1 << 20, 1 << 20])],
    "Pad(a,b)": [np.ones((1, 1), np.float32), np.array([1 << 20, 1 << 20, 0, 0])],
    "OneHot(a,b,c)": [np.zeros(1 << 12, np.int64), np.array(1 << 30), np.array([0, 1], np.float32)],
    "Resize(a,,b)": [np.ones((1, 1, 4, 4), np.float32), np.array([1, 1, 1e5, 1e5], np.float32)],
}


@pytest.mark.parametrize("call", GROWING)
def test_results_that_grow_without_bound_are_not_computed(call: str) -> None:
    """Their shape is not even stated: what they are given says how large they are."""
    constants = GROWING[call]
    made = model(f"t = {call} \n y = Add(x,t)", **dict(zip("abc", constants, strict=False)))
    given = [None if value is None else value.const_value.numpy() for value in next(iter(made.graph)).inputs]
    assert folding_steps(next(iter(made.graph)), given) is None
    assert not fold(made)


def test_operators_that_take_python_loops_are_limited_by_their_size() -> None:
    small, large = (
        model(
            "t = Resize(a,,s) \n y = Add(x,t)",
            a=np.ones((1, 1, n, n), np.float32),
            s=np.array([1, 1, 2, 2], np.float32),
        )
        for n in (4, 400)
    )
    assert fold(small) and not fold(large)


def test_all_together_are_limited() -> None:
    body = "\n".join(
        [f"t{i} = Add(w{i},w{i})" for i in range(8)] + ["y = Sum(x," + ",".join(f"t{i}" for i in range(8)) + ")"]
    )
    weights = {f"w{i}": np.full(1000, i, np.float32) for i in range(8)}
    whole, partly = model(body, **weights), model(body, **weights)
    assert fold(whole) and len(whole.graph) == 1
    fold(partly, FoldingBudget(steps=3 * 3100))
    assert 1 < len(partly.graph) < 9


def test_usual_constants_are_far_from_the_limit() -> None:
    made = model("t = MatMul(a,a) \n y = Add(x,t)", a=np.ones((512, 512), np.float32))
    infer(made)
    steps = folding_steps(next(iter(made.graph)), [np.ones((512, 512), np.float32)] * 2)
    assert steps is not None and steps < MOST_STEPS / 50
    assert fold(made)


@pytest.mark.parametrize(("kind", "block"), [("int4", 0), ("int8", 2), ("int8", 0)])
def test_weights_of_few_bits_stay_integers(kind: str, block: int) -> None:
    """float32 would be 4 to 8 times as large; products read integers as they are."""
    scales = np.ones((2, 4) if block else (), np.float32)
    integers = np.ones((4, 4), np.int8 if kind == "int8" else ml_dtypes.int4)
    text = '<ir_version: 10, opset_import: ["" : 21]> t (float[4, 4] x) => (float[4, 4] y) '
    text += (
        f"{{ f = DequantizeLinear <axis = 0{f', block_size = {block}' if block else ''}> (q, s) y = MatMul (x, f) }}"
    )
    made = parse(text, q=integers, s=scales)
    infer(made)
    assert not fold(made)
    assert [node.op_type for node in made.graph] == ["DequantizeLinear", "MatMul"]
