"""The fixed list of models: small networks of every family, written as ONNX text, so that no framework is needed to make them.

Weights are drawn from a generator seeded with their names: equal on every machine.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx_ir as ir
from onnx.parser import parse_model


@dataclass
class _Text:
    """An ONNX text under construction: nodes line by line, and weights."""

    lines: list[str] = field(default_factory=list)
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    count: int = 0

    def op(self, kind: str, *inputs: str, attributes: str = "") -> str:
        """Adds a node; the name of its result."""
        self.count += 1
        given = f" <{attributes}>" if attributes else ""
        self.lines.append(f"t{self.count} = {kind}{given} ({', '.join(inputs)})")
        return f"t{self.count}"

    def weight(self, *shape: int, scale: float = 0.1) -> str:
        """A float32 weight."""
        name = f"w{len(self.weights)}"
        draw = np.random.default_rng(zlib.crc32(f"{name} {shape}".encode()))
        self.weights[name] = (draw.standard_normal(shape) * scale).astype(np.float32)
        return name

    def constant(self, value: object, dtype: type = np.float32) -> str:
        """A constant tensor."""
        name = f"c{len(self.weights)}"
        self.weights[name] = np.asarray(value, dtype)
        return name

    def model(self, inputs: str, result: str, output: str) -> ir.Model:
        """The model, with one output: its type and its name."""
        lines = [*self.lines, f"{output.split()[-1]} = Identity({result})"]
        text = f'<ir_version: 8, opset_import: ["" : 18]> replay ({inputs}) => ({output})'
        proto = parse_model(text + "{\n" + "\n".join(lines) + "\n}")
        for name, array in self.weights.items():
            proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        model: ir.Model = ir.from_proto(proto)
        return model


def _conv(text: _Text, x: str, out: int, into: int, k: int, attributes: str = "", *, normalised: bool = True) -> str:
    pads = ",".join([str(k // 2)] * 4)
    y = text.op("Conv", x, text.weight(out, into, k, k), text.weight(out), attributes=f"pads = [{pads}] {attributes}")
    if not normalised:
        return y
    parts = [text.weight(out) for _ in range(3)] + [text.constant(np.linspace(0.5, 1.5, out))]
    return text.op("BatchNormalization", y, *parts)


def residual() -> ir.Model:
    """Two bottleneck blocks with batch norms, the second with stride, and a classifier."""
    t = _Text()
    x = t.op("Relu", _conv(t, "x", 64, 3, 7, ", strides = [2, 2]"))
    x = t.op("MaxPool", x, attributes="kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]")
    for into, middle, out, stride in ((64, 64, 256, 1), (256, 128, 512, 2)):
        strides = f", strides = [{stride}, {stride}]"
        y = t.op("Relu", _conv(t, x, middle, into, 1))
        y = t.op("Relu", _conv(t, y, middle, middle, 3, strides))
        y = _conv(t, y, out, middle, 1)
        x = t.op("Relu", t.op("Add", y, _conv(t, x, out, into, 1, strides)))
    x = t.op("Flatten", t.op("GlobalAveragePool", x))
    x = t.op("Gemm", x, t.weight(100, 512), t.weight(100), attributes="transB = 1")
    return t.model("float[1,3,64,64] x", x, "float[1,100] y")


def mobile() -> ir.Model:
    """Depthwise convolutions with hard-swish, and a squeeze-and-excite gate."""
    t = _Text()
    x = t.op("HardSwish", _conv(t, "x", 16, 3, 3, ", strides = [2, 2]"))
    for into, out in ((16, 24), (24, 40)):
        y = t.op("HardSwish", _conv(t, x, 4 * into, into, 1))
        y = t.op("HardSwish", _conv(t, y, 4 * into, 1, 3, f", group = {4 * into}"))
        gate = t.op("Relu", _conv(t, t.op("GlobalAveragePool", y), into, 4 * into, 1, normalised=False))
        gate = t.op("HardSigmoid", _conv(t, gate, 4 * into, into, 1, normalised=False))
        x = _conv(t, t.op("Mul", y, gate), out, 4 * into, 1)
    return t.model("float[1,3,48,48] x", x, "float[1,40,24,24] y")


def _norm(t: _Text, x: str, width: int) -> str:
    """A layer normalisation as exporters write it in parts."""
    last = t.constant([-1], np.int64)
    d = t.op("Sub", x, t.op("ReduceMean", x, last))
    v = t.op("ReduceMean", t.op("Pow", d, t.constant(2.0)), last)
    s = t.op("Sqrt", t.op("Add", v, t.constant(1e-5)))
    return t.op("Add", t.op("Mul", t.op("Div", d, s), t.weight(width)), t.weight(width))


def transformer() -> ir.Model:
    """A layer of BERT as exported without optimisation: attention, GELU by Erf, layer norms in their parts."""
    t, width, heads, tokens = _Text(), 128, 4, 32
    split, merge = t.constant([1, tokens, heads, width // heads], np.int64), t.constant([1, tokens, width], np.int64)

    def linear(value: str, out: int, into: int) -> str:
        return t.op("Add", t.op("MatMul", value, t.weight(into, out)), t.weight(out))

    def head(value: str, order: str) -> str:
        return t.op("Transpose", t.op("Reshape", linear(value, width, width), split), attributes=f"perm = [{order}]")

    q, k, v = head("x", "0,2,1,3"), head("x", "0,2,3,1"), head("x", "0,2,1,3")
    scores = t.op("Div", t.op("MatMul", q, k), t.constant((width // heads) ** 0.5))
    weights = t.op("Softmax", t.op("Add", scores, "mask"), attributes="axis = -1")
    y = t.op("Transpose", t.op("MatMul", weights, v), attributes="perm = [0,2,1,3]")
    y = linear(t.op("Reshape", y, merge), width, width)
    x = _norm(t, t.op("Add", "x", y), width)
    h = linear(x, 4 * width, width)
    g = t.op("Add", t.op("Erf", t.op("Div", h, t.constant(2**0.5))), t.constant(1.0))
    h = t.op("Mul", t.op("Mul", h, g), t.constant(0.5))
    x = _norm(t, t.op("Add", x, linear(h, width, 4 * width)), width)
    return t.model(f"float[1,{tokens},{width}] x, float[1,1,1,{tokens}] mask", x, f"float[1,{tokens},{width}] y")


def grouped() -> ir.Model:
    """Two branches of grouped convolutions that come together, average pooling, and a transposed convolution."""
    t = _Text()
    a = t.op("Relu", _conv(t, "x", 64, 2, 3, ", group = 32"))
    a = _conv(t, a, 64, 64, 1)
    b = t.op("AveragePool", "x", attributes="kernel_shape = [3, 3], pads = [1, 1, 1, 1]")
    b = t.op("Sigmoid", _conv(t, b, 64, 64, 1))
    y = t.op("Relu", t.op("Concat", a, b, attributes="axis = 1"))
    y = t.op("ConvTranspose", y, t.weight(128, 32, 4, 4), attributes="strides = [2, 2], pads = [1, 1, 1, 1]")
    return t.model("float[1,64,16,16] x", t.op("Tanh", y), "float[1,32,32,32] y")


def volume() -> ir.Model:
    """Convolutions over three spatial dimensions with a residual."""
    t, pads = _Text(), "pads = [1, 1, 1, 1, 1, 1]"
    y = t.op("Relu", t.op("Conv", "x", t.weight(32, 32, 3, 3, 3), t.weight(32), attributes=pads))
    y = t.op("Conv", y, t.weight(32, 32, 3, 3, 3), t.weight(32), attributes=pads)
    return t.model("float[1,32,3,14,14] x", t.op("Relu", t.op("Add", "x", y)), "float[1,32,3,14,14] y")


def recurrent() -> ir.Model:
    """Steps of a gated cell written out: many small products of one state, as in NasRNN."""
    t, width = _Text(), 64
    kernels = [(t.weight(width, width), t.weight(width, width)) for _ in range(4)]
    state = "h"
    for step in range(3):
        x = t.op("Gather", "x", t.constant([step], np.int64), attributes="axis = 0")
        x = t.op("Reshape", x, t.constant([1, width], np.int64))
        a, b, c, d = (t.op("Add", t.op("MatMul", x, wx), t.op("MatMul", state, wh)) for wx, wh in kernels)
        left = t.op("Mul", t.op("Sigmoid", a), t.op("Tanh", b))
        right = t.op("Mul", t.op("Relu", c), t.op("Sigmoid", d))
        state = t.op("Tanh", t.op("Add", left, right))
    return t.model(f"float[3,1,{width}] x, float[1,{width}] h", state, f"float[1,{width}] y")


MODELS: Mapping[str, Callable[[], ir.Model]] = {
    build.__name__: build for build in (residual, mobile, transformer, grouped, volume, recurrent)
}
