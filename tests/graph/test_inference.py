"""Shapes that onnx infers wrongly come out right, wherever they are inferred."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bricolage.errors import InvalidGraph, StatedOtherwise
from bricolage.frontends import to_model
from bricolage.graph.extents import pool_size
from bricolage.graph.graph import describe
from bricolage.graph.inference import format_complaint, infer
from bricolage.graph.prepare import prepare
from bricolage.testing.validity import find_faults, make_session
from bricolage.verify.reference import evaluate
from tests.graph.models import parse

# Seven columns, windows of two, two apart, one column of padding behind: the fifth window would lie in the padding alone.
POOL = "kernel_shape=[2,2], strides=[2,2], pads=[0,0,1,1], ceil_mode=1"


def text(op: str, attributes: str, *, opset: int = 18, sizes: str = "1,2,8,8", out: str = "float[a,b,c,d]") -> str:
    return (
        f'<ir_version: 8, opset_import: ["" : {opset}]> t (float[{sizes}] x) => ({out} y) '
        f"{{ p={op}<{attributes}>(x) r=Relu(p) s=Shape(r) f=Identity(r) y=Reshape(f,s) }}"
    )


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize("opset", [18, 21, 22])
def test_a_window_in_the_padding_alone_is_none(op: str, opset: int) -> None:
    graph = prepare(to_model(ir.to_proto(parse(text(op, POOL, opset=opset)))), {})
    x = np.random.default_rng(0).standard_normal((1, 2, 8, 8)).astype(np.float32)
    assert [info.sizes for info in graph.outputs] == [(1, 2, 4, 4)]
    assert evaluate(graph.model, {"x": x})["y"].shape == (1, 2, 4, 4)


def test_a_transform_is_of_one_side_by_default() -> None:
    pytest.importorskip("onnxruntime")
    text = """<ir_version: 8, opset_import: ["" : 18]> t (float[1,128,1] x) => (float[1,15,9,2] y) {
        step = Constant<value_int=8>() length = Constant<value_int=16>() y = STFT(x, step, , length) }"""
    model = to_model(ir.to_proto(parse(text)))
    graph = prepare(model, {})
    assert [info.sizes for info in graph.outputs] == [(1, 15, 9, 2)]
    assert not find_faults(ir.to_proto(graph.model)) and not find_faults(ir.to_proto(model))


def test_symbolic_sizes_are_right_once_they_are_bound() -> None:
    model = to_model(ir.to_proto(parse(text("MaxPool", POOL, sizes="1,2,h,8"))))
    assert prepare(model, {"h": 8}).outputs[0].sizes == (1, 2, 4, 4)
    assert prepare(model, {"h": 9}).outputs[0].sizes == (1, 2, 5, 4)


def test_a_wrong_shape_in_the_file_is_corrected_with_all_that_rests_on_it() -> None:
    proto = ir.to_proto(parse(text("MaxPool", POOL)))
    import onnx

    wrong = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    stated = {value.name: [d.dim_value for d in value.type.tensor_type.shape.dim] for value in wrong.graph.value_info}
    assert stated["p"] == stated["r"] == [1, 2, 5, 5], "onnx infers it rightly now: the correction can go"
    graph = prepare(to_model(wrong), {})
    assert all(describe(value).sizes == (1, 2, 4, 4) for o in graph.operators for value in o.outputs)


@pytest.mark.parametrize(("opset", "size"), [(18, 7), (22, 8)])
def test_attributes_of_what_onnx_infers_rightly_are_as_they_were(opset: int, size: int) -> None:
    sizes = f"1,2,{size},{size}"
    graph = prepare(parse(text("MaxPool", POOL + ', auto_pad="NOTSET"', opset=opset, sizes=sizes)), {})
    node = next(operator.node for operator in graph.operators if operator.op_type == "MaxPool")
    assert node.attributes.get_int("ceil_mode", 0) == 1
    assert list(node.attributes.get_ints("pads", ())) == [0, 0, 1, 1]


axes = st.tuples(st.integers(5, 9), st.integers(1, 4), st.integers(1, 5), st.integers(0, 3), st.integers(0, 3))


@settings(max_examples=30, deadline=None)
@given(axes, axes, st.sampled_from(["MaxPool", "AveragePool", "LpPool"]), st.booleans())
def test_a_prepared_pool_is_valid_and_answers_as_it_did(
    rows: tuple[int, ...], columns: tuple[int, ...], op: str, counts: bool
) -> None:
    """Sizes, windows, strides, padding before and behind, along both axes."""
    pytest.importorskip("onnxruntime")
    (height, *high), (width, *wide) = rows, columns
    kernel, strides, *pads = (list(pair) for pair in zip(high, wide, strict=True))
    assume(all(pad < size for pad, size in zip((*pads[0], *pads[1]), kernel * 2, strict=True)))  # as ONNX Runtime wants
    attributes = f"kernel_shape={kernel}, strides={strides}, pads={pads[0] + pads[1]}, ceil_mode=1"
    if op == "AveragePool":
        attributes += f", count_include_pad={int(counts)}"
    model = parse(
        f"""<ir_version: 8, opset_import: ["" : 18]> t (float[1,2,{height},{width}] x) => (float[a,b,c,d] y) {{
        y = {op}<{attributes}>(x) }}"""
    )
    graph = prepare(to_model(ir.to_proto(model)), {})
    x = np.random.default_rng(0).standard_normal((1, 2, height, width)).astype(np.float32)
    (wanted,) = make_session(ir.to_proto(model)).run(None, {"x": x})
    (found,) = make_session(ir.to_proto(graph.model)).run(None, {"x": x})
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    node = next(operator.node for operator in graph.operators if operator.op_type == op)
    if not node.attributes.get_int("ceil_mode", 0) or not counts:
        assert not find_faults(ir.to_proto(graph.model))


def test_a_pool_in_a_branch() -> None:
    model = parse(
        f"""<ir_version: 8, opset_import: ["" : 18]> t (float[1,2,8,8] x, bool c) => (float[a,b,d,e] y) {{
        z = If<then_branch = g1 () => (float[q,r,s,u] v) {{ v = MaxPool<{POOL}>(x) }},
               else_branch = g2 () => (float[q2,r2,s2,u2] w) {{ w = AveragePool<{POOL}>(x) }}>(c)
        y = Relu(z) }}"""
    )
    assert prepare(model, {}).outputs[0].sizes == (1, 2, 4, 4)


@pytest.mark.skipif(
    find_spec("torch") is None, reason="ONNX's reference implementation cannot evaluate all of these pools"
)
@settings(deadline=None, max_examples=60)
@given(st.integers(1, 9), st.integers(1, 4), st.integers(1, 4), st.integers(1, 2), st.integers(0, 3), st.integers(0, 3))
def test_any_pool_has_as_many_windows_as_its_reference(
    size: int, k: int, stride: int, dilation: int, low: int, high: int
) -> None:
    low, high = min(low, k - 1), min(high, k - 1)
    if size + low + high < (k - 1) * dilation + 1:
        return
    attributes = f"kernel_shape=[{k}], strides=[{stride}], dilations=[{dilation}], pads=[{low},{high}], ceil_mode=1"
    graph = prepare(parse(text("MaxPool", attributes, sizes=f"1,1,{size}", out="float[a,b,c]")), {})
    windows = pool_size(size, k, stride, dilation, (low, high), ceil=True)
    if windows > 0:
        assert graph.outputs[0].sizes == (1, 1, windows)
        assert evaluate(graph.model, {"x": np.zeros((1, 1, size), np.float32)})["y"].shape == (1, 1, windows)


def test_values_that_are_not_what_the_model_states_are_named() -> None:
    stated = parse('<ir_version: 8, opset_import: ["" : 18]> t (float[2,3] x) => (int64[2,4] y) { y=NonZero(x) }')
    with pytest.raises(StatedOtherwise, match=r"'y' is stated to be \[2, 4\], and its values are \[2, 6\]"):
        evaluate(stated, {"x": np.ones((2, 3), np.float32)})
    stated.graph.outputs[0].shape, stated.graph.outputs[0].dtype = None, ir.DataType.FLOAT
    with pytest.raises(InvalidGraph, match="'y' is stated to be float32, and its values are int64"):
        evaluate(stated, {"x": np.ones((2, 3), np.float32)})


@pytest.mark.parametrize("made", ["r=Range(a,b,c)", "r=ConstantOfShape(n)", "e=Range(a,b,c) f=Neg(e) r=Sub(f,x)"])
def test_long_vectors_are_not_enumerated(made: str) -> None:
    """Onnx propagates sums and products of vectors element by element: of a trillion it would not come back."""
    known = {"a": np.float32(0), "b": np.float32(1 << 40), "c": np.float32(1), "n": np.array([1 << 40])}
    text = f'<ir_version: 8, opset_import: ["" : 18]> t (float[1] x) => (float[n] y) {{ {made} s=Add(x,r) y=Mul(s,s) }}'
    model = parse(text, **known)
    types = [node.op_type for node in model.graph]
    infer(model)
    assert [node.op_type for node in model.graph] == types
    assert describe(model.graph.outputs[0]).shape == (1 << 40,)


_VECTORS = """
import resource, sys
import onnx
from bricolage.frontends import to_model
resource.setrlimit(resource.RLIMIT_AS, (3 << 29, 3 << 29))
for line in sys.argv[1:]:
    text = '<ir_version: 8, opset_import: ["" : 18]> t (int64[2147483647] x, int64[3] i) => (int64[q] y) { ' + line + " }"
    to_model(onnx.parser.parse_model(text))
"""


def test_vectors_of_any_length_are_not_written_out() -> None:
    """2^31 - 1 elements, of which shape inference would keep each: in a process that may take 1.5 GiB."""
    lines = ["y = Concat<axis=0>(x, x)", "z = Neg(x) y = Slice(z, i, i)", "y = Gather(x, i)", "y = Cast<to=7>(x)"]
    ran = subprocess.run(
        [sys.executable, "-c", _VECTORS, *lines], capture_output=True, text=True, check=False, encoding="utf-8"
    )
    assert ran.returncode == 0, ran.stderr


def test_what_onnx_says_is_told_as_a_sentence() -> None:
    line = "[ShapeInferenceError] (op_type:Softmax, node name: s): [ShapeInferenceError] 'axis' must be in [-1, 0]."
    assert format_complaint(line) == "operator 's' (Softmax): 'axis' must be in [-1, 0]"
    line = "[TypeInferenceError] (op_type:Relu, node name: ): input typestr: T, has unsupported type: tensor(bool)"
    assert format_complaint(line) == "operator 'Relu' (Relu): its input (of type T) may not be tensor(bool)"
    line = "[TypeInferenceError] (op_type:Add, node name: a): A typestr: T, has unsupported type: tensor(complex64)"
    assert format_complaint(line) == "operator 'a' (Add): its A (of type T) may not be tensor(complex64)"
    assert format_complaint("[ShapeInferenceError] no more is known") == "no more is known"


def test_shapes_are_known_behind_operators_of_onnx_runtime() -> None:
    """One after another, with ONNX's own between them, and with symbolic sizes."""
    layers = " ".join(
        f"q{i} = com.microsoft.SkipLayerNormalization({x},{x},g) m{i} = MatMul(q{i},w) f{i} = com.microsoft.FastGelu(m{i})"
        for i, x in enumerate(["x", *(f"f{i}" for i in range(80))])
    )
    head = '<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]> t (float[b,s,4] x, float[4] g, float[4,4] w)'
    model = parse(f"{head} => (y) {{ {layers} r = Shape(f80) y = Reshape(f80,r) }}")
    infer(model)
    last = describe(model.graph.node(-2).inputs[0])
    assert last.dtype == ir.DataType.FLOAT and last.shape == ("b", "s", 4)
    assert prepare(model, {"b": 2, "s": 3}).outputs[0].sizes == (2, 3, 4)


def test_what_onnx_runtime_has_in_onnx_own_domain_is_taken() -> None:
    text = """<ir_version: 9, opset_import: ["" : 18]> t (float[2,4] x, float[4] g) => (float[2,4] y)
        { n = SimplifiedLayerNormalization<axis=-1, epsilon=0.0>(x,g) y = Relu(n) }"""
    graph = prepare(to_model(ir.to_proto(parse(text))), {})
    assert [describe(value).sizes for operator in graph.operators for value in operator.outputs] == [(2, 4), (2, 4)]
    pytest.importorskip("torch")  # which the reference computes it with
    x = np.float32([[1, -1, 1, -1], [3, 3, 3, 3]])
    assert evaluate(graph.model, {"x": x, "g": np.ones(4, np.float32)})["y"].tolist() == [[1, 0, 1, 0], [1, 1, 1, 1]]


def test_sequences_keep_their_type_where_stated_shapes_are_looked_at() -> None:
    text = """<ir_version: 9, opset_import: ["" : 18]> t (float[4,2] x) => (float[2,2] y)
        { n = Constant<value_int=2>() s = SplitToSequence<axis=0>(x,n) i = Constant<value_int=1>() y = SequenceAt(s,i) }"""
    graph = prepare(to_model(ir.to_proto(parse(text))), {})
    assert [info.sizes for info in graph.outputs] == [(2, 2)]


@pytest.mark.parametrize("kind", ["float", "float16", "double", "bfloat16"])
def test_a_group_normalisation_of_any_type_has_the_shape_of_its_input(kind: str) -> None:
    text = f"""<ir_version: 10, opset_import: ["" : 21]> t ({kind}[2,4,3] x, {kind}[4] s, {kind}[4] b) => ({kind}[n,c,w] y) {{
        y = GroupNormalization<num_groups=2>(x, s, b) }}"""
    graph = prepare(to_model(ir.to_proto(parse(text))), {})
    assert graph.outputs[0].sizes == (2, 4, 3)
