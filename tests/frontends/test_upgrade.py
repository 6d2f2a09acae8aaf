"""Models of old opsets compute the same after the upgrade, and no operator that needs a rule lacks one."""

from __future__ import annotations

import itertools
from collections import defaultdict

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from bricolage.errors import BricolageError, OpsetOutOfReach, UnsupportedOpset
from bricolage.frontends import to_model
from bricolage.frontends.clean import raise_opset
from bricolage.frontends.upgrade import RULES, TARGET

ort = pytest.importorskip("onnxruntime")

F, I64 = TensorProto.FLOAT, TensorProto.INT64
X4 = (1, 2, 6, 6)


def build(opset: int, nodes: list, inputs: dict, initializers: dict | None = None, outputs: int = 1) -> onnx.ModelProto:
    """A model whose last node gives `y`; `inputs` maps names to shapes."""
    names = list(nodes[-1].output[:outputs])
    constants = [onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in (initializers or {}).items()]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, F, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, F, None) for name in names],
        initializer=constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=7)
    return onnx.shape_inference.infer_shapes(model)


def run(model: onnx.ModelProto, feeds: dict) -> list:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(None, feeds)


def node(op_type: str, inputs: list, **attributes) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs, ["y", "indices"] if op_type == "TopK" else ["y"], **attributes)


CHANNELS = {name: np.linspace(0.5, 1.5, 2, dtype=np.float32) for name in ("scale", "bias", "mean", "var")}

CASES = {
    "upsample-7-nearest": (7, node("Upsample", ["x"], scales=[1.0, 1.0, 2.0, 3.0]), X4, {}),
    "upsample-8-linear": (8, node("Upsample", ["x"], scales=[1.0, 1.0, 2.0, 2.0], mode="linear"), X4, {}),
    "upsample-9": (9, node("Upsample", ["x", "s"]), X4, {"s": np.float32([1, 1, 2, 2])}),
    "batchnorm-7": (7, node("BatchNormalization", ["x", *CHANNELS], epsilon=1e-3), X4, CHANNELS),
    "batchnorm-8-spatial": (8, node("BatchNormalization", ["x", *CHANNELS], spatial=1), X4, CHANNELS),
    "slice-1": (7, node("Slice", ["x"], starts=[1, 0], ends=[5, -1], axes=[2, 3]), X4, {}),
    "slice-1-no-axes": (9, node("Slice", ["x"], starts=[0, 1], ends=[1, 2]), X4, {}),
    "topk-1": (9, node("TopK", ["x"], k=3, axis=1), (4, 6), {}),
    "topk-10": (10, node("TopK", ["x", "k"]), (4, 6), {"k": np.int64([2])}),
    "dropout-7": (7, node("Dropout", ["x"], ratio=0.4), X4, {}),
    "dropout-10": (10, node("Dropout", ["x"]), X4, {}),
    "clip-6": (9, node("Clip", ["x"], min=-0.3, max=0.4), X4, {}),
    "clip-6-only-max": (10, node("Clip", ["x"], max=0.4), X4, {}),
    "pad-2": (7, node("Pad", ["x"], pads=[0, 0, 1, 2, 0, 0, 3, 0], value=1.5), X4, {}),
    "pad-2-reflect": (10, node("Pad", ["x"], pads=[0, 0, 1, 2, 0, 0, 3, 0], mode="reflect"), X4, {}),
    "resize-10-nearest-up": (10, node("Resize", ["x", "s"]), X4, {"s": np.float32([1, 1, 2.5, 2])}),
    "resize-10-nearest-down": (10, node("Resize", ["x", "s"]), X4, {"s": np.float32([1, 1, 0.5, 0.6])}),
    "resize-10-linear": (10, node("Resize", ["x", "s"], mode="linear"), X4, {"s": np.float32([1, 1, 1.5, 2])}),
    "resize-11-sizes": (
        11,
        node("Resize", ["x", "e", "e", "n"], mode="linear"),
        X4,
        {"e": np.float32([]), "n": np.int64([1, 2, 9, 9])},
    ),
    "resize-11-scales": (11, node("Resize", ["x", "e", "s"]), X4, {"e": np.float32([]), "s": np.float32([1, 1, 2, 2])}),
    "scatter-9": (9, node("Scatter", ["x", "i", "u"]), (3, 2), {"i": np.int64([[1, 0]]), "u": np.float32([[7, 8]])}),
    "squeeze-11": (11, node("Squeeze", ["x"], axes=[0, 2]), (1, 3, 1, 4), {}),
    "squeeze-1-all": (9, node("Squeeze", ["x"]), (1, 3, 1, 4), {}),
    "unsqueeze-11": (11, node("Unsqueeze", ["x"], axes=[0, -1]), (3, 4), {}),
    "reducesum-11": (11, node("ReduceSum", ["x"], axes=[1, -1], keepdims=0), X4, {}),
    "reducesum-all": (12, node("ReduceSum", ["x"]), X4, {}),
    "reducemean-13": (13, node("ReduceMean", ["x"], axes=[2, 3]), X4, {}),
    "reducel2-11": (11, node("ReduceL2", ["x"], axes=[-1]), X4, {}),
    "reducelogsumexp-17": (17, node("ReduceLogSumExp", ["x"], axes=[0, 1]), X4, {}),
    "reduceprod-9": (9, node("ReduceProd", ["x"], axes=[1]), (2, 3), {}),
    "softmax-11-middle": (11, node("Softmax", ["x"], axis=1), (2, 3, 4), {}),
    "softmax-11-last": (11, node("Softmax", ["x"], axis=-1), (2, 3, 4), {}),
    "softmax-7-default": (7, node("Softmax", ["x"]), (2, 3, 4), {}),
    "softmax-7-ones": (7, node("Softmax", ["x"]), (2, 3, 1, 1), {}),
    "softmax-9-symbolic": (9, node("Softmax", ["x"]), ("n", 3, "m"), {}),
    "logsoftmax-12": (12, node("LogSoftmax", ["x"], axis=0), (2, 3, 4), {}),
    "hardmax-11": (11, node("Hardmax", ["x"]), (2, 3, 4), {}),
    "reshape-5": (7, node("Reshape", ["x", "s"]), X4, {"s": np.int64([0, -1])}),
    "flatten-7": (7, node("Flatten", ["x"], axis=2), X4, {}),
    "roialign-10": (
        10,
        node("RoiAlign", ["x", "r", "b"], output_height=2, output_width=2, spatial_scale=0.7),
        X4,
        {"r": np.float32([[0, 0, 4, 5]]), "b": np.int64([0])},
    ),
    "maxpool-8": (8, node("MaxPool", ["x"], kernel_shape=[2, 2], strides=[2, 2]), X4, {}),
    "averagepool-7": (7, node("AveragePool", ["x"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]), X4, {}),
    "prelu-7": (7, node("PRelu", ["x", "s"]), X4, {"s": np.float32([[[0.1]], [[0.2]]])}),
    "gemm-7": (7, node("Gemm", ["x", "w", "b"]), (2, 3), {"w": np.ones((3, 4), np.float32), "b": np.float32([1.0])}),
    "depthtospace-1": (9, node("DepthToSpace", ["x"], blocksize=2), (1, 8, 2, 2), {}),
    "pow-7": (7, node("Pow", ["x", "e"]), (2, 3), {"e": np.float32(2)}),
}


@pytest.mark.parametrize("name", CASES)
def test_upgraded_model_computes_the_same(name: str) -> None:
    opset, last, shape, constants = CASES[name]
    old = build(opset, [last], {"x": shape}, constants)
    model = to_model(old)
    assert model.graph.opset_imports[""] == TARGET
    assert [value.name for value in model.graph.outputs] == ["y"]
    x = np.random.default_rng(0).standard_normal([d if isinstance(d, int) else 5 for d in shape]).astype(np.float32)
    expected, found = run(old, {"x": x}), run(ir.to_proto(model), {"x": x})
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("opset", "attributes"), [(11, {"split": [2, 4]}), (11, {}), (13, {})])
def test_split(opset: int, attributes: dict) -> None:
    last = helper.make_node("Split", ["x"], ["y", "z"], axis=1, **attributes)
    old = build(opset, [last], {"x": (2, 6)}, outputs=2)
    model = to_model(old)
    assert model.graph.opset_imports[""] == TARGET
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    for a, b in zip(run(old, {"x": x}), run(ir.to_proto(model), {"x": x}), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
def test_recurrent(op_type: str) -> None:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op_type]
    rng = np.random.default_rng(1)
    constants = {
        "w": rng.standard_normal((1, gates * 4, 3)).astype(np.float32),
        "r": rng.standard_normal((1, gates * 4, 4)).astype(np.float32),
    }
    old = build(7, [helper.make_node(op_type, ["x", "w", "r"], ["y"], hidden_size=4)], {"x": (5, 2, 3)}, constants)
    x = rng.standard_normal((5, 2, 3)).astype(np.float32)
    np.testing.assert_allclose(run(ir.to_proto(to_model(old)), {"x": x})[0], run(old, {"x": x})[0], rtol=1e-6)


def test_a_graph_output_in_the_middle_of_a_rewritten_softmax_keeps_its_name() -> None:
    nodes = [
        helper.make_node("Softmax", ["x"], ["probabilities"], axis=1),
        helper.make_node("Relu", ["probabilities"], ["y"]),
    ]
    old = build(11, nodes, {"x": (2, 3, 4)})
    old.graph.output.append(helper.make_tensor_value_info("probabilities", F, [2, 3, 4]))
    new = to_model(old)
    assert [value.name for value in new.graph.outputs] == ["y", "probabilities"]
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    for a, b in zip(run(old, {"x": x}), run(ir.to_proto(new), {"x": x}), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_control_flow_bodies_are_upgraded_too() -> None:
    y = helper.make_tensor_value_info("s", F, [2, 3, 4])
    then = helper.make_graph([helper.make_node("Softmax", ["x"], ["s"], axis=1)], "then", [], [y])
    other = helper.make_graph([helper.make_node("Clip", ["x"], ["s"], min=0.0, max=0.5)], "else", [], [y])
    for opset in (10, 11):
        if opset == 11:
            other = helper.make_graph([helper.make_node("Relu", ["x"], ["s"])], "else", [], [y])
        condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
        graph = helper.make_graph(
            [helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)],
            "g",
            [condition, helper.make_tensor_value_info("x", F, [2, 3, 4])],
            [helper.make_tensor_value_info("y", F, [2, 3, 4])],
        )
        old = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=7)
        new = to_model(old)
        assert new.graph.opset_imports[""] == TARGET
        x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
        for c in (True, False):
            feeds = {"x": x, "c": np.asarray(c)}
            np.testing.assert_allclose(run(ir.to_proto(new), feeds)[0], run(old, feeds)[0], rtol=1e-6)


BEFORE_7 = {
    "add-axis": (node("Add", ["x", "b"], broadcast=1, axis=1), lambda x: x + B[:, None, None]),
    "mul-negative-axis": (node("Mul", ["x", "b"], broadcast=1, axis=-3), lambda x: x * B[:, None, None]),
    "sub-last": (node("Sub", ["x", "c"], broadcast=1), lambda x: x - C),
    "pow-number": (node("Pow", ["x", "e"], broadcast=1), lambda x: x**2),
    "div-same-shape": (node("Div", ["x", "d"]), lambda x: x / D),
    "prelu-channels": (node("PRelu", ["x", "b"]), lambda x: np.where(x < 0, x * B[:, None, None], x)),
    "prelu-number": (node("PRelu", ["x", "o"]), lambda x: np.where(x < 0, x * np.float32(0.3), x)),
    "batchnorm": (
        node("BatchNormalization", ["x", "b", "b", "b", "b"], is_test=1, epsilon=1e-3),
        lambda x: (x - B[:, None, None]) / np.sqrt(B[:, None, None] + 1e-3) * B[:, None, None] + B[:, None, None],
    ),
    "dropout": (node("Dropout", ["x"], is_test=1, ratio=0.3), lambda x: x),
    "upsample": (node("Upsample", ["x"], height_scale=2.0, width_scale=3.0), lambda x: x.repeat(2, 2).repeat(3, 3)),
}
B, C, D = np.float32([0.5, 1.5]), np.linspace(0, 1, 6, dtype=np.float32), np.full(X4, 4, np.float32)
CONSTANTS = {"b": B, "c": C, "d": D, "e": np.float32(2), "o": np.float32([0.3])}


@pytest.mark.parametrize("name", BEFORE_7)
def test_definitions_before_opset_7(name: str) -> None:
    """Against numpy: no runtime here has them any more."""
    last, exact = BEFORE_7[name]
    old = build(6, [last], {"x": X4}, {key: value for key, value in CONSTANTS.items() if key in last.input})
    model = to_model(old)
    assert model.graph.opset_imports[""] == TARGET
    x = np.random.default_rng(0).standard_normal(X4).astype(np.float32)
    np.testing.assert_allclose(run(ir.to_proto(model), {"x": x})[0], exact(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "last",
    [
        node("Dropout", ["x"]),
        node("BatchNormalization", ["x", "b", "b", "b", "b"]),
    ],
)
def test_training_before_opset_7_keeps_its_opset(last: onnx.NodeProto) -> None:
    constants = {key: value for key, value in CONSTANTS.items() if key in last.input}
    assert to_model(build(6, [last], {"x": X4}, constants)).graph.opset_imports[""] == 6


def test_what_cannot_be_translated_keeps_its_opset() -> None:
    old = build(7, [node("BatchNormalization", ["x", *CHANNELS], spatial=0)], {"x": (1, 2)}, CHANNELS)
    assert to_model(old).graph.opset_imports[""] == 7
    mask = build(7, [helper.make_node("Dropout", ["x"], ["y", "mask"])], {"x": (2, 2)}, outputs=2)
    assert to_model(mask).graph.opset_imports[""] == 7


def test_newer_models_stay_as_they_are() -> None:
    for opset in range(TARGET, onnx.defs.onnx_opset_version() + 1):
        assert to_model(build(opset, [node("Relu", ["x"])], {"x": (2,)})).graph.opset_imports[""] == opset


def test_every_incompatible_change_of_a_definition_has_a_rule() -> None:
    """From opset 6 on, an operator without a rule lost no attribute or input, changed no default, and what it
    gained is optional."""
    history: dict[str, dict[int, onnx.defs.OpSchema]] = defaultdict(dict)
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            history[schema.name][schema.since_version] = schema
    unruled = []
    for name, versions in history.items():
        ordered = sorted(versions)
        for before, after in itertools.pairwise(ordered):
            if after <= 6 or any(rule.to == after for rule in RULES.get(name, ())):
                continue
            old, new = versions[before], versions[after]
            lost = set(old.attributes) - set(new.attributes)
            required = {k for k, a in new.attributes.items() if a.required and k not in old.attributes}
            changed = {
                k
                for k, a in new.attributes.items()
                if k in old.attributes
                and (
                    a.default_value != old.attributes[k].default_value
                    or (a.required and not old.attributes[k].required)
                )
            }
            fewer = len(new.inputs) < len(old.inputs) or len(new.outputs) < len(old.outputs)
            if lost or required or changed or fewer or (new.deprecated and not old.deprecated):
                unruled.append((name, after))
    assert not unruled


def test_the_schema_test_sees_the_rules_it_guards() -> None:
    assert {rule.to for rule in RULES["Resize"]} == {11, 13}
    assert {rule.to for rule in RULES["Split"]} == {13, 18}


@pytest.mark.parametrize("opset", [1, 5, onnx.defs.onnx_opset_version() + 1, 999])
def test_opsets_outside_the_range_are_refused(opset: int) -> None:
    graph = helper.make_graph(
        [node("Relu", ["x"])],
        "g",
        [helper.make_tensor_value_info("x", F, [2])],
        [helper.make_tensor_value_info("y", F, [2])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    with pytest.raises(BricolageError, match=str(opset)):
        to_model(model)


@pytest.mark.parametrize(
    ("opset", "last", "shapes", "constants"),
    [
        (18, node("GridSample", ["x", "g"], mode="bicubic"), {"x": (1, 2, 6, 6), "g": (1, 3, 3, 2)}, {}),
        (18, node("DFT", ["x"], axis=2), {"x": (1, 4, 6, 1)}, {}),
        (17, node("DFT", ["x"]), {"x": (1, 4, 6, 1)}, {}),
        (11, node("AveragePool", ["x"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]), {"x": X4}, {}),
        (11, node("Softmax", ["x"], axis=1), {"x": (2, 3, 4)}, {}),
        (12, node("Pad", ["x", "p"]), {"x": (2, 3)}, {"p": np.int64([0, 1, 1, 0])}),
    ],
)
@pytest.mark.parametrize("target", [20, 23])
def test_raised_model_computes_the_same(
    opset: int, last: onnx.NodeProto, shapes: dict, constants: dict, target: int
) -> None:
    old = build(opset, [last], shapes, constants)
    model = to_model(old)
    raise_opset(model, target)
    assert model.graph.opset_imports[""] == target
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    rng = np.random.default_rng(0)
    feeds = {name: rng.uniform(-1, 1, shape).astype(np.float32) for name, shape in shapes.items()}
    for a, b in zip(run(old, feeds), run(ir.to_proto(model), feeds), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6)


def test_raising_stops_where_an_operator_means_something_else() -> None:
    model = to_model(build(7, [node("BatchNormalization", ["x", *CHANNELS], spatial=0)], {"x": (1, 2)}, CHANNELS))
    with pytest.raises(OpsetOutOfReach, match=r"opset 23.*BatchNormalization"):
        raise_opset(model, 23)
    assert model.graph.opset_imports[""] == 7
    new = to_model(build(20, [node("Relu", ["x"])], {"x": (2,)}))
    raise_opset(new, 18)
    assert new.graph.opset_imports[""] == 20, "an opset is never lowered"
    with pytest.raises(UnsupportedOpset):
        raise_opset(new, 999)
