"""Winograd's minimal filtering F(m×m, 3×3): its matrices, and which convolutions gain by it (Lavin & Gray, "Fast Algorithms for
Convolutional Neural Networks", CVPR 2016)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bricolage.backends.native.cpu.arithmetic import Arithmetic
from bricolage.backends.native.cpu.emit import trace
from bricolage.backends.native.cpu.isa import Isa
from bricolage.backends.native.cpu.panels import ProductOperand
from bricolage.backends.native.cpu.target import CpuTarget
from bricolage.backends.native.fuse.plan import FusionPlan
from bricolage.backends.native.ir.indexing import ZERO, variable
from bricolage.backends.native.ir.tensors import Conv

_TRANSFORM_COST = 12.0
"""Multiply-adds that take as long as transforming one element."""
_STREAM_COST = 18.0
"""Multiply-adds that take as long as reading one weight from beyond the second-level cache."""


@dataclass(frozen=True)
class Transform:
    """Matrices of F(m, 3): `data` (Bᵀ), `filter` (G) and `output` (Aᵀ)."""

    m: int
    data: np.ndarray
    filter: np.ndarray
    output: np.ndarray


def transform(m: int, points: tuple[float, ...]) -> Transform:
    """F(m, 3) by the Toom-Cook construction on the given m + 1 finite points and infinity."""
    n = m + 2
    assert len(points) == n - 1
    # Filter and output are evaluations of polynomials; the data transformation is what makes the identity hold.
    f = np.array([[p**j for j in range(3)] for p in points] + [[0.0, 0.0, 1.0]])
    a = np.array([[p**i for p in points] + [float(i == m - 1)] for i in range(m)])
    scale = np.array([math.prod(p - q for q in points if q != p) for p in points] + [1.0])
    # Solve Σ_t a[i, t] f[t, j] b[t, k] = [k == i + j] for b, one column k at a time.
    system = np.array([[a[i, t] * f[t, j] for t in range(n)] for i in range(m) for j in range(3)])
    b = np.zeros((n, n))
    for k in range(n):
        wanted = np.array([float(k == i + j) for i in range(m) for j in range(3)])
        b[:, k] = np.linalg.lstsq(system, wanted, rcond=None)[0]
    # Moving the scale from the data to the filter keeps the data's factors small whole numbers.
    return Transform(m, np.round(b * scale[:, None], 9), f / scale[:, None], a)


F2 = transform(2, (0.0, 1.0, -1.0))
F4 = transform(4, (0.0, 1.0, -1.0, 2.0, -2.0))


def choose(
    root: Conv, plan: FusionPlan, target: CpuTarget, arithmetic: Arithmetic, tile: int | None = None
) -> Transform | None:
    """The transformation that should be fastest for a convolution, of those with tiles that the arithmetic allows; None where the
    direct way should be faster, or nothing else fits. With a `tile` that one, if it is allowed and fits."""
    operand = arithmetic.operand(target.isa)
    if not _fits(root, plan, target.isa) or operand.splits > 1 or math.prod(root.weight.shape[1:-2]) % operand.k_step:
        return None
    ways: list[Transform | None] = [None, *(t for t in (F2, F4) if t.m <= arithmetic.tile)]
    if tile is not None:
        return next((t for t in ways if t is not None and t.m == tile), None)
    return min(ways, key=lambda t: _cost(root, t, target, operand))


def _fits(root: Conv, plan: FusionPlan, isa: Isa) -> bool:
    """Whether the last two dimensions are a plain 3×3 convolution that reads vectors of channels."""
    taps = root.weight.shape[2:]
    if len(taps) < 2 or taps[-2:] != (3, 3) or root.groups != 1 or root.dtype != "float32":
        return False
    if root.strides[-2:] != (1, 1) or root.dilations[-2:] != (1, 1) or root.source.shape[1] % isa.lanes:
        return False
    c = variable("c", root.source.shape[1])
    found = trace(root.source, (ZERO, c, *(variable(f"s{i}", e) for i, e in enumerate(root.source.shape[2:]))), plan)
    return found is not None and found[1].stride(next(iter(c.variables))) == 1


def _cost(root: Conv, t: Transform | None, target: CpuTarget, operand: ProductOperand) -> float:
    """Multiply-adds of one thread, with memory and additions in the same coin (factors measured on Zen 5)."""
    images, c_out, *deep, height, width = root.shape
    depth = root.source.shape[1] * math.prod(root.weight.shape[2:-2])
    deep_places = images * math.prod(deep)
    if t is None:
        points, per_tile = 9, 1
        transforms = 0.0
    else:
        points, per_tile = (t.m + 2) ** 2, t.m
    tiles = deep_places * -(-height // per_tile) * -(-width // per_tile)
    own = -(-tiles // target.threads)
    if t is not None:
        transforms = _TRANSFORM_COST * own * points * (depth + c_out)
    rows = operand.rows(target.isa)
    products = operand.cost * points * depth * c_out * -(-own // rows) * rows
    weights = operand.bytes / 4 * points * depth * c_out
    return products + transforms + (_STREAM_COST * weights if 4 * weights > target.l2_bytes // 2 else 0)
