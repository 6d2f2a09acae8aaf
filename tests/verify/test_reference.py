"""The float64 reference against other evaluators, with and without torch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from bricolage.errors import InvalidGraph, NoReference
from bricolage.frontends import to_model
from bricolage.verify import reference
from bricolage.verify.compare import relative_error
from bricolage.verify.inputs import draw_inputs
from bricolage.verify.reference import Evaluator, Library, evaluate
from tests.verify.models import BOOL, I64, F, bert_like, convolutional, looping, make

ort = pytest.importorskip("onnxruntime")

LIBRARIES: tuple[Library, ...] = ("torch", "onnx")
MODELS: dict[str, Callable[[], ir.Model]] = {"conv": convolutional, "bert": bert_like, "loop": looping}


def float32(model: ir.Model, inputs: dict) -> list:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(ir.to_proto(model).SerializeToString(), options).run(None, inputs)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", MODELS)
def test_close_to_float32_runtimes_but_not_equal(name: str, library: Library) -> None:
    model = MODELS[name]()
    inputs = draw_inputs(model)
    found = evaluate(model, inputs, library=library)
    assert list(found) == ["y"] and found["y"].dtype == np.float64
    for other in (float32(model, inputs), ReferenceEvaluator(ir.to_proto(model)).run(None, inputs)):
        assert 0 < relative_error(other, [found["y"]]) < 1e-5


@pytest.mark.parametrize("name", MODELS)
def test_both_libraries_agree_to_float64(name: str) -> None:
    model = MODELS[name]()
    inputs = draw_inputs(model)
    one, two = (evaluate(model, inputs, library=library)["y"] for library in LIBRARIES)
    assert relative_error([one], [two]) < 1e-12  # epsilon of BatchNormalization is a float32 number in one of them


def test_the_convolutional_model_by_hand() -> None:
    """An independent float64 computation of one output pixel before pooling."""
    model = convolutional()
    x = draw_inputs(model)["x"]
    kept = evaluate(model, {"x": x}, keep=["c"])["c"]
    w = model.graph.initializers["w"].const_value.numpy().astype(np.float64)
    expected = np.einsum("nchw,ochw->no", x[:, :, 2:5, 3:6].astype(np.float64), w)
    np.testing.assert_allclose(kept[:, :, 3, 4], expected, rtol=1e-13)


@pytest.mark.parametrize("library", LIBRARIES)
def test_intermediates_are_kept(library: Library) -> None:
    model = convolutional()
    inputs = draw_inputs(model)
    found = evaluate(model, inputs, keep=["r", "logits", "x"], library=library)
    assert list(found) == ["y", "r", "logits", "x"]
    softmax = np.exp(found["logits"] - found["logits"].max(-1, keepdims=True))
    np.testing.assert_allclose(found["y"], softmax / softmax.sum(-1, keepdims=True), rtol=1e-12)
    assert (found["r"] >= 0).all() and found["r"].shape == (2, 4, 8, 8)
    with pytest.raises(NoReference, match="nothing_of_that_name"):
        evaluate(model, inputs, keep=["nothing_of_that_name"])


@pytest.mark.parametrize("library", LIBRARIES)
def test_casts_and_constants_are_widened(library: Library) -> None:
    """1 + 1e-12 is 1 in float32: it survives only if nothing on the way is narrowed."""
    nodes = [
        helper.make_node("Constant", [], ["tiny"], value_float=1e-12),
        helper.make_node("ConstantOfShape", ["shape"], ["ones"], value=helper.make_tensor("one", F, [1], [1.0])),
        helper.make_node("Cast", ["n"], ["zeros"], to=F),
        helper.make_node("Sum", ["ones", "tiny", "zeros"], ["sum"]),
        helper.make_node("Cast", ["sum"], ["y"], to=TensorProto.FLOAT16),
    ]
    model = make(nodes, {"n": (I64, [3])}, {"y": (TensorProto.FLOAT16, [3])}, {"shape": np.int64([3])})
    found = evaluate(model, {"n": np.zeros(3, np.int64)}, library=library)["y"]
    assert found.dtype == np.float64
    np.testing.assert_allclose(found - 1.0, 1e-12, rtol=1e-3)


def test_operators_that_torch_does_not_know_run_between_stretches() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("SequenceConstruct", ["h", "x"], ["q"]),
        helper.make_node("ConcatFromSequence", ["q"], ["c"], axis=1),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    w = np.random.default_rng(0).standard_normal((3, 3)).astype(np.float32)
    model = make(nodes, {"x": (F, [2, 3])}, {"y": (F, [2, 6])}, {"w": w})
    evaluator = Evaluator(model)
    inputs = draw_inputs(model)
    x = inputs["x"].astype(np.float64)
    for _ in range(2):  # the second call uses what the first prepared
        found = evaluator(inputs)["y"]
        np.testing.assert_allclose(found, np.maximum(np.concatenate([x @ w.astype(np.float64), x], 1), 0), rtol=1e-13)


@pytest.mark.parametrize("library", LIBRARIES)
def test_inputs_and_constants_may_be_outputs(library: Library) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Identity", ["k"], ["z"])]
    model = make(nodes, {"x": (F, [2])}, {"y": (F, [2]), "z": (F, [2])}, {"k": np.float32([1, 2])})
    found = evaluate(model, {"x": np.float32([-1, 3])}, library=library)
    np.testing.assert_array_equal(found["y"], [0, 3])
    np.testing.assert_array_equal(found["z"], [1, 2])


@pytest.mark.parametrize("library", LIBRARIES)
def test_omitted_outputs_and_several_types(library: Library) -> None:
    nodes = [
        helper.make_node("TopK", ["x", "k"], ["values", "indices"]),
        helper.make_node("MaxPool", ["image"], ["pooled", ""], kernel_shape=[2]),
        helper.make_node("Greater", ["x", "zero"], ["positive"]),
        helper.make_node("Gather", ["table", "indices"], ["picked"]),
    ]
    outputs = {"indices": (I64, [2]), "positive": (BOOL, [4]), "picked": (F, [2]), "pooled": (F, [1, 1, 3])}
    constants = {"k": np.int64([2]), "zero": np.float32(0), "table": np.arange(4, dtype=np.float32)}
    model = make(nodes, {"x": (F, [4]), "image": (F, [1, 1, 4])}, outputs, constants)
    x = np.float32([0.5, -1, 3, 2])
    found = evaluate(model, {"x": x, "image": x.reshape(1, 1, 4)}, library=library)
    assert found["indices"].tolist() == [2, 3] and found["positive"].tolist() == [True, False, True, True]
    assert found["picked"].tolist() == [2, 3] and found["pooled"].tolist() == [[[0.5, 3, 3]]]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("inputs", [["n", "", "x"], ["", "go", "x"]])
def test_loops_without_condition_or_count(library: Library, inputs: list[str]) -> None:
    """The body doubles while the sum is below 20."""
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node("Add", ["h", "h"], ["h2"]),
            helper.make_node("ReduceSum", ["h2"], ["s"], keepdims=0),
            helper.make_node("Less", ["s", "limit"], ["go2"]),
        ],
        "body",
        [info("i", I64, []), info("go1", BOOL, []), info("h", F, [2])],
        [info("go2", BOOL, []), info("h2", F, [2])],
    )
    constants = {"n": np.int64(50), "go": np.asarray(True), "limit": np.float32(20)}
    used = {name: value for name, value in constants.items() if name in (*inputs, "limit")}
    model = make([helper.make_node("Loop", inputs, ["y"], body=body)], {"x": (F, [2])}, {"y": (F, [2])}, used)
    feeds = {"x": np.float32([1, 2])}
    np.testing.assert_array_equal(evaluate(model, feeds, library=library)["y"], [8, 16])
    np.testing.assert_array_equal(float32(model, feeds)[0], [8, 16])


def test_a_value_that_torch_cannot_compute_sends_only_its_operator_to_onnx() -> None:
    """A failing stretch is halved until the operator at fault stands alone."""
    model = bert_like()
    inputs = draw_inputs(model)
    evaluator = Evaluator(model)
    expected = evaluator(inputs)["y"]
    stretches = evaluator._stretches
    first = stretches[0]
    assert len(first.nodes) == len(model.graph)

    def broken(*_: object) -> object:
        raise RuntimeError("no kernel")

    first.module = broken
    np.testing.assert_allclose(evaluator(inputs)["y"], expected, rtol=1e-13)
    assert [len(stretch.nodes) for stretch in evaluator._stretches] == [7, 7]


def test_the_thread_count_of_torch_is_restored() -> None:
    import torch

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        model = convolutional()
        evaluate(model, draw_inputs(model))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_no_reference() -> None:
    model = convolutional()
    with pytest.raises(NoReference, match="input 'x' is missing"):
        evaluate(model, {})
    node = helper.make_node("NhwcConv", ["x", "x"], ["y"], domain="com.microsoft", name="the_node")
    unknown = make([node], {"x": (F, [1, 2, 2, 1])}, {"y": (F, None)})
    for library in LIBRARIES:
        with pytest.raises(NoReference, match="the_node"):
            evaluate(unknown, draw_inputs(unknown), library=library)


def test_nothing_is_printed_where_another_library_takes_over(capfd: pytest.CaptureFixture[str]) -> None:
    """Torch finds the window larger than the image and fails; its module would print a trace of generated code."""
    pytest.importorskip("torch")
    text = (
        '<ir_version: 8, opset_import: ["" : 18]> t (float[1,1,2,2] x) => (float[a,b,c,d] y) '
        "{ p = MaxPool<kernel_shape=[3,3], strides=[2,2]>(x) y = Neg(p) }"
    )
    model = ir.from_proto(onnx.parser.parse_model(text))
    with contextlib.suppress(NoReference, InvalidGraph):
        evaluate(model, {"x": np.ones((1, 1, 2, 2), np.float32)})
    assert "Traceback" not in "".join(capfd.readouterr())


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("trips", [0, 2])
def test_a_loop_has_its_types_whatever_its_rounds(library: Library, trips: int) -> None:
    """Also where it has none: scan outputs are then empty, of the body's types and sizes."""
    text = """<ir_version: 8, opset_import: ["" : 18]> t (int64 n, float[2] x) => (float[2] y, int64[k] rounds, float[k,2] s) {
        yes = Constant<value = bool {1}>()
        y, rounds, s = Loop<body = b (int64 i, bool c, float[2] a) => (bool d, float[2] e, int64 j, float[2] t)
            { d = Identity(c) e = Add(a,a) j = Identity(i) t = Identity(a) }>(n,yes,x) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    found = evaluate(model, {"n": np.array(trips), "x": np.ones(2, np.float32)}, library=library)
    np.testing.assert_array_equal(found["y"], np.full(2, 2.0**trips))
    assert found["rounds"].dtype == np.int64 and found["rounds"].tolist() == list(range(trips))
    assert found["s"].dtype == np.float64 and found["s"].shape == (trips, 2)


@pytest.mark.parametrize("library", LIBRARIES)
def test_an_initialiser_that_is_an_input_is_a_default(library: Library) -> None:
    nodes = [helper.make_node("Mul", ["x", "k"], ["a"]), helper.make_node("Add", ["a", "k"], ["y"])]
    inputs = [helper.make_tensor_value_info(name, F, [2]) for name in ("x", "k")]
    constant = onnx.numpy_helper.from_array(np.float32([2, 3]), "k")
    outputs = [helper.make_tensor_value_info("y", F, [2])]
    proto = helper.make_model(helper.make_graph(nodes, "g", inputs, outputs, [constant]), ir_version=8)
    proto.opset_import[0].version = 18
    evaluator = Evaluator(ir.from_proto(proto), library=library)
    x = np.float32([5, 7])
    assert evaluator({"x": x})["y"].tolist() == [12.0, 24.0]
    assert evaluator({"x": x, "k": np.float32([1, 0])})["y"].tolist() == [6.0, 0.0]
    assert evaluator({"x": x})["y"].tolist() == [12.0, 24.0]


@pytest.mark.parametrize("kind", [TensorProto.INT4, TensorProto.UINT4])
@pytest.mark.parametrize("block", [0, 16])
def test_four_bits_are_exact(kind: int, block: int) -> None:
    """Weights of four bits, by columns or by blocks, and results rounded to four bits: those of a runtime to the last."""
    rng, low = np.random.default_rng(block), -8 if kind == TensorProto.INT4 else 0
    shape, spread = [32, 8], [2, 8] if block else [8]
    weights, zeros = (rng.integers(low, low + 16, sizes).reshape(-1).tolist() for sizes in (shape, spread))
    where = {"axis": 0, "block_size": block} if block else {"axis": 1}
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"], **where),
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("QuantizeLinear", ["m", "ys", "yz"], ["r"]),
        helper.make_node("DequantizeLinear", ["r", "ys", "yz"], ["y"]),
    ]
    constants = [
        helper.make_tensor("q", kind, shape, weights),
        helper.make_tensor("z", kind, spread, zeros),
        helper.make_tensor("yz", kind, [], [0]),
        onnx.numpy_helper.from_array(np.abs(rng.standard_normal(spread)).astype(np.float32), "s"),
        onnx.numpy_helper.from_array(np.float32(9), "ys"),
    ]
    inputs = [helper.make_tensor_value_info("x", F, [50, 32])]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("y", F, [50, 8])], constants)
    model = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    x = rng.standard_normal((50, 32)).astype(np.float32)
    assert relative_error(float32(model, {"x": x}), [evaluate(model, {"x": x})["y"]]) == 0.0


def test_a_model_with_many_weights_is_evaluated_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    model = bert_like()
    inputs = draw_inputs(model)
    whole = evaluate(model, inputs, library="torch")["y"]
    monkeypatch.setattr(reference, "_MOST_BYTES", 1 << 10)
    parts = Evaluator(model, library="torch")
    for _ in range(2):
        np.testing.assert_array_equal(parts(inputs)["y"], whole)
    assert len(parts._stretches) > 1 and all(part.module is None for part in parts._stretches)


@pytest.mark.parametrize("library", ["torch", "onnx"])
def test_strings_and_optionals_pass_through(library: Library) -> None:
    text = """<ir_version: 10, opset_import: ["": 20]> g (string[2] x, float[3] z) => (string[2] y, float[3] e) {
        w = Constant <value = string[1] {"_ü"}> () y = StringConcat (x, w) o = Optional (z) e = OptionalGetElement (o) }"""
    model = to_model(onnx.parser.parse_model(text))
    found = evaluate(model, {"x": np.array(["a", "b"], object), "z": np.float32([1, -2, 0.5])}, library=library)
    assert found["y"].tolist() == ["a_ü", "b_ü"]
    assert found["e"].tolist() == [1, -2, 0.5]
