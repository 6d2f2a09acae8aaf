"""Small random models of kinds that other generators leave out: narrow and wide floats, 8-bit integers between quantising
pairs, and classical models."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ML = "ai.onnx.ml"
Model = tuple[onnx.ModelProto, dict[str, np.ndarray]]
"""With inputs by name."""


def convolutions(kind: int, rng: np.random.Generator) -> Model:
    """A few convolutions, a normalisation, pooling and a linear classifier, all of one float type."""
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    channels, size = int(rng.integers(1, 5)), int(rng.integers(5, 12))
    nodes, last, width = [], "x", channels
    weights: dict[str, np.ndarray] = {}
    for layer in range(int(rng.integers(1, 4))):
        wider = int(rng.integers(1, 7))
        weights[f"w{layer}"] = rng.standard_normal((wider, width, 3, 3)) * 0.3
        nodes.append(helper.make_node("Conv", [last, f"w{layer}"], [f"c{layer}"], pads=[1] * 4))
        nodes.append(helper.make_node(str(rng.choice(["Relu", "Tanh", "Sigmoid"])), [f"c{layer}"], [f"r{layer}"]))
        last, width = f"r{layer}", wider
    weights |= {"g": rng.random(width) + 0.5, "b": rng.standard_normal(width), "m": rng.standard_normal(width)}
    weights |= {"v": rng.random(width) + 0.5, "f": rng.standard_normal((width, 3))}
    nodes.append(helper.make_node("BatchNormalization", [last, "g", "b", "m", "v"], ["n"]))
    nodes.append(helper.make_node("GlobalAveragePool", ["n"], ["p"]))
    nodes.append(helper.make_node("Flatten", ["p"], ["l"]))
    nodes.append(helper.make_node("Gemm", ["l", "f"], ["y"]))
    x = rng.standard_normal((1, channels, size, size)).astype(dtype)
    return _model(nodes, {"x": x}, {"y": (kind, (1, 3))}, {name: w.astype(dtype) for name, w in weights.items()})


def products(kind: int, rng: np.random.Generator) -> Model:
    """A few linear layers with their normalisations and a softmax, all of one float type."""
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    rows, width = int(rng.integers(1, 5)), int(rng.integers(1, 9))
    x = rng.standard_normal((rows, width)).astype(dtype)
    nodes, last = [], "x"
    weights: dict[str, np.ndarray] = {}
    for layer in range(int(rng.integers(1, 4))):
        wider = int(rng.integers(2, 9))
        weights |= {f"w{layer}": rng.standard_normal((width, wider)), f"g{layer}": rng.random(wider) + 0.5}
        nodes.append(helper.make_node("MatMul", [last, f"w{layer}"], [f"m{layer}"]))
        nodes.append(helper.make_node("LayerNormalization", [f"m{layer}", f"g{layer}"], [f"n{layer}"]))
        nodes.append(helper.make_node(str(rng.choice(["Relu", "Tanh", "Sigmoid"])), [f"n{layer}"], [f"r{layer}"]))
        last, width = f"r{layer}", wider
    nodes.append(helper.make_node("Softmax", [last], ["y"]))
    return _model(nodes, {"x": x}, {"y": (kind, (rows, width))}, {name: w.astype(dtype) for name, w in weights.items()})


def quantised(rng: np.random.Generator) -> Model:
    """A linear layer whose input and weights pass through pairs of QuantizeLinear and DequantizeLinear, symmetric or not."""
    rows, inner, columns = (int(n) for n in rng.integers(1, 9, 3))
    symmetric = bool(rng.integers(2))
    kind = np.int8 if symmetric else np.uint8
    zero = kind(0 if symmetric else rng.integers(1, 255))
    weights: dict[str, np.ndarray] = {
        "s": np.asarray(rng.random() * 0.05 + 0.01, np.float32),
        "z": np.asarray(zero),
        "w": rng.integers(-127, 128, (inner, columns)).astype(np.int8),
        "ws": (rng.random(columns) * 0.02 + 1e-3).astype(np.float32),
        "wz": np.zeros(columns, np.int8),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=1),
        helper.make_node("MatMul", ["d", "wd"], ["m"]),
        helper.make_node("Relu", ["m"], ["y"]),
    ]
    x = rng.standard_normal((rows, inner)).astype(np.float32)
    return _model(nodes, {"x": x}, {"y": (TensorProto.FLOAT, (rows, columns))}, weights)


def trees(rng: np.random.Generator) -> Model:
    """A classifier of full binary trees behind a scaler, with integers or words as labels."""
    features, classes, count, rows = (int(n) for n in rng.integers((1, 2, 1, 1), (5, 5, 6, 7)))
    depth = int(rng.integers(1, 4))
    inner, every = 2**depth - 1, 2 ** (depth + 1) - 1
    leaves = [(tree, node) for tree in range(count) for node in range(inner, every)]
    nodes = [(tree, node, node >= inner) for tree in range(count) for node in range(every)]
    learnt = {
        "nodes_treeids": [tree for tree, _, _ in nodes],
        "nodes_nodeids": [node for _, node, _ in nodes],
        "nodes_featureids": [0 if leaf else int(rng.integers(features)) for _, _, leaf in nodes],
        "nodes_values": [0.0 if leaf else float(np.float32(rng.standard_normal())) for _, _, leaf in nodes],
        "nodes_modes": ["LEAF" if leaf else "BRANCH_LEQ" for _, _, leaf in nodes],
        "nodes_truenodeids": [0 if leaf else 2 * node + 1 for _, node, leaf in nodes],
        "nodes_falsenodeids": [0 if leaf else 2 * node + 2 for _, node, leaf in nodes],
        "class_treeids": [tree for tree, _ in leaves],
        "class_nodeids": [node for _, node in leaves],
        "class_ids": [number % classes for number in range(len(leaves))],
        "class_weights": [float(np.float32(rng.random())) for _ in leaves],
        "post_transform": str(rng.choice(["NONE", "SOFTMAX", "LOGISTIC"])),
    }
    words = bool(rng.integers(2))
    if words:
        learnt["classlabels_strings"] = [f"class {number}" for number in range(classes)]
    else:
        learnt["classlabels_int64s"] = list(range(classes))
    scale = {"offset": [float(v) for v in rng.standard_normal(features)], "scale": [1.0] * features}
    parts = [
        helper.make_node("Scaler", ["x"], ["s"], domain=ML, **scale),
        helper.make_node("TreeEnsembleClassifier", ["s"], ["label", "p"], domain=ML, **learnt),
    ]
    x = rng.standard_normal((rows, features)).astype(np.float32)
    label = TensorProto.STRING if words else TensorProto.INT64
    return _model(parts, {"x": x}, {"label": (label, (rows,)), "p": (TensorProto.FLOAT, (rows, classes))}, {})


KINDS: Mapping[str, Callable[[np.random.Generator], Model]] = {
    "float16 network": lambda rng: convolutions(TensorProto.FLOAT16, rng),
    "float64 network": lambda rng: products(TensorProto.DOUBLE, rng),
    "quantised layer": quantised,
    "trees": trees,
}
"""Makers of models by kind."""


def _model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, np.ndarray],
    outputs: Mapping[str, tuple[int, tuple[int, ...]]],
    weights: Mapping[str, np.ndarray],
) -> Model:
    graph = helper.make_graph(
        nodes,
        "kind",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in inputs.items()
        ],
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in outputs.items()],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(ML, 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), inputs
