"""What the machine could do at best: the floors that results are held against."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np

from bricolage.device.device import Peaks

_SIZE = 2048
_BYTES = 512 << 20
_REPEATS = 7


@cache
def measure() -> Peaks:
    """Best of several runs on all usable cores; takes some seconds, once. The peak is the best that any of three libraries reaches
    on a large float32 matrix product."""
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=(_SIZE, _SIZE)).astype(np.float32) for _ in range(2))
    product = min(_best(call) for call in _products(a, b))
    data = np.zeros(_BYTES // 4, np.float32)
    reading = _best(lambda: data.sum())
    return Peaks(2 * _SIZE**3 / product / 1e9, _BYTES / reading / 1e9)


def _products(a: np.ndarray, b: np.ndarray) -> Iterator[Callable[[], object]]:
    """The matrix product by numpy's BLAS, PyTorch and OpenVINO, where they are installed."""
    yield lambda: a @ b
    if importlib.util.find_spec("torch"):
        import torch

        first, second = torch.from_numpy(a), torch.from_numpy(b)
        yield lambda: torch.mm(first, second)
    if importlib.util.find_spec("openvino"):
        from bricolage.backends.openvino_kernel import load_openvino

        ov = load_openvino()
        x, y = (ov.opset13.parameter(list(m.shape), ov.Type.f32) for m in (a, b))
        model = ov.Model([ov.opset13.matmul(x, y, False, False)], [x, y])
        request = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}).create_infer_request()
        yield lambda: request.infer([a, b], share_inputs=True, share_outputs=True)


def _best(call: Callable[[], object]) -> float:
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.min(times))
