"""A random region on the native engine beside the same region in float64."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from bricolage.backends.interface import Resources
from bricolage.backends.native.engine import Native
from bricolage.conformance.regions import run_bound, written
from bricolage.options import BOUNDS
from bricolage.testing import SideBySide, Truth
from bricolage.testing.random_graph import RandomGraph
from bricolage.testing.truth import BOUND
from bricolage.work.implementation import KernelConfig
from tests.backends import regions

_PRODUCTS = ("MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "Attention", "RNN", "GRU", "LSTM")
_FLOAT, _BFLOAT16 = onnx.TensorProto.FLOAT, onnx.TensorProto.BFLOAT16


def check(
    graph: RandomGraph | SideBySide, seed: int, folder: Path, threads: int = 2, config: KernelConfig = regions.F32
) -> None:
    """All outputs of two calls are as near to float64 as the configuration's class asks, and integers and conditions are equal.

    The yardstick where steps (floor) or cancellation amplify rounding is what the configuration's own numbers make of the region,
    float32 or with the operands of products rounded to bfloat16.

    Raises:
        Refused: the region has no products, which configurations in bfloat16 are for.
    """
    folder.mkdir()
    region = written(ir.from_proto(graph.proto()), folder)
    feeds = graph.feeds(seed)
    kernel = Native().compile(region, config, Resources(threads=threads))
    narrow = config.name == "bf16"
    truth = Truth(region.model, feeds, BOUNDS["medium"] if narrow else BOUND, _in_bfloat16(graph) if narrow else None)
    for found in run_bound(kernel, region, [feeds[info.name] for info in region.inputs]):
        wrong = truth.wrong(dict(zip((info.name for info in region.outputs), found, strict=True)))
        assert not wrong, f"seed {seed}: {'; '.join(map(str, wrong))}"


def _in_bfloat16(graph: RandomGraph | SideBySide) -> ir.Model:
    """The region with the operands of its products rounded to bfloat16."""
    proto = graph.proto()
    constants = {constant.name for constant in proto.graph.initializer}
    nodes, rounded = list[onnx.NodeProto](), set[str]()
    for node in proto.graph.node:
        if node.op_type in _PRODUCTS:
            for position, name in enumerate(node.input[:3] if node.op_type == "Attention" else node.input[:2]):
                if name not in rounded and name not in constants:
                    nodes.append(helper.make_node("Cast", [name], [f"{name}_half"], to=_BFLOAT16))
                    nodes.append(helper.make_node("Cast", [f"{name}_half"], [f"{name}_rounded"], to=_FLOAT))
                if name in constants and name not in rounded:
                    array = next(numpy_helper.to_array(c) for c in proto.graph.initializer if c.name == name)
                    half = array.astype(ml_dtypes.bfloat16).astype(np.float32)
                    proto.graph.initializer.append(numpy_helper.from_array(half, f"{name}_rounded"))
                rounded.add(name)
                node.input[position] = f"{name}_rounded"
        nodes.append(node)
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    return ir.from_proto(proto)
