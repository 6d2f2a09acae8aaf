"""A network of random graphs, as RandWire has them, with seeded weights.

Xie, Kirillov, Girshick and He, "Exploring randomly wired neural networks for image recognition", ICCV 2019: a node averages
what it reads (weights of their own would be folded) and goes through ReLU, a separable 3×3 convolution and batch
normalisation (which is folded into it here). Nodes that read nothing else read the stage's input, with stride 2; what nothing
reads is averaged. The small regime of the paper has 78 channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from benchmarks.scheduling.schedule_instances import read_edges


def randwire(graphs: Sequence[Path], channels: int = 78, size: int = 56) -> ir.Model:
    """Stages of `channels`, twice as many, and so on, on an input of 3 × `size` × `size`."""
    draw = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def weight(*shape: int) -> str:
        scale = np.sqrt(2.0 / np.prod(shape[1:]))
        name = f"w{len(weights)}"
        weights.append(numpy_helper.from_array((draw.standard_normal(shape) * scale).astype(np.float32), name))
        return name

    def add(kind: str, inputs: Sequence[str], **attributes: object) -> str:
        name = f"t{len(nodes)}"
        nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    value, width = add("Conv", ["x", weight(channels // 2, 3, 3, 3)], pads=[1] * 4, strides=[2, 2]), channels // 2
    for stage, path in enumerate(graphs):
        graph, wide = read_edges(path), channels << stage
        values: list[str] = []
        for sources in graph.predecessors:
            read = [values[source] for source in sources]
            given = add("Mean", read) if len(read) > 1 else read[0] if read else value
            many, stride = (wide, 1) if read else (width, 2)
            deep = add(
                "Conv", [add("Relu", [given]), weight(many, 1, 3, 3)], pads=[1] * 4, strides=[stride] * 2, group=many
            )
            values.append(add("Conv", [deep, weight(wide, many, 1, 1)]))
        last = [values[task] for task, after in enumerate(graph.successors) if not after]
        value, width = add("Mean", last), wide
    pooled = add("GlobalAveragePool", [add("Relu", [value])])
    nodes.append(helper.make_node("Flatten", [pooled], ["y"]))
    made = helper.make_graph(
        nodes,
        "randwire",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 3, size, size])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, width])],
        weights,
    )
    model: ir.Model = ir.from_proto(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))
    return model
