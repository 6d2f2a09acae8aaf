"""Operators that cannot be computed are told before anything runs, by their names; exit code 2."""

from __future__ import annotations

import numpy as np
import pytest

from bricolage.errors import InvalidGraph, TooLarge
from bricolage.graph.prepare import prepare
from tests.graph.models import parse

W = np.ones((4, 3, 3, 3), np.float32)
IMAGE = "float[1,3,8,8] x"
CASES = {
    "Softmax<axis=9>(x)": ("axis 9", "float[2,3] x", {}),
    "Transpose<perm=[0,0,5]>(x)": ("perm", "float[2,3,4] x", {}),
    "Conv<strides=[0,0]>(x,w)": ("strides", IMAGE, {"w": W}),
    "Conv<group=0>(x,w)": ("0 groups", IMAGE, {"w": W}),
    "Conv<group=2>(x,w)": ("in 2 groups", IMAGE, {"w": W}),
    "Conv<dilations=[9,9]>(x,w)": ("larger than", IMAGE, {"w": W}),
    "MaxPool<kernel_shape=[2,2], strides=[0,0]>(x)": ("strides", IMAGE, {}),
    "Reshape(x,s)": (r"24 elements, which do not fit \[5, 5\]", "float[2,3,4] x", {"s": np.array([5, 5])}),
    "Reshape (x,s)": (r"24 elements, which do not fit \[5, -1\]", "float[2,3,4] x", {"s": np.array([5, -1])}),
    "Gather(x,i)": ("the index 100 lies outside a dimension of 5", "float[5,3] x", {"i": np.array([0, 100])}),
    "Gather<axis=1>(x,i)": ("the index -4 lies outside a dimension of 3", "float[5,3] x", {"i": np.array([-4])}),
    "Concat<axis=7>(x,x)": ("axis", "float[5,3] x", {}),
    "ReduceSum(x,a)": ("axis", "float[5,3] x", {"a": np.array([7])}),
    "Squeeze(x,a)": ("must be 1", "float[5,3] x", {"a": np.array([0])}),
    "Expand(x,a)": ("dimensions", "float[5,3] x", {"a": np.array([2, 3])}),
    "Gemm(x,w)": ("mismatch", "float[5,3] x", {"w": np.ones((4, 4), np.float32)}),
    "Slice(x,a,b,a,b)": ("step", "float[5,3] x", {"a": np.array([0]), "b": np.array([0])}),
    "DepthToSpace<blocksize=3>(x)": ("blocks of 3", "float[1,4,5,5] x", {}),
    "LayerNormalization<axis=5>(x,s)": ("axis 5", "float[5,3] x", {"s": np.ones(3, np.float32)}),
    "InstanceNormalization(x,s,s)": ("4 channels", "float[1,4,5] x", {"s": np.ones(3, np.float32)}),
}


@pytest.mark.parametrize("call", CASES)
def test_an_operator_that_cannot_be_computed_is_named(call: str) -> None:
    words, inputs, known = CASES[call]
    model = parse(f'<ir_version: 8, opset_import: ["" : 18]> t ({inputs}) => (float[] y) {{ y = {call} }}', **known)
    model.graph.outputs[0].shape = None
    next(iter(model.graph)).name = "the_culprit"
    with pytest.raises(InvalidGraph, match=f"'the_culprit'.*{words}") as caught:
        prepare(model, {})
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("call", "inputs", "known"),
    [
        ("Reshape(x,s)", "float[2,3,4] x", {"s": np.array([0, -1])}),
        ("Reshape(x,s)", "float[2,0,4] x", {"s": np.array([0, 0, 7])}),
        ("Reshape<allowzero=1>(x,s)", "float[2,0,4] x", {"s": np.array([0, 7])}),
        ("Gather(x,i)", "float[5,3] x", {"i": np.array([-5, 4])}),
        ("Gather(x,i)", "float[5,3] x", {"i": np.zeros((0,), np.int64)}),
        ("Conv<group=3, pads=[1,1,1,1]>(x,w)", IMAGE, {"w": np.ones((6, 1, 3, 3), np.float32)}),
        ("Conv<pads=[1,1,1,1]>(x,w)", "float[0,3,8,8] x", {"w": W}),
        ("SpaceToDepth<blocksize=4>(x)", IMAGE, {}),
    ],
)
def test_what_can_be_computed_is_taken(call: str, inputs: str, known: dict[str, np.ndarray]) -> None:
    model = parse(f'<ir_version: 8, opset_import: ["" : 18]> t ({inputs}) => (float[] y) {{ y = {call} }}', **known)
    model.graph.outputs[0].shape = None
    assert len(prepare(model, {})) == 1


@pytest.mark.parametrize(
    ("body", "known"),
    [
        ("r = Range(a,b,c) \n y = Add(x,r)", {"a": np.float32(0), "b": np.float32(1 << 44), "c": np.float32(1)}),
        ("r = ConstantOfShape(s) \n y = Add(x,r)", {"s": np.array([1 << 22, 1 << 22])}),
    ],
)
def test_tensors_beyond_all_memory_are_named(body: str, known: dict[str, np.ndarray]) -> None:
    model = parse(f'<ir_version: 8, opset_import: ["" : 18]> t (float[1] x) => (float[] y) {{ {body} }}', **known)
    model.graph.outputs[0].shape = None
    with pytest.raises(TooLarge, match="'[ry]' is too large.*GB"):
        prepare(model, {})
