"""Ranges hold what the reference computes, whatever the operators, and say enough to show common indices right."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.graph.inference import infer
from bricolage.verify.reference import evaluate
from bricolage.verify.value_ranges import Ranges
from tests.graph.models import parse

CONSTANTS = {
    **{f"k{n}" if n >= 0 else f"m{-n}": np.array(n) for n in range(-9, 10)},
    "one": np.array([1]),
    "four": np.array([4]),
    "places": np.array([1, 0]),
    "pads": np.array([1, 0, 0, 1]),
    "half": np.array(0.5, np.float32),
    "top": np.array(4, np.float32),
}
STEPS = {
    "Add": "{y} = Add ({x}, {k})",
    "Sub": "{y} = Sub ({k}, {x})",
    "Mul": "{y} = Mul ({x}, {k})",
    "Div": "{y} = Div ({x}, {d})",
    "Mod": "{y} = Mod ({x}, {d})",
    "FMod": "{y} = Mod <fmod = 1> ({x}, {d})",
    "Neg": "{y} = Neg ({x})",
    "Abs": "{y} = Abs ({x})",
    "Min": "{y} = Min ({x}, {k})",
    "Max": "{y} = Max ({x}, {k})",
    "Clip": "{y} = Clip ({x}, m2, k3)",
    "Where": "{y}c = Less ({x}, {k}) {y} = Where ({y}c, {x}, {k})",
    "Sum": "{y} = Sum ({x}, {x}, {k})",
    "ReduceSum": "{y} = ReduceSum <keepdims = 1> ({x}, one)",
    "CumSum": "{y} = CumSum ({x}, one)",
    "Truth": "{y}b = Cast <to = 9> ({x}) {y} = Cast <to = 7> ({y}b)",
    "Byte": "{y}b = Cast <to = 3> ({x}) {y} = Cast <to = 7> ({y}b)",
    "Float": "{y}f = Cast <to = 1> ({x}) {y}h = Mul ({y}f, half) {y} = Cast <to = 7> ({y}h)",
    "Floor": "{y}f = Cast <to = 1> ({x}) {y}h = Mul ({y}f, half) {y}g = Floor ({y}h) {y} = Cast <to = 7> ({y}g)",
    "Transpose": "{y} = Transpose ({x})",
    "Concat": "{y}n = Neg ({x}) {y} = Concat <axis = 0> ({x}, {y}n)",
    "Slice": "{y}n = Concat <axis = 1> ({x}, {x}) {y} = Slice ({y}n, one, four, one)",
    "Gather": "{y}n = Concat <axis = 1> ({x}, {x}) {y} = Gather <axis = 1> ({y}n, places)",
    "ArgMax": "{y} = ArgMax <axis = 1, keepdims = 1> ({x})",
    "TopK": "{y}v, {y} = TopK <axis = 1> ({x}, one)",
    "NonZero": "{y}k = Max ({x}, k1) {y}z = NonZero ({y}k) {y} = Transpose ({y}z)",
    "Pad": "{y} = Pad ({x}, pads, {k})",
}


def network(body: str) -> ir.Model:
    made = parse(
        f'<ir_version: 8, opset_import: ["" : 18]> test (int64[2,3] x) => (int64[p,q] y) {{ {body} }}', **CONSTANTS
    )
    infer(made)
    return made


def chain(steps: list[tuple[str, int]]) -> ir.Model:
    x, text = "x", []
    for place, (kind, n) in enumerate(steps):
        y = "y" if place == len(steps) - 1 else f"v{place}"
        text.append(
            STEPS[kind].format(y=y, x=x, k=f"k{n}" if n >= 0 else f"m{-n}", d=f"k{n}" if n > 0 else f"m{1 - n}")
        )
        x = y
    return network(" ".join(text))


@given(
    st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(-5, 5)), min_size=1, max_size=5),
    st.lists(st.integers(-6, 6), min_size=6, max_size=6),
)
@settings(max_examples=150, deadline=None)
def test_what_is_computed_lies_in_its_range(steps: list[tuple[str, int]], numbers: list[int]) -> None:
    made, x = chain(steps), np.array(numbers, np.int64).reshape(2, 3)
    found = Ranges({"x": (float(x.min()), float(x.max()))}).of(made.graph.outputs[0])
    y = np.asarray(evaluate(made, {"x": x}, library="onnx")["y"])
    assert (found.low <= y).all() and (y <= found.high).all(), (found, y)


@pytest.mark.parametrize(
    ("text", "high"),
    [
        ("c = Greater (x, k2) b = Cast <to = 7> (c) s = CumSum (b, one) y = Mul (s, b)", 3),
        ("a = NonZero (x) y = Transpose (a)", [[1, 2]]),
        ("v, y = TopK <axis = 1> (x, one)", 2),
        ("f = Cast <to = 1> (x) g = Mul (f, f) h = Clip (g, half, top) y = Cast <to = 7> (h)", 4),
        ("a = NonZero (x) b = Transpose (a) y = Gather <axis = 1> (b, places)", [[2, 1]]),
    ],
)
def test_ranges_that_no_input_widens(text: str, high: object) -> None:
    found = Ranges({}).of(network(text).graph.outputs[0])
    assert (found.low == 0).all() or "Clip" in text
    np.testing.assert_array_equal(found.high.reshape(-1), np.asarray(high, np.float64).reshape(-1))
