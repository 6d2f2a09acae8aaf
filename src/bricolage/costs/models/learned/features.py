"""What a learnt model sees of a region and a device: numbers that mean the same for every network and machine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from bricolage.costs.models.roofline import least_ms, moved_bytes
from bricolage.graph.operator_kinds import OperatorCategory, category
from bricolage.work.cost import Setting
from bricolage.work.workload import OperatorWork, Workload

_KINDS = (
    "convolution",
    "depthwise",
    "grouped",
    "transposed",
    "product",
    "recurrent",
    "normalisation",
    "function",
    "summary",
    "movement",
    "view",
    "elementwise",
)
_KIND: Mapping[OperatorCategory, str] = {
    "convolution": "convolution",
    "transposed convolution": "transposed",
    **dict.fromkeys(("product", "attention"), "product"),
    "recurrent": "recurrent",
    **dict.fromkeys(("normalisation", "softmax"), "normalisation"),
    "function": "function",
    **dict.fromkeys(("reduction", "pool"), "summary"),
    "view": "view",
    "movement": "movement",
}
_OTHERWISE = frozenset(["DeformConv", "QLinearMatMul", "MatMulNBits"])
"""Operators that count as elementwise: so the model that bricolage comes with was trained."""
_BY_KIND = tuple(f"{kind} {what}" for kind in _KINDS for what in ("operators", "gflops", "mbytes"))
_WHOLE = (
    "operators",
    "gflops",
    "read mbytes",
    "constant mbytes",
    "written mbytes",
    "inner mbytes",
    "largest operator gflops",
    "largest tensor mbytes",
    "flops a byte",
    "terms of a sum",
    "channels",
    "places",
    "taps",
    "stride",
    "float32",
)
_DEVICE = (
    "peak gflops",
    "peak gbytes",
    "l1 kbytes",
    "l2 kbytes",
    "l3 mbytes",
    "threads",
    "avx512",
    "bfloat16",
    "matrix unit",
    "constants over l2",
    "inner over l2",
    "all over l3",
    "roofline ms",
)
NAMES: tuple[str, ...] = (*_BY_KIND, *_WHOLE, *_DEVICE)
"""Of the features, in their order."""


def features(workload: Workload, setting: Setting) -> npt.NDArray[np.float64]:
    """The features of a region on a device, [len(NAMES)]. Amounts are logarithms of one plus themselves, since regions differ by
    factors of millions."""
    operators = workload.operators
    by_kind = {kind: [0.0, 0.0, 0.0] for kind in _KINDS}
    for operator in operators:
        counted = by_kind[_kind(operator)]
        counted[0] += 1
        counted[1] += operator.flops / 1e9
        counted[2] += moved_bytes(operator) / 1e6
    flops = sum(operator.flops for operator in operators)
    ends = workload.read + workload.constant + workload.written
    inner = max(0, sum(operator.written for operator in operators) - workload.written)
    heavy = [operator for operator in operators if _kind(operator) in _KINDS[:6] and operator.shape] or [
        operator for operator in operators if operator.shape
    ]
    whole = [
        len(operators),
        flops / 1e9,
        workload.read / 1e6,
        workload.constant / 1e6,
        workload.written / 1e6,
        inner / 1e6,
        max((operator.flops for operator in operators), default=0) / 1e9,
        max((max(operator.read, operator.constant, operator.written) for operator in operators), default=0) / 1e6,
        flops / max(1, ends),
        _mean(heavy, [operator.flops / max(1, 2 * math.prod(operator.shape)) for operator in heavy]),
        _mean(heavy, [_channels(operator) for operator in heavy]),
        _mean(heavy, [math.prod(operator.shape) / max(1, _channels(operator)) for operator in heavy]),
        _mean(heavy, [math.prod(operator.kernel) for operator in heavy]),
        _mean(heavy, [math.prod(operator.strides) for operator in heavy]),
        sum(operator.dtype == "float" for operator in operators) / max(1, len(operators)),
    ]
    device, caches = setting.device, setting.device.caches
    l3 = caches.l3_bytes or caches.l2_bytes
    has = device.instructions
    about = [
        device.peaks.gflops,
        device.peaks.gbytes,
        caches.l1_bytes / 1024,
        caches.l2_bytes / 1024,
        l3 / 1e6,
        setting.threads,
        float("avx512f" in has),
        float(device.bfloat16),
        float("amx_bf16" in has),
        workload.constant / caches.l2_bytes,
        inner / caches.l2_bytes,
        (ends + inner) / l3,
        least_ms(workload, setting),
    ]
    return np.log1p(
        np.array([*(value for kind in _KINDS for value in by_kind[kind]), *whole, *about], dtype=np.float64)
    )


def _kind(one: OperatorWork) -> str:
    kind = "elementwise" if one.kind in _OTHERWISE else _KIND.get(category(one.kind), "elementwise")
    if kind != "convolution" or one.groups == 1:
        return kind
    return "depthwise" if len(one.shape) > 1 and one.groups == one.shape[1] else "grouped"


def _channels(one: OperatorWork) -> int:
    """Of what an operator computes: the second dimension of images, the last one of anything else."""
    return one.shape[1] if one.kernel and len(one.shape) > 2 else one.shape[-1] if one.shape else 1


def _mean(operators: Sequence[OperatorWork], values: Sequence[float]) -> float:
    """Weighed by operations: what most of the work looks like."""
    weights = [operator.flops + 1 for operator in operators]
    return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights) if operators else 0.0
