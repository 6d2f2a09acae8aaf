"""Small networks in ONNX's text syntax, with data of their kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from bricolage.graph.graph import Graph
from bricolage.graph.prepare import simplify
from bricolage.rewrite.rule import Example


def graph_of(inputs: str, body: str, weights: Mapping[str, Any], outputs: str = "y", opset: int = 18) -> Graph:
    """Simplified."""
    return simplify(model_of(inputs, body, weights, outputs, opset))


def model_of(inputs: str, body: str, weights: Mapping[str, Any], outputs: str = "y", opset: int = 18) -> ir.Model:
    """Weights of which a shape is given are drawn from a normal distribution."""
    rng = np.random.default_rng(0)
    drawn = {
        name: (rng.standard_normal(value) / 3).astype(np.float32) if isinstance(value, tuple) else value
        for name, value in weights.items()
    }
    return Example(inputs, body, drawn, outputs, opset).model()


CONVOLUTIONS = (
    "float[1,3,12,12] x",
    "a = Conv<pads=[1,1,1,1]>(x, w1, b1) r = Relu(a) m = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r)"
    " c = Conv<pads=[1,1,1,1], group=4>(m, w2, b2) s = Add(c, m) t = Relu(s) d = Conv(t, w3) p = GlobalAveragePool(d)"
    " f = Flatten(p) y = Gemm<transB=1>(f, w4, b4)",
    {"w1": (8, 3, 3, 3), "b1": (8,), "w2": (8, 2, 3, 3), "b2": (8,), "w3": (6, 8, 1, 1), "w4": (10, 6), "b4": (10,)},
)
"""A residual sum, groups, an odd number of channels, pooling between convolutions, and a classifier."""
PRODUCTS = (
    "float[N,5,16] x",
    "n = LayerNormalization(x, g, b) p = MatMul(n, w1) q = MatMul(n, w2) h = Mul(p, q) t = MatMul(h, w3) y = Add(t, x)",
    {"g": np.ones(16), "b": np.zeros(16), "w1": (16, 24), "w2": (16, 24), "w3": (24, 16)},
)
"""A normalisation that two products read, and a residual sum."""


def data(*shape: int, count: int = 12, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Samples of an input x: smooth along the last axis, each of its own size."""
    rng = np.random.default_rng(seed)
    drawn = [np.cumsum(rng.standard_normal(shape), axis=-1) * rng.uniform(0.3, 0.6) for _ in range(count)]
    return [{"x": one.astype(np.float32)} for one in drawn]


_LARGE = np.where(np.arange(160) % 23 == 5, 30.0, 0.5).astype(np.float32)
_ROWS = np.random.default_rng(1).standard_normal((44, 160)).astype(np.float32) / _LARGE
OUTLIERS = (
    "float[N,16] x",
    "h = MatMul(x, w1) a = Tanh(h) s = Mul(a, g) p = MatMul(s, w2) q = Gemm<transB=1>(s, w3, b3) y = Concat<axis=-1>(p, q)",
    {"w1": (16, 160), "g": _LARGE, "w2": np.ascontiguousarray(_ROWS[:24].T), "w3": _ROWS[24:], "b3": (20,)},
)
"""Seven of 160 channels are 60 times as large as the others, and no more important; two products read them."""
