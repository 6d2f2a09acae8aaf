"""Small models for tests, and random ones for properties."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir

from bricolage.graph.graph import Graph
from bricolage.graph.prepare import prepare, simplify


def parse(text: str, **constants: np.ndarray) -> ir.Model:
    """A model from ONNX's text format, with named constants as initializers."""
    proto = onnx.parser.parse_model(text)
    for name, array in constants.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return ir.from_proto(proto)


def graph(body: str, inputs: str = "float[4] x", outputs: str = "float[4] y", **constants: np.ndarray) -> Graph:
    """A prepared graph from the body of an ONNX text at opset 18."""
    return simplify(
        parse(f'<ir_version: 8, opset_import: ["" : 18]> test ({inputs}) => ({outputs}) {{ {body} }}', **constants)
    )


def random_graph(edges: list[list[int]]) -> Graph:
    """Operator i (a Sum) reads the results of operators `edges[i]`, or the graph's input. Sinks are outputs."""
    nodes, used = [], set()
    for i, sources in enumerate(edges):
        reads = [f"t{j}" for j in sources] or ["x"]
        used.update(reads)
        nodes.append(onnx.helper.make_node("Sum", reads, [f"t{i}"], name=f"n{i}"))
    sinks = [f"t{i}" for i in range(len(edges)) if f"t{i}" not in used]
    info = onnx.helper.make_tensor_value_info
    proto = onnx.helper.make_model(
        onnx.helper.make_graph(
            nodes,
            "random",
            [info("x", onnx.TensorProto.FLOAT, [4])],
            [info(name, onnx.TensorProto.FLOAT, [4]) for name in sinks],
        ),
        opset_imports=[onnx.helper.make_opsetid("", 18)],
    )
    model = ir.from_proto(proto)
    return Graph(prepare(model, {}).model) if edges else Graph(model)
