"""Small whole graphs that use what real exports use."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import onnxscript
from onnxscript import FLOAT, INT64
from onnxscript import opset20 as op

IDS = INT64["batch", "length"]
STATES = FLOAT["batch", "length", 16]
Feeds = dict[str, np.ndarray[Any, Any]]


def _random(*shape: int, seed: int, scale: float = 0.3) -> np.ndarray[Any, Any]:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def convolutional() -> tuple[Any, Feeds]:
    """Convolutions (grouped, dilated, unevenly padded), batch normalisation, pooling, a residual and a classifier."""
    w1, w2, w3 = _random(8, 3, 3, 3, seed=1), _random(8, 2, 3, 3, seed=2), _random(8, 1, 3, 3, seed=3)
    scale, bias = _random(8, seed=4) + 1, _random(8, seed=5)
    mean, var = _random(8, seed=6), np.abs(_random(8, seed=7)) + 0.5
    fc, fcb = _random(10, 8, seed=8), _random(10, seed=9)

    @onnxscript.script()
    def graph(x: FLOAT[2, 3, 17, 17]) -> FLOAT[2, 10]:
        a = op.Conv(x, op.Constant(value=w1), strides=[2, 2], pads=[1, 0, 0, 1])
        b = op.BatchNormalization(
            a, op.Constant(value=scale), op.Constant(value=bias), op.Constant(value=mean), op.Constant(value=var)
        )
        c = op.Relu(b)
        d = op.Conv(c, op.Constant(value=w2), group=4, dilations=[2, 2], pads=[2, 2, 2, 2])
        e = op.Add(op.HardSwish(d), c)
        f = op.MaxPool(e, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)
        g = op.Conv(f, op.Constant(value=w3), group=8, auto_pad="SAME_UPPER", strides=[2, 2])
        h = op.AveragePool(g, kernel_shape=[2, 2], pads=[0, 0, 1, 1], count_include_pad=1)
        i = op.Flatten(op.GlobalAveragePool(h))
        return op.Softmax(op.Gemm(i, op.Constant(value=fc), op.Constant(value=fcb), transB=1), axis=-1)

    return _proto(graph), {"x": _random(2, 3, 17, 17, seed=10, scale=1)}


def transformer() -> tuple[Any, Feeds]:
    """An encoder layer over token ids with symbolic batch and length, its shapes computed as exporters do."""
    width, heads = 16, 4
    table = _random(50, width, seed=1)
    wq, wk, wv, wo = (_random(width, width, seed=s) for s in (2, 3, 4, 5))
    up, down = _random(width, 32, seed=6), _random(32, width, seed=7)
    gain, shift = _random(width, seed=8) + 1, _random(width, seed=9)
    size = np.array([width // heads], np.int64)
    full = np.array([width], np.int64)
    many = np.array([heads], np.int64)
    root = np.array(float(width // heads) ** -0.5, np.float32)

    @onnxscript.script()
    def graph(ids: IDS) -> STATES:
        x = op.Gather(op.Constant(value=table), ids)
        shape = op.Shape(x)
        lead = op.Slice(shape, [0], [2], [0])
        apart = op.Concat(lead, op.Constant(value=many), op.Constant(value=size), axis=0)
        q = op.Transpose(op.Reshape(op.MatMul(x, op.Constant(value=wq)), apart), perm=[0, 2, 1, 3])
        k = op.Transpose(op.Reshape(op.MatMul(x, op.Constant(value=wk)), apart), perm=[0, 2, 3, 1])
        v = op.Transpose(op.Reshape(op.MatMul(x, op.Constant(value=wv)), apart), perm=[0, 2, 1, 3])
        scores = op.Mul(op.MatMul(q, k), op.Constant(value=root))
        mixed = op.Transpose(op.MatMul(op.Softmax(scores, axis=-1), v), perm=[0, 2, 1, 3])
        together = op.Concat(lead, op.Constant(value=full), axis=0)
        y = op.Add(op.MatMul(op.Reshape(mixed, together), op.Constant(value=wo)), x)
        n = op.LayerNormalization(y, op.Constant(value=gain), op.Constant(value=shift), axis=-1)
        hidden = op.Gelu(op.MatMul(n, op.Constant(value=up)))
        return op.Add(op.MatMul(hidden, op.Constant(value=down)), n)

    return _proto(graph), {"ids": np.random.default_rng(0).integers(0, 50, (3, 7))}


def _proto(graph: Any) -> Any:
    import onnx

    return onnx.shape_inference.infer_shapes(graph.to_model_proto())


def as_ir(proto: Any) -> ir.Model:
    return ir.serde.deserialize_model(proto)


def onnxruntime_outputs(proto: Any, feeds: Feeds) -> list[np.ndarray[Any, Any]]:
    """What ONNX Runtime computes, on one thread and without graph rewriting."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(y) for y in session.run(None, feeds)]


def in_four_bits(kind: ir.DataType) -> tuple[ir.Model, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """A product whose weights lie in blocks of 4 bits, its input, and what it gives (numpy, float64)."""
    draw, low = np.random.default_rng(0), -8 if kind == ir.DataType.INT4 else 0
    weights, zeros = draw.integers(low, low + 16, (32, 6)), draw.integers(low, low + 16, (4, 6))
    scales, x = draw.uniform(0.1, 1, (4, 6)).astype(np.float32), _random(3, 32, seed=1, scale=1)
    exact = (weights - zeros.repeat(8, 0)) * scales.repeat(8, 0).astype(np.float64)
    given, given_scales = (
        ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(x.shape)),
        ir.tensor(scales),
    )
    constants = {
        "w": ir.tensor(weights.astype(kind.numpy()), kind),
        "s": given_scales,
        "z": ir.tensor(zeros.astype(kind.numpy()), kind),
    }
    values = {
        name: ir.Value(name=name, const_value=t, type=ir.TensorType(t.dtype), shape=t.shape)
        for name, t in constants.items()
    }
    real = ir.node("DequantizeLinear", list(values.values()), attributes={"axis": 0, "block_size": 8})
    product = ir.node("MatMul", [given, real.outputs[0]])
    graph = ir.Graph(
        [given], product.outputs, nodes=[real, product], initializers=list(values.values()), opset_imports={"": 21}
    )
    return ir.Model(graph, ir_version=10), x, x @ exact
