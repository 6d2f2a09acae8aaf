"""Small regions on disk, written as the real flow writes them, and ways to run them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from bricolage.backends.interface import Backend, RegionModel, Resources
from bricolage.backends.kernel import Call, Kernel
from bricolage.device.buffers import allocate_aligned
from bricolage.graph.extract import write_model
from bricolage.graph.store import Store
from bricolage.work.implementation import KernelConfig
from tests.graph.models import parse

ONE_THREAD = Resources(threads=1)
F32 = KernelConfig("f32")
_LATEST_S = 60.0


def region(
    folder: Path,
    body: str,
    inputs: str = "float[4] x",
    outputs: str = "float[4] y",
    opset: int = 18,
    domains: str = "",
    known: str = "",
    **constants: np.ndarray,
) -> RegionModel:
    """A region from the body of an ONNX text; constants over a kilobyte go to the shared weights file. `known` are types of tensors
    inside, where ONNX does not infer them."""
    inside = f"<{known}>" if known else ""
    text = (
        f'<ir_version: 10, opset_import: ["" : {opset}{domains}]> test ({inputs}) => ({outputs}) {inside} {{ {body} }}'
    )
    model = parse(text, **constants)
    Store(folder).share([model])
    path = folder / "region.onnx"
    write_model(model, path)
    return RegionModel(path)


def conv_net(folder: Path) -> RegionModel:
    """Convolutions with a residual connection, pooling and a classifier: 1×8×32×32 → 1×10, batch-norm folded."""
    draw = np.random.default_rng(0)

    def weights(*shape: int) -> np.ndarray:
        return (draw.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)

    return region(
        folder,
        """
        a = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, w1, b1)
        b = Relu (a)
        c = Conv <pads = [1, 1, 1, 1]> (b, w2)
        d = Add (c, b)
        e = Relu (d)
        f = GlobalAveragePool (e)
        g = Flatten (f)
        y = Gemm (g, w3, b3)
        """,
        "float[1, 8, 32, 32] x",
        "float[1, 10] y",
        w1=weights(16, 8, 3, 3),
        b1=weights(16, 1)[:, 0],
        w2=weights(16, 16, 3, 3),
        w3=weights(16, 10),
        b3=weights(10, 1)[:, 0],
    )


def attention_block(folder: Path) -> RegionModel:
    """Single-head attention and a feed-forward layer with normalisation: 1×16×32; the scores are an output too."""
    draw = np.random.default_rng(1)

    def square() -> np.ndarray:
        return (draw.standard_normal((32, 32)) / np.sqrt(32)).astype(np.float32)

    return region(
        folder,
        """
        q = MatMul (x, wq)
        k = MatMul (x, wk)
        v = MatMul (x, wv)
        t = Transpose <perm = [0, 2, 1]> (k)
        r = MatMul (q, t)
        s = Mul (r, scale)
        p = Softmax <axis = -1> (s)
        o = MatMul (p, v)
        a = Add (o, x)
        n = LayerNormalization <axis = -1> (a, gain, shift)
        h = MatMul (n, wo)
        i = Div (h, root)
        j = Erf (i)
        l = Add (j, one)
        m = Mul (h, l)
        y = Mul (m, half)
        """,
        "float[1, 16, 32] x",
        "float[1, 16, 32] y, float[1, 16, 16] p",
        wq=square(),
        wk=square(),
        wv=square(),
        wo=square(),
        scale=np.float32(32**-0.5),
        root=np.float32(2**0.5),
        one=np.float32(1),
        half=np.float32(0.5),
        gain=np.ones(32, np.float32),
        shift=np.zeros(32, np.float32),
    )


def attention_heads(folder: Path) -> RegionModel:
    """Attention of two heads as exporters write it, where one Transpose both splits the heads of the key and turns it:
    queries, keys and values 1×8×(2·4). Length and number of heads differ, so that no two axes can be taken for one another.
    """
    return region(
        folder,
        """
        qs = Reshape (q, apart)
        ks = Reshape (k, apart)
        vs = Reshape (v, apart)
        qh = Transpose <perm = [0, 2, 1, 3]> (qs)
        kt = Transpose <perm = [0, 2, 3, 1]> (ks)
        vh = Transpose <perm = [0, 2, 1, 3]> (vs)
        r = MatMul (qh, kt)
        s = Div (r, root)
        p = Softmax <axis = -1> (s)
        o = MatMul (p, vh)
        t = Transpose <perm = [0, 2, 1, 3]> (o)
        y = Reshape (t, together)
        """,
        "float[1, 8, 8] q, float[1, 8, 8] k, float[1, 8, 8] v",
        "float[1, 8, 8] y",
        apart=np.int64([1, 8, 2, 4]),
        together=np.int64([1, 8, 8]),
        root=np.float32(2),
    )


def bound(kernel: Kernel, model: RegionModel, *values: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray], Call]:
    """Input buffers holding `values`, output buffers full of rubbish, and the bound call."""
    inputs = [allocate_aligned(info.sizes, info.numpy) for info in model.inputs]
    outputs = [allocate_aligned(info.sizes, info.numpy) for info in model.outputs]
    for buffer, value in zip(inputs, values, strict=True):
        buffer[...] = value
    for buffer in outputs:
        buffer.reshape(-1).view(np.uint8).fill(0x5A)
    return inputs, outputs, kernel.bind(inputs, outputs)


def answer(
    backend: Backend,
    model: RegionModel,
    *values: np.ndarray,
    config: KernelConfig = F32,
    resources: Resources = ONE_THREAD,
) -> list[np.ndarray]:
    """Outputs of one bound call."""
    kernel = backend.compile(model, config, resources)
    _, outputs, call = bound(kernel, model, *values)
    call()
    return outputs


def reference(model: RegionModel, *values: np.ndarray) -> list[np.ndarray]:
    """Outputs of the ONNX reference implementation on the same model."""
    feeds = dict(zip((info.name for info in model.inputs), values, strict=True))
    return [np.asarray(value) for value in ReferenceEvaluator(onnx.load(model.path)).run(None, feeds)]


def error(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """Largest relative error ‖y - e‖ / ‖e‖ of the outputs."""
    return max(
        float(np.linalg.norm(y.astype(np.float64) - e) / np.linalg.norm(e.astype(np.float64)))
        for y, e in zip(found, expected, strict=True)
    )


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _thread_name(task: Path) -> str:
    """Empty where the thread has ended meanwhile."""
    try:
        return (task / "comm").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def wait_for_threads(name: str, count: int) -> int:
    """How many threads of this process have names that begin so. They name themselves when they start, so as many as `count` are
    waited for. Linux only."""
    end = time.monotonic() + _LATEST_S
    while True:
        running = sum(_thread_name(path).startswith(name) for path in Path("/proc/self/task").iterdir())
        if running >= count or time.monotonic() > end:
            return running
        time.sleep(0.01)
