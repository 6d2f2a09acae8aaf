"""Divisions by a scale that go into constants."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.native.ir.lowerings.in_steps import product_in_steps, sum_in_steps, without_relu
from bricolage.native.ir.lowerings.integers import numbers_of
from bricolage.native.ir.lowerings.views import pointwise
from bricolage.native.ir.tensors import Constant, Input, MatMul, Node, Pointwise

_SCALES = st.floats(1e-3, 1e3).map(np.float32)
_POINTS = st.integers(0, 255)
_ALL = np.arange(256, dtype=np.float32)


def constant(array: np.ndarray | np.float32) -> Constant:
    found = np.asarray(array, np.float32)
    return Constant(found.shape, "float32", found)


def number(node: Node) -> np.float32:
    assert isinstance(node, Constant)
    return np.float32(node.array.reshape(-1)[0])


def two(scales: tuple[np.float32, np.float32], zeros: tuple[int, int]) -> Node:
    terms = (
        numbers_of(Input((4,), "uint8", i), z, constant(s)) for i, (z, s) in enumerate(zip(zeros, scales, strict=True))
    )
    return pointwise("add", *terms)


@given(scales=st.tuples(_SCALES, _SCALES), zeros=st.tuples(_POINTS, _POINTS), scale=_SCALES)
@settings(max_examples=60, deadline=None)
def test_sums_of_bytes_are_rounded_as_the_operator_rounds_them(
    scales: tuple[np.float32, np.float32], zeros: tuple[int, int], scale: np.float32
) -> None:
    found = sum_in_steps(two(scales, zeros), scale)
    if found is None:
        return
    assert isinstance(found, Pointwise) and found.function == "add"
    defined = [(_ALL - np.float32(z)) * s for z, s in zip(zeros, scales, strict=True)]
    right = np.rint((defined[0][:, None] + defined[1][None]) / scale)
    factors = [number(term.inputs[2]) for term in found.inputs if isinstance(term, Pointwise)]
    own = [(_ALL - np.float32(z)) * f for z, f in zip(zeros, factors, strict=True)]
    apart = np.abs(np.rint(own[0][:, None] + own[1][None]) - right)
    assert apart.max() <= 1 and apart.mean() < 1e-3


def test_sums_with_many_ties_are_divided() -> None:
    """Of one scale every other sum is a tie."""
    assert sum_in_steps(two((np.float32(0.3), np.float32(0.3)), (0, 7)), np.float32(0.6)) is None
    assert sum_in_steps(two((np.float32(0.3), np.float32(0.21)), (0, 7)), np.float32(0.6071)) is not None


def test_products_have_one_factor() -> None:
    sums = MatMul((2, 3), "int32", Input((2, 8), "uint8", 0), constant(np.ones((8, 3))))
    scaled = pointwise("mul", pointwise("cast", sums, dtype="float32"), constant(np.full(3, 0.5)))
    shifted = pointwise("relu", pointwise("add", scaled, constant(np.full(3, 3.0))))
    found = product_in_steps(without_relu(shifted), np.float32(4))
    assert isinstance(found, Pointwise) and number(found.inputs[1]) == 12
    inner = found.inputs[0]
    assert isinstance(inner, Pointwise) and number(inner.inputs[1]) == 2
    assert product_in_steps(shifted, np.float32(4)) is None  # the rectifier counts where zero is not the least byte
    assert product_in_steps(pointwise("mul", Input((3,), "float32", 0), constant(np.ones(3))), np.float32(4)) is None
