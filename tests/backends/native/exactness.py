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
from bricolage.options import BOUNDS
from bricolage.verify.reference import evaluate
from bricolage.work.implementation import KernelConfig
from tests.backends import regions
from tests.backends.native.random_operators import SideBySide
from tests.backends.native.random_regions import Region

BOUND = 2e-6
"""Relative error of float32 over a dozen operators, or the same on values of size one where results cancel."""
_PRODUCTS = ("MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "Attention", "RNN", "GRU", "LSTM")
_FLOAT, _BFLOAT16 = onnx.TensorProto.FLOAT, onnx.TensorProto.BFLOAT16


def check(
    region: Region | SideBySide, seed: int, folder: Path, threads: int = 2, config: KernelConfig = regions.F32
) -> None:
    """All outputs of two calls are as near to float64 as the configuration's class asks, and integers and conditions are equal.

    The yardstick where steps (floor) or cancellation amplify rounding is what the configuration's own numbers make of the region,
    float32 or with the operands of products rounded to bfloat16.

    Raises:
        Refused: the region has no products, which configurations in bfloat16 are for.
    """
    folder.mkdir()
    model = region.write(folder)
    feeds = region.feeds(seed)
    kernel = Native().compile(model, config, Resources(threads=threads))
    exact = evaluate(model.model, feeds, dtype=np.float64)
    rounded: dict[str, np.ndarray] = {}
    narrow = config.name == "bf16"
    bound = BOUNDS["medium"] if narrow else BOUND
    _, outputs, call = regions.bound(kernel, model, *(feeds[info.name] for info in model.inputs))
    for _ in range(2):
        call()
        for info, found in zip(model.outputs, outputs, strict=True):
            expected = exact[info.name]
            error = float(np.linalg.norm(found.astype(np.float64) - expected))
            scale = float(np.linalg.norm(expected)) + np.sqrt(found.size)
            if found.dtype == np.float32 and error <= bound * scale:
                continue
            if found.dtype != np.float32 and np.array_equal(found, expected):
                continue
            if not rounded:
                own = _in_bfloat16(region) if narrow else model.model
                rounded = evaluate(own, feeds, dtype=np.float32)
            own_error = float(np.linalg.norm(rounded[info.name].astype(np.float64) - expected))
            assert error <= 8 * own_error, f"seed {seed}, {info}: {error / scale:.1e} beside {own_error / scale:.1e}"


def _in_bfloat16(region: Region | SideBySide) -> ir.Model:
    """The region with the operands of its products rounded to bfloat16."""
    proto = region.proto()
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
