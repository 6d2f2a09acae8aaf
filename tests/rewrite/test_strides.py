"""The rules about pads, slices and strides on axes of any geometry: they apply where something of the input is left, and give what
taking the same positions one after another gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.rewrite.catalogue import find_rule
from bricolage.rewrite.engine.apply import apply_once
from bricolage.rewrite.rule import Example
from bricolage.verify.reference import evaluate
from tests.rewrite.checking import check_valid

Array = np.ndarray[Any, Any]
Cut = tuple[int, int, int]

positions = st.integers(-12, 12)
cuts = st.tuples(positions, positions, st.integers(1, 4))
"""Start, end and step of a Slice."""
pads = st.tuples(st.integers(-2, 4), st.integers(-2, 4))


def constants(name: str, cut: Cut, axis: int) -> dict[str, list[int]]:
    return {f"{name}{i}": [number] for i, number in enumerate((*cut[:2], axis, cut[2]))}


def operands(name: str) -> str:
    return ", ".join(f"{name}{i}" for i in range(4))


def padded(x: Array, pad: tuple[int, int], value: float) -> Array:
    """A vector with so many positions more (or less) at each end."""
    whole = np.concatenate([np.full(max(pad[0], 0), value), x, np.full(max(pad[1], 0), value)])
    return whole[max(-pad[0], 0) : len(whole) - max(-pad[1], 0)]


def check(rule: str, example: Example, applies: bool, data: Array, expected: Array) -> ir.Model:
    """The rule applies, or does not, and the model gives what is expected."""
    model = example.model()
    assert (apply_once(model, find_rule(rule)) is not None) == applies
    check_valid(model)
    (found,) = evaluate(model, {"x": data}).values()
    assert np.shape(found) == expected.shape and np.allclose(found, expected, rtol=1e-5)
    return model


@settings(max_examples=60, deadline=None)
@given(st.integers(5, 9), pads, cuts)
def test_what_a_slice_leaves_of_a_pad(size: int, pad: tuple[int, int], cut: Cut) -> None:
    x = np.arange(1.0, size + 1)
    expected = padded(x, pad, -1.0)[slice(*cut)]
    weights = {"p": list(pad), "v": -1.0, "d": [0], **constants("s", cut, 0)}
    example = Example(f"float[{size}] x", f"t = Pad(x, p, v, d) y = Slice(t, {operands('s')})", weights)
    model = check("slice-before-pad", example, bool((expected > 0).any()), x, expected)
    kept = [value for node in model.graph if node.op_type == "Slice" for value in node.outputs]
    if (expected > 0).any():
        assert all(value.shape == ((expected > 0).sum(),) for value in kept), (
            "nothing is cut off that was put on before"
        )


@settings(max_examples=60, deadline=None)
@given(st.integers(5, 12), cuts, cuts)
def test_slices_of_slices(size: int, inner: Cut, outer: Cut) -> None:
    x = np.arange(1.0, size + 1)
    weights = {**constants("i", inner, 0), **constants("o", outer, 0)}
    body = f"t = Slice(x, {operands('i')}) y = Slice(t, {operands('o')})"
    check("compose-slices", Example(f"float[{size}] x", body, weights), True, x, x[slice(*inner)][slice(*outer)])


@settings(max_examples=60, deadline=None)
@given(st.integers(5, 12), cuts, st.integers(2, 4), st.tuples(st.integers(0, 4), st.integers(0, 4)))
def test_strides_over_a_slice(size: int, cut: Cut, stride: int, pad: tuple[int, int]) -> None:
    x = np.arange(1.0, size + 1)
    read = padded(x[slice(*cut)], pad, 0.0)[::stride]
    if not len(x[slice(*cut)]):  # no convolution of nothing
        return
    attributes = f"strides=[{stride}], pads=[{pad[0]},{pad[1]}]"
    body = f"t = Slice(x, {operands('s')}) y = Conv<{attributes}>(t, w, b)"
    example = Example(f"float[1,1,{size}] x", body, {"w": [[[3.0]]], "b": [1.0], **constants("s", cut, 2)})
    model = check("stride-into-slice", example, bool(read.any()), x[None, None], 3 * read[None, None] + 1)
    if read.any():
        (conv,) = (node for node in model.graph if node.op_type == "Conv")
        assert tuple(conv.attributes.get_ints("strides") or ()) == (1,)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.integers(1, 4), st.integers(1, 4), st.sampled_from(["AveragePool", "MaxPool"]))
def test_strides_of_a_pool_of_one_place(size: int, first: int, second: int, pool: str) -> None:
    x = np.arange(1.0, size + 1)
    body = f"t = {pool}<kernel_shape=[1], strides=[{first}]>(x) y = Conv<strides=[{second}]>(t, w)"
    example = Example(f"float[1,1,{size}] x", body, {"w": [[[3.0]]]})
    check("pool-into-pointwise", example, True, x[None, None], 3 * x[None, None, ::first][..., ::second])
