"""Small random models of kinds that other generators leave out: narrow and wide floats, 8-bit integers between quantising
pairs, classical models and the maps that they return, text, sequences, loops that data ends, integers, operators of ONNX Runtime's
own, sizes that are stated wrongly, and inputs without a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ML, MICROSOFT = "ai.onnx.ml", "com.microsoft"
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


def build_quantised_layer(rng: np.random.Generator) -> Model:
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


def build_map_outputs(rng: np.random.Generator) -> Model:
    """The same, with a map for each row in the place of probabilities, and any number of rows."""
    model, inputs = trees(rng)
    labels = {attribute.name: helper.get_attribute_value(attribute) for attribute in model.graph.node[1].attribute}
    keys = {name: labels[name] for name in ("classlabels_strings", "classlabels_int64s") if name in labels}
    model.graph.node.append(helper.make_node("ZipMap", ["p"], ["z"], domain=ML, **keys))
    key = TensorProto.STRING if "classlabels_strings" in keys else TensorProto.INT64
    maps = helper.make_map_type_proto(key, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    model.graph.output[1].CopyFrom(helper.make_value_info("z", helper.make_sequence_type_proto(maps)))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "n"
    return model, inputs


def text(rng: np.random.Generator) -> Model:
    """Words, some of them unknown, to numbers, and numbers to words again."""
    vocabulary = [f"word {number}" for number in range(int(rng.integers(2, 6)))]
    numbers = {"keys_strings": vocabulary, "values_int64s": list(range(len(vocabulary))), "default_int64": -1}
    words = {"keys_int64s": list(range(len(vocabulary))), "values_strings": vocabulary, "default_string": "?"}
    nodes = [
        helper.make_node("LabelEncoder", ["x"], ["i"], domain=ML, **numbers),
        helper.make_node("Gather", ["e", "i"], ["y"]),
        helper.make_node("LabelEncoder", ["i"], ["w"], domain=ML, **words),
        helper.make_node("Concat", ["w", "x"], ["z"], axis=0),
    ]
    rows, width = int(rng.integers(1, 7)), int(rng.integers(1, 4))
    x = rng.choice(np.array([*vocabulary, "ünknown", ""], object), rows)
    outputs = {"y": (TensorProto.FLOAT, (rows, width)), "z": (TensorProto.STRING, (2 * rows,))}
    return _model(nodes, {"x": x}, outputs, {"e": rng.standard_normal((len(vocabulary), width)).astype(np.float32)})


def sequences(rng: np.random.Generator) -> Model:
    """A tensor in parts of unequal lengths, of which one is put in again and one may go."""
    parts, width = rng.integers(1, 4, int(rng.integers(2, 5))).astype(np.int64), int(rng.integers(1, 4))
    rows = int(parts.sum())
    nodes = [
        helper.make_node("SplitToSequence", ["x", "parts"], ["s0"], axis=0),
        helper.make_node("SequenceAt", ["s0", "at"], ["one"]),
        helper.make_node("Neg", ["one"], ["other"]),
        helper.make_node("SequenceInsert", ["s0", "other", "to"], ["s1"]),
        helper.make_node(*(("Identity", ["s1"], ["s"]) if rng.integers(2) else ("SequenceErase", ["s1", "at"], ["s"]))),
        helper.make_node("SequenceLength", ["s"], ["count"]),
        helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0),
    ]
    weights = {
        "parts": parts,
        "at": np.asarray(rng.integers(-len(parts), len(parts)), np.int64),
        "to": np.asarray(rng.integers(0, len(parts)), np.int64),
    }
    x = rng.standard_normal((rows, width)).astype(np.float32)
    outputs = {"count": (TensorProto.INT64, ()), "y": (TensorProto.FLOAT, None)}
    model, inputs = _model(nodes, {"x": x}, outputs, weights)
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    model.graph.output.append(helper.make_value_info("s", kind))
    return model, inputs


def loops(rng: np.random.Generator) -> Model:
    """A loop that ends when a sum is large enough, or after some rounds or none; each round goes one of two ways and
    is kept."""
    value = helper.make_tensor_value_info
    ways = [
        helper.make_graph(
            [helper.make_node(op, ["s", "x"], [f"r{op}"])], op, [], [value(f"r{op}", TensorProto.FLOAT, None)]
        )
        for op in rng.choice(["Add", "Sub", "Mul", "Max"], 2, replace=False)
    ]
    body = helper.make_graph(
        [
            helper.make_node("ReduceSum", ["s"], ["total"], keepdims=0),
            helper.make_node("Less", ["total", "middle"], ["low"]),
            helper.make_node("If", ["low"], ["next"], then_branch=ways[0], else_branch=ways[1]),
            helper.make_node("Less", ["total", "most"], ["again"]),
            helper.make_node("Identity", ["next"], ["kept"]),
        ],
        "body",
        [value("i", TensorProto.INT64, []), value("on", TensorProto.BOOL, []), value("s", TensorProto.FLOAT, None)],
        [
            value("again", TensorProto.BOOL, []),
            value("next", TensorProto.FLOAT, None),
            value("kept", TensorProto.FLOAT, None),
        ],
    )
    nodes = [helper.make_node("Loop", ["rounds", "", "x"], ["y", "all"], body=body)]
    x = rng.standard_normal(int(rng.integers(1, 4))).astype(np.float32)
    weights = {"middle": np.asarray(rng.standard_normal(), np.float32), "most": np.asarray(9.0, np.float32)}
    rounds = np.asarray(rng.integers(0, 6), np.int64)
    outputs = {"y": (TensorProto.FLOAT, x.shape), "all": (TensorProto.FLOAT, None)}
    return _model(nodes, {"x": x, "rounds": rounds}, outputs, weights)


def integers(rng: np.random.Generator) -> Model:
    """Arithmetic of integers, negative ones among them: divisions, remainders, limits, choices."""
    dtype = np.dtype(np.int64 if rng.integers(2) else np.int32)
    kind, shape = helper.np_dtype_to_tensor_dtype(dtype), tuple(int(n) for n in rng.integers(1, 5, 2))
    nodes, last = [], "x"
    for step, op in enumerate(rng.choice(["Add", "Sub", "Mul", "Div", "Mod", "Max", "Min", "Where"], 4)):
        given = [last, "d"]
        if op == "Where":
            nodes.append(helper.make_node("Less", given, [f"c{step}"]))
            given = [f"c{step}", *given]
        nodes.append(helper.make_node(op, given, [f"v{step}"]))
        last = f"v{step}"
    nodes.append(helper.make_node("ReduceSum", [last, "axis"], ["y"], keepdims=0))
    weights: dict[str, np.ndarray] = {
        "d": rng.choice([-7, -3, -1, 2, 5], shape[1:]).astype(dtype),
        "axis": np.asarray([0], np.int64),
    }
    x = rng.integers(-100, 100, shape).astype(dtype)
    return _model(nodes, {"x": x}, {"y": (kind, shape[1:])}, weights)


def build_contributed_block(rng: np.random.Generator) -> Model:
    """A block as ONNX Runtime's optimiser and Olive write it, with weights of four bits."""
    rows, width, block = int(rng.integers(1, 4)), 32, int(rng.choice([16, 32]))
    packed = rng.integers(0, 256, (width, width // block, block // 2)).astype(np.uint8)
    weights: dict[str, np.ndarray] = {
        "q": packed,
        "s": (rng.random(width * width // block) * 0.1 + 0.01).astype(np.float32),
        **{name: rng.standard_normal(width).astype(np.float32) for name in ("b", "g", "e")},
        "w": (rng.standard_normal((width, width)) * 0.2).astype(np.float32),
    }
    few = {"K": width, "N": width, "bits": 4, "block_size": block}
    last = str(rng.choice(["FastGelu", "QuickGelu"]))
    nodes = [
        helper.make_node("MatMulNBits", ["x", "q", "s"], ["a"], domain=MICROSOFT, **few),
        helper.make_node("BiasGelu", ["a", "b"], ["h"], domain=MICROSOFT),
        helper.make_node("SkipLayerNormalization", ["h", "x", "g", "e"], ["n"], domain=MICROSOFT),
        helper.make_node("FusedMatMul", ["n", "w"], ["m"], domain=MICROSOFT, transB=int(rng.integers(2)), alpha=0.5),
        helper.make_node(last, ["m"], ["y"], domain=MICROSOFT),
    ]
    x = rng.standard_normal((1, rows, width)).astype(np.float32)
    return _model(nodes, {"x": x}, {"y": (TensorProto.FLOAT, x.shape)}, weights)


def build_misstated_sizes(rng: np.random.Generator) -> Model:
    """Sizes in the file that are not those that come out, behind operators whose sizes can be inferred, and one whose cannot."""
    rows, width = (int(n) for n in rng.integers(1, 5, 2))
    scale = {"offset": [float(v) for v in rng.standard_normal(width)], "scale": [1.0] * width}
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Scaler", ["r"], ["s"], domain=ML, **scale),
        helper.make_node("Concat", ["s", "s"], ["y"], axis=0),
    ]
    wrong = tuple(int(n) for n in rng.integers(5, 9, 2))
    x = rng.standard_normal((rows, width)).astype(np.float32)
    model, inputs = _model(nodes, {"x": x}, {"y": (TensorProto.FLOAT, wrong)}, {})
    for name, shape in (("r", wrong[::-1]), ("s", (*wrong, 1))):
        if rng.integers(2):
            model.graph.value_info.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
    return model, inputs


def rowless(rng: np.random.Generator) -> Model:
    """A layer on a batch of nothing, with values that do not depend on it."""
    inner, width, others = (int(n) for n in rng.integers(1, 6, 3))
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Softmax", ["m"], ["p"]),
        helper.make_node("Concat", ["p", "k"], ["y"], axis=0),
        helper.make_node("ReduceSum", ["m", "axis"], ["t"], keepdims=0),
        helper.make_node("Transpose", ["p"], ["z"], perm=[1, 0]),
    ]
    weights: dict[str, np.ndarray] = {
        "w": rng.standard_normal((inner, width)).astype(np.float32),
        "k": rng.standard_normal((others, width)).astype(np.float32),
        "axis": np.asarray([0], np.int64),
    }
    outputs = {name: (TensorProto.FLOAT, shape) for name, shape in (("y", None), ("t", (width,)), ("z", None))}
    model, inputs = _model(nodes, {"x": np.zeros((0, inner), np.float32)}, outputs, weights)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    return model, inputs


KINDS: Mapping[str, Callable[[np.random.Generator], Model]] = {
    "float16 network": lambda rng: convolutions(TensorProto.FLOAT16, rng),
    "float64 network": lambda rng: products(TensorProto.DOUBLE, rng),
    "quantised layer": build_quantised_layer,
    "trees": trees,
    "maps": build_map_outputs,
    "text": text,
    "sequences": sequences,
    "loops": loops,
    "integers": integers,
    "ONNX Runtime's operators": build_contributed_block,
    "sizes stated wrongly": build_misstated_sizes,
    "no row": rowless,
}
"""Makers of models by kind."""


def _model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, np.ndarray],
    outputs: Mapping[str, tuple[int, tuple[int, ...] | None]],
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
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(ML, 3), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), inputs
