"""Small models for the verify layer."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

from bricolage.frontends import to_model

F, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def make(nodes: list, inputs: dict, outputs: dict, constants: dict | None = None, opset: int = 18) -> ir.Model:
    """`inputs` and `outputs` map names to (element type, shape)."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in outputs.items()],
        initializer=[onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in (constants or {}).items()],
    )
    domains = {node.domain for node in nodes} - {""}
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return to_model(helper.make_model(graph, opset_imports=imports, ir_version=8))


def convolutional() -> ir.Model:
    rng = np.random.default_rng(0)
    constants = {
        "w": rng.standard_normal((4, 3, 3, 3)).astype(np.float32),
        "s": np.float32([1, 2, 0.5, 1]),
        "b": np.float32([0, 1, -1, 0]),
        "m": np.float32([0.1, 0, 0, 0]),
        "v": np.float32([1, 1, 2, 1]),
        "f": rng.standard_normal((4, 5)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"]),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["flat"]),
        helper.make_node("MatMul", ["flat", "f"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["y"], axis=-1),
    ]
    return make(nodes, {"x": (F, [2, 3, 8, 8])}, {"y": (F, [2, 5])}, constants)


def bert_like(vocabulary: int = 50, positions: int = 6, sequence: int = 6) -> ir.Model:
    """Embeddings of ids, positions and segments, and a mask that is turned into large negative numbers."""
    rng = np.random.default_rng(0)
    constants = {
        "words": rng.standard_normal((vocabulary, 8)).astype(np.float32),
        "places": rng.standard_normal((positions, 8)).astype(np.float32),
        "segments": rng.standard_normal((2, 8)).astype(np.float32),
        "one": np.float32(1),
        "large": np.float32(-1e4),
        "axes": np.int64([1]),
    }
    nodes = [
        helper.make_node("Gather", ["words", "input_ids"], ["a"]),
        helper.make_node("Gather", ["places", "position_ids"], ["b"]),
        helper.make_node("Cast", ["token_type_ids"], ["types"], to=TensorProto.INT32),
        helper.make_node("Gather", ["segments", "types"], ["c"]),
        helper.make_node("Sum", ["a", "b", "c"], ["h"]),
        helper.make_node("Transpose", ["h"], ["ht"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["h", "ht"], ["scores"]),
        helper.make_node("Unsqueeze", ["attention_mask", "axes"], ["m1"]),
        helper.make_node("Cast", ["m1"], ["m2"], to=F),
        helper.make_node("Sub", ["one", "m2"], ["m3"]),
        helper.make_node("Mul", ["m3", "large"], ["m4"]),
        helper.make_node("Add", ["scores", "m4"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["weights"]),
        helper.make_node("MatMul", ["weights", "h"], ["y"]),
    ]
    shape = [2, sequence]
    names = ("input_ids", "position_ids", "token_type_ids", "attention_mask")
    return make(nodes, dict.fromkeys(names, (I64, shape)), {"y": (F, [2, sequence, 8])}, constants)


def looping() -> ir.Model:
    """h ← tanh(h · w) three times, and an If that halves large sums."""
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["h", "w"], ["hw"]),
            helper.make_node("Tanh", ["hw"], ["h2"]),
            helper.make_node("Identity", ["go"], ["go2"]),
        ],
        "body",
        [info("i", I64, []), info("go", BOOL, []), info("h", F, [2, 4])],
        [info("go2", BOOL, []), info("h2", F, [2, 4])],
    )
    then = helper.make_graph([helper.make_node("Mul", ["state", "half"], ["t"])], "then", [], [info("t", F, [2, 4])])
    other = helper.make_graph([helper.make_node("Identity", ["state"], ["e"])], "else", [], [info("e", F, [2, 4])])
    nodes = [
        helper.make_node("Loop", ["n", "yes", "x"], ["state"], body=body),
        helper.make_node("ReduceSum", ["state"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "half"], ["large"]),
        helper.make_node("If", ["large"], ["y"], then_branch=then, else_branch=other),
    ]
    w = np.random.default_rng(2).standard_normal((4, 4)).astype(np.float32)
    constants = {"n": np.int64(3), "yes": np.asarray(True), "w": w, "half": np.float32(0.5)}
    return make(nodes, {"x": (F, [2, 4])}, {"y": (F, [2, 4])}, constants)
