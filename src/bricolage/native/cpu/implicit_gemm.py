"""Matrix products and convolutions as one thing: C[m, n] = Σ A[m, k] · B[k, n], some times over.

For convolutions m counts output pixels, n output channels, and k kernel taps and input channels (channels last, so that a tap is
a run of memory).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bricolage.graph.quantised_blocks import QuantisedBlocks
from bricolage.native.ir.index_expressions import ZERO, Index, unflatten
from bricolage.native.ir.tensors import BlockConstant, Constant, Conv, Coords, MatMul, Node


@dataclass(frozen=True)
class Product:
    """A contraction in matrix form, `batch` times over."""

    batch: int
    m: int
    n: int
    k: int
    root_coords: Callable[[Index, Index, Index], Coords]
    """Coordinates in the root of (batch, m, n)."""
    left: Callable[[Index, Index, Index], tuple[Node, Coords, list[tuple[Index, int]]]]
    """What A[m, k] of a batch is: a tensor, coordinates in it, and guards outside of which it is zero."""
    runs: tuple[int, ...]
    """Extents that k is made of; the last one is the longest run in which only the last of A's coordinates moves."""
    right: Callable[[], np.ndarray] | tuple[Node, Callable[[Index, Index, Index], Coords]]
    """B as an array [batch, k, n], made when it is needed; or a tensor and the coordinates of (batch, k, n) in it."""
    inside: Callable[[int, int], range] | None = None
    """For rows from and to, the part of k outside of which A is zero in all of them; None where there is no such part."""
    fill: int = 0
    """What A is outside of its guards, instead of zero."""
    blocks: QuantisedBlocks | None = None
    """B where it is integers in blocks; `right` makes float32 of them."""


def product(root: MatMul | Conv, lanes: int) -> Product:
    """The matrix form of a root; `lanes` are the floats in a vector."""
    return _of_matmul(root) if isinstance(root, MatMul) else _of_conv(root, lanes)


def _of_matmul(root: MatMul) -> Product:
    *batch, m, n = root.shape
    k = root.left.shape[-1]

    def own(b: Index, operand: Node) -> Coords:
        coords = unflatten(b, batch)
        return tuple(ZERO if extent == 1 else index for index, extent in zip(coords, operand.shape[:-2], strict=True))

    right = root.right

    def constant_right() -> np.ndarray:
        assert isinstance(right, Constant)
        return np.broadcast_to(right.array, (*batch, k, n)).reshape(-1, k, n)

    return Product(
        math.prod(batch),
        m,
        n=n,
        k=k,
        root_coords=lambda b, i, j: (*unflatten(b, batch), i, j),
        left=lambda b, i, kk: (root.left, (*own(b, root.left), i, kk), []),
        runs=(k,),
        right=constant_right if isinstance(right, Constant) else (right, lambda b, kk, j: (*own(b, right), kk, j)),
        blocks=right.blocks if isinstance(right, BlockConstant) and not right.turned else None,
    )


def _of_conv(root: Conv, lanes: int) -> Product:
    """Groups are joined, with zeros between them, until their channels fill a vector."""
    images, channels, *sizes = root.shape
    taps = root.weight.shape[2:]
    groups = root.groups
    joined = 1
    while groups % (2 * joined) == 0 and joined * channels // groups < lanes:
        joined *= 2
    batch = groups // joined
    c_in, c_out = root.source.shape[1] // batch, channels // batch

    def left(b: Index, i: Index, kk: Index) -> tuple[Node, Coords, list[tuple[Index, int]]]:
        image, *spots = unflatten(i, (images, *sizes))
        *tap, c = unflatten(kk, (*taps, c_in))
        read: list[Index] = []
        guards: list[tuple[Index, int]] = []
        for axis, (spot, t) in enumerate(zip(spots, tap, strict=True)):
            at = spot * root.strides[axis] + t * root.dilations[axis] + (-root.pads[axis])
            extent = root.source.shape[2 + axis]
            if at.range[0] < 0 or at.range[1] >= extent:
                guards.append((at, extent))
            read.append(at)
        return root.source, (image, b * c_in + c, *read), guards

    def right() -> np.ndarray:
        assert isinstance(root.weight, Constant)
        weight = root.weight.array.reshape(batch, joined, c_out // joined, c_in // joined, *taps)
        full = np.zeros((batch, math.prod(taps), c_in, c_out), weight.dtype)
        flat = weight.reshape(batch, joined, c_out // joined, c_in // joined, -1)
        for j in range(joined):
            rows = slice(j * (c_in // joined), (j + 1) * (c_in // joined))
            columns = slice(j * (c_out // joined), (j + 1) * (c_out // joined))
            full[:, :, rows, columns] = flat[:, j].transpose(0, 3, 2, 1)
        return full.reshape(batch, -1, c_out)

    def root_coords(b: Index, i: Index, j: Index) -> Coords:
        image, *spots = unflatten(i, (images, *sizes))
        return (image, b * c_out + j, *spots)

    def inside(start: int, stop: int) -> range:
        """By the taps along the first dimension, whose channels and other taps lie together along k."""
        places, run = math.prod(sizes[1:]), math.prod(taps[1:]) * c_in
        if start // (sizes[0] * places) != (stop - 1) // (sizes[0] * places):
            return range(run * taps[0])  # of several images
        spots = [start // places % sizes[0], (stop - 1) // places % sizes[0]]
        first, last = (spot * root.strides[0] - root.pads[0] for spot in spots)
        extent, apart = root.source.shape[2], root.dilations[0]
        live_taps = [t for t in range(taps[0]) if last + t * apart >= 0 and first + t * apart < extent]
        return range(live_taps[0] * run, (live_taps[-1] + 1) * run) if live_taps else range(0)

    m = images * math.prod(sizes)
    skipped = None if root.fill else inside
    runs = (*taps, c_in)
    return Product(
        batch, m, c_out, math.prod(runs), root_coords, left, runs, right=right, inside=skipped, fill=root.fill
    )
