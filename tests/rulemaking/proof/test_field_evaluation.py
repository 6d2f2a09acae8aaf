"""The exact evaluator against float64, and ONNX's own definitions of operators by other operators, over its test suite."""

from __future__ import annotations

import functools
import re
import zlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from bricolage.conformance.suite import suite_cases as read
from bricolage.errors import NoReference
from bricolage.rulemaking.proof import Disproved, Proved, prove
from bricolage.rulemaking.proof.field import P, Q, ZeroDivisor
from bricolage.rulemaking.proof.field_evaluation import Givens, evaluate_over_field
from bricolage.rulemaking.proof.random_point import NotModelled, RandomPoint
from bricolage.rulemaking.proof.tensor import FieldTensor
from bricolage.verify.reference import evaluate as evaluate_float64
from tests.lowering.suite import Case, cases, host_inputs
from tests.rulemaking.proof.models import model

CRT = pow(P, -1, Q)


def as_array(value: object) -> np.ndarray | None:
    """A value of the suite; None where it is a sequence or an absent optional."""
    return np.asarray(value) if isinstance(value, (np.ndarray, np.generic)) else None


def rational(residue: int, modulus: int) -> float:
    """The fraction with the smallest terms that has this residue (Wang, 1981)."""
    low, high, a, b = residue, modulus, 1, 0
    while low * low * 2 > modulus:
        quotient = high // low
        low, high, a, b = high - quotient * low, low, b - quotient * a, a
    return low / a if a else float("nan")


def decoded(x: FieldTensor) -> np.ndarray:
    """The numbers of a tensor that was computed from known fractions, from both residues."""
    flat = x.values.reshape(len(x.values), -1).tolist()
    joined = [p + P * ((q - p) * CRT % Q) for p, q in zip(flat[0], flat[1], strict=True)]
    return np.asarray([rational(r, P * Q) for r in joined], np.float64).reshape(x.shape)


def inputs_of(case: Case, seed: int) -> dict[str, Any] | None:
    """The case's integers, truth values and scales, and small whole numbers in place of its other floating-point inputs."""
    generator = np.random.default_rng(seed)
    stored = [as_array(x) for x in case.inputs]
    if any(x is None or x.dtype.kind not in "biuf" for x in stored):
        return None
    graph = ir.from_proto(case.model).graph
    kept = host_inputs(graph, dict(graph.opset_imports))
    return {
        value.name or "": generator.integers(-4, 5, size=x.shape).astype(x.dtype)
        if x.dtype.kind == "f" and value.name not in kept
        else x
        for value, x in zip(graph.inputs, stored, strict=False)
    }


def compare(case: Case) -> str:
    """`equal`, or why there is no comparison. Raises AssertionError where there is, and it fails."""
    made = ir.from_proto(case.model)
    inputs = inputs_of(case, zlib.crc32(case.name.encode()))
    if inputs is None:
        return "inputs that are no plain tensors"
    point = RandomPoint(0, 1)
    try:
        found = evaluate_over_field(made, point, Givens(values=inputs))
    except NotModelled as error:
        return str(error)
    except ZeroDivisor:
        return "a zero divisor"
    if point.functions or point.readings:
        return "not a rational function of its inputs"
    try:
        expected = evaluate_float64(made, inputs, library="onnx")
    except NoReference:
        return "no reference"
    for value, x in zip(made.graph.outputs, found, strict=True):
        y = np.asarray(expected[value.name or ""])
        assert x.shape == y.shape, f"{case.name}: {x.shape} instead of {y.shape}"
        if isinstance(x, FieldTensor):
            np.testing.assert_allclose(decoded(x), y, rtol=1e-5, atol=1e-5, err_msg=case.name)
        else:
            np.testing.assert_array_equal(x, y, err_msg=case.name)
    return "equal"


LEFT_OUT = re.compile(r"test_(hann|hamming|blackman)window.*|test_resize_.*cubic.*")
"""Windows, which the reference computes in float32, and fractions whose terms are longer than both moduli together."""


def compare_all(part: list[Case]) -> tuple[int, set[str]]:
    """How many cases are equal, and the operators in them."""
    equal, operators = 0, set()
    for case in part:
        if not LEFT_OUT.fullmatch(case.name) and compare(case) == "equal":
            equal += 1
            operators |= {node.op_type for node in case.model.graph.node}
    return equal, operators


SOME = {
    *(
        "Add",
        "Cast",
        "Concat",
        "Conv",
        "Div",
        "Einsum",
        "Expand",
        "Gather",
        "Gemm",
        "MatMul",
        "Mul",
        "Pad",
        "ReduceMean",
        "Slice",
    ),
    *("Softsign", "Clip", "HardSwish", "LayerNormalization", "MeanVarianceNormalization", "ReduceSumSquare", "Relu"),
}
"""Operators whose cases are made in tenths of a second; those of all take seconds."""


@functools.cache
def some() -> list[Case]:
    """Cases of some operators, every second one, with the definitions that ONNX gives."""
    return read(SOME, ("node",), expansions=True)


def test_a_part_of_the_suite_is_equal_to_float64() -> None:
    equal, operators = compare_all([case for case in some() if case.single][::2])
    assert equal >= 12 and len(operators) >= 10


@pytest.mark.slow
def test_the_whole_suite_is_equal_to_float64() -> None:
    equal, operators = compare_all(list(cases()))
    assert equal >= 450 and len(operators) >= 80


def expanded(suite: Sequence[Case]) -> list[tuple[Case, Case]]:
    """Operators beside the graphs of other operators by which ONNX defines them."""
    known = {case.name: case for case in suite}
    return [(known[case.defines], case) for case in suite if case.defines in known]


def prove_all(part: list[tuple[Case, Case]]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for case, definition in part:
        left, right = ir.from_proto(case.model), ir.from_proto(definition.model)
        stored = [as_array(x) for x in case.inputs]
        named = zip((value.name or "" for value in left.graph.inputs), stored, strict=False)
        values = {name: x for name, x in named if x is not None and x.dtype.kind in "iu"}
        verdict = prove(left, right, values=values)
        assert not isinstance(verdict, Disproved), f"{case.name}: {verdict.reason}"
        counts[type(verdict).__name__] += 1
    return counts


def test_a_part_of_the_definitions_is_proved() -> None:
    assert prove_all(expanded(some())[::4])[Proved.__name__] >= 10


@pytest.mark.slow
def test_most_definitions_are_proved_and_none_refuted() -> None:
    counts = prove_all(expanded(cases()))
    assert counts[Proved.__name__] >= 230


# --- single operators that the suite leaves out -----------------------------------------------------------------


BUILDS: dict[str, tuple[dict[str, Any], Any]] = {
    "conv 1d, groups, dilation": (
        {"x": (2, 4, 9), "w": (6, 2, 3)},
        lambda t, x, w: t.Conv(x, w, group=2, dilations=[2], pads=[1, 2], strides=[2]),
    ),
    "conv 3d": ({"x": (1, 2, 4, 3, 3), "w": (2, 2, 2, 3, 1)}, lambda t, x, w: t.Conv(x, w, pads=[1, 0, 0, 0, 1, 0])),
    "conv same lower": ({"x": (1, 2, 5, 6), "w": (3, 2, 2, 4)}, lambda t, x, w: t.Conv(x, w, auto_pad="SAME_LOWER")),
    "transposed conv, groups": (
        {"x": (1, 4, 3, 3), "w": (4, 3, 3, 2), "b": (6,)},
        lambda t, x, w, b: t.ConvTranspose(
            x, w, b, group=2, strides=[2, 3], pads=[1, 0, 0, 1], output_padding=[1, 0], dilations=[1, 2]
        ),
    ),
    "matmul of vectors": ({"x": (3,), "y": (2, 3, 4)}, lambda t, x, y: t.MatMul(x, y)),
    "matmul of batches": ({"x": (2, 1, 3, 4), "y": (5, 4, 2)}, lambda t, x, y: t.MatMul(x, y)),
    "einsum with a trace": ({"x": (3, 3, 2), "y": (2, 4)}, lambda t, x, y: t.Einsum(x, y, equation="iij,jk->k")),
    "einsum without an arrow": ({"x": (3, 2), "y": (2, 4)}, lambda t, x, y: t.Einsum(x, y, equation="zb,ba")),
    "average pool, ceil mode": (
        {"x": (1, 2, 6, 7)},
        lambda t, x: t.AveragePool(x, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1], ceil_mode=1),
    ),
    "reflect pad": ({"x": (3, 4)}, lambda t, x: t.Pad(x, t.ints(1, 2, 2, 1), mode="reflect")),
    "edge and negative pad": ({"x": (4, 5)}, lambda t, x: t.Pad(x, t.ints(-1, 2, 2, -1), mode="edge")),
    "reduce product": ({"x": (2, 3, 3)}, lambda t, x: t.ReduceProd(x, t.ints(0, 2), keepdims=0)),
    "power": ({"x": (3, 3)}, lambda t, x: t.Pow(x, 5.0)),
    "sum of a long axis": ({"x": (2, 5000)}, lambda t, x: t.ReduceSum(x, t.ints(1))),
    "triangle": ({"x": (4, 5)}, lambda t, x: t.Trilu(x, 1, upper=0)),
    "gather with negative indices": ({"x": (4, 3)}, lambda t, x: t.Gather(x, t.constant([[0, -1], [2, 1]]), axis=1)),
    "slices backwards": (
        {"x": (5, 6)},
        lambda t, x: t.Slice(x, t.ints(4, -1), t.ints(-9, 1), t.ints(0, 1), t.ints(-2, -1)),
    ),
    "shapes": (
        {"x": (4, 6)},
        lambda t, x: t.Reshape(x, t.Concat(t.ints(-1), t.Gather(t.Shape(x), t.ints(0)), axis=0)),
    ),
}


@pytest.mark.parametrize("name", BUILDS)
def test_an_operator_is_equal_to_float64(name: str) -> None:
    shapes, build = BUILDS[name]
    made = model(shapes, build)
    generator = np.random.default_rng(0)
    inputs = {k: generator.integers(-3, 4, size=s).astype(np.float32) for k, s in shapes.items()}
    point = RandomPoint(0, 1)
    (found,) = evaluate_over_field(made, point, Givens(values=inputs))
    assert not point.functions
    expected = evaluate_float64(made, inputs)["y0"]
    np.testing.assert_allclose(decoded(found), expected, rtol=1e-12)
    assert found.shape == expected.shape
