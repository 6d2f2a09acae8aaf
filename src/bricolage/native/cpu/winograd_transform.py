"""Winograd's minimal filtering F(m×m, 3×3): its matrices, and which convolutions gain by it (Lavin & Gray, "Fast Algorithms for
Convolutional Neural Networks", CVPR 2016)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bricolage.native.cpu.arithmetic import Arithmetic
from bricolage.native.cpu.emit import trace_element
from bricolage.native.cpu.isa import Isa
from bricolage.native.cpu.panels import ProductOperand
from bricolage.native.cpu.target import CpuTarget
from bricolage.native.cpu.winograd_integers import fits_wrapping, short_pairs
from bricolage.native.fuse.kernel_plan import FusionPlan
from bricolage.native.ir.index_expressions import ZERO, variable
from bricolage.native.ir.tensors import Conv

_TRANSFORM_COST = 12.0
"""Multiply-adds that take as long as transforming one element."""
_STREAM_COST = 18.0
"""Multiply-adds that take as long as reading one weight from beyond the second-level cache."""
_WHOLE_STREAM_COST = 8.0
"""The same for four bytes of integers, whose products take longer (measured with AVX2 on an Intel Xeon, family 6, model 167)."""


@dataclass(frozen=True)
class Transform:
    """Matrices of F(m, 3): `data` (Bᵀ), `filter` (G) and `output` (Aᵀ)."""

    m: int
    data: np.ndarray
    filter: np.ndarray
    output: np.ndarray
    multiple: int = 1
    """Which multiple of the convolution comes out."""


def transform(m: int, points: tuple[float, ...], *, whole: bool = False) -> Transform:
    """F(m, 3) by the Toom-Cook construction on the given m + 1 finite points and infinity. Where it is to be `whole`, all numbers
    are, and a `multiple` comes out; otherwise filters have fractions."""
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
    data = np.round(b * scale[:, None], 9)
    if not whole:
        return Transform(m, data, f / scale[:, None], a)
    common = math.lcm(*(int(factor) for factor in scale))
    return Transform(m, data, f, a * (common / scale), common**2)


_POINTS = {2: (0.0, 1.0, -1.0), 4: (0.0, 1.0, -1.0, 2.0, -2.0)}
F2, F4 = (transform(m, points) for m, points in _POINTS.items())
WHOLE_F2, WHOLE_F4 = (transform(m, points, whole=True) for m, points in _POINTS.items())
"""Of bytes, in integers (`winograd_integers`)."""


def fitting_transforms(root: Conv, plan: FusionPlan, target: CpuTarget, arithmetic: Arithmetic) -> list[Transform]:
    """The transformations that a convolution can be computed by: of those with tiles that the arithmetic allows, or of all that are
    exact where it is of bytes."""
    operand = transformed_operand(root, target.isa, arithmetic)
    if not _fits(root, plan, target.isa) or operand.splits > 1 or math.prod(root.weight.shape[1:-2]) % operand.k_step:
        return []
    if root.dtype == "int32":
        return [t for t in (WHOLE_F2, WHOLE_F4) if fits_wrapping(root, t.multiple)]
    return [t for t in (F2, F4) if t.m <= arithmetic.tile]


def transformed_operand(root: Conv, isa: Isa, arithmetic: Arithmetic) -> ProductOperand:
    """How the operands of the products behind a transformation are stored and multiplied."""
    return short_pairs(isa) if root.dtype == "int32" else arithmetic.operand(isa)


def tile_rows(tiles: int, threads: int, operand: ProductOperand, isa: Isa) -> int:
    """Tiles that a micro-kernel takes at a time: of a thread's share all as many, in vectors."""
    most, thread_tiles = operand.rows(isa), -(-tiles // threads)
    return most if operand.in_tiles else -(-thread_tiles // -(-thread_tiles // most))


def _fits(root: Conv, plan: FusionPlan, isa: Isa) -> bool:
    """Whether the last two dimensions are a plain 3×3 convolution that reads vectors of channels."""
    taps = root.weight.shape[2:]
    if len(taps) < 2 or taps[-2:] != (3, 3) or root.groups != 1:
        return False
    if root.strides[-2:] != (1, 1) or root.dilations[-2:] != (1, 1) or root.source.shape[1] % isa.lanes:
        return False
    c = variable("c", root.source.shape[1])
    element = trace_element(
        root.source, (ZERO, c, *(variable(f"s{i}", e) for i, e in enumerate(root.source.shape[2:]))), plan
    )
    return element is not None and element[1].stride(next(iter(c.variables))) == 1


def compute_cost(root: Conv, t: Transform | None, target: CpuTarget, operand: ProductOperand) -> float:
    """Multiply-adds of one thread, by a transformation or directly, with memory and additions in the same coin (factors measured on
    Zen 5)."""
    images, c_out, *deep, height, width = root.shape
    depth = root.source.shape[1] * math.prod(root.weight.shape[2:-2])
    deep_places = images * math.prod(deep)
    if t is None:
        points, per_tile = 9, 1
        transforms = 0.0
    else:
        points, per_tile = (t.m + 2) ** 2, t.m
    tiles = deep_places * -(-height // per_tile) * -(-width // per_tile)
    thread_tiles = -(-tiles // target.threads)
    if t is not None:
        transforms = _TRANSFORM_COST * thread_tiles * points * (depth + c_out)
    rows = operand.rows(target.isa) if t is None else tile_rows(tiles, target.threads, operand, target.isa)
    products = operand.cost * points * depth * c_out * -(-thread_tiles // rows) * rows
    weights = operand.bytes / 4 * points * depth * c_out
    stream = _WHOLE_STREAM_COST if root.dtype == "int32" else _STREAM_COST
    return products + transforms + (stream * weights if 4 * weights > target.l2_bytes // 2 else 0)
