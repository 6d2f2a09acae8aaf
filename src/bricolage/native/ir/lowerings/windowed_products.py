"""Convolutions as products of windows and weights, for those that no kernel of convolutions takes: computed weights, and types
other than float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from bricolage.native.ir.index_expressions import Index
from bricolage.native.ir.lowerings.contractions import multiply_matrices
from bricolage.native.ir.lowerings.views import reshape, transpose
from bricolage.native.ir.tensors import Coords, Node, View

_Tests = list[tuple[Index, int]]
"""Indices, each with the extent that it must lie within."""
_Reads = Callable[[Sequence[Index], Sequence[Index]], tuple[list[Index], _Tests]]
"""From the places of windows and from taps to what is read."""


def convolve_windows(
    x: Node,
    weight: Node,
    strides: Sequence[int],
    pads: Sequence[tuple[int, int]],
    dilations: Sequence[int],
    groups: int,
) -> Node:
    """x [n, c, spatial...] and weights [m, c / groups, taps...] to [n, m, spatial...]."""
    kernel, sizes = weight.shape[2:], x.shape[2:]
    every = list(zip(sizes, kernel, strides, dilations, pads, strict=True))
    out = tuple(
        (size + before + behind - (taps - 1) * dilation - 1) // stride + 1
        for size, taps, stride, dilation, (before, behind) in every
    )

    def reads(places: Sequence[Index], taps: Sequence[Index]) -> tuple[list[Index], _Tests]:
        positions = [
            place * stride + tap * dilation - before
            for place, tap, (_, _, stride, dilation, (before, _)) in zip(places, taps, every, strict=True)
        ]
        return positions, list(zip(positions, sizes, strict=True))

    matrices = reshape(weight, (groups, weight.shape[0] // groups, math.prod(weight.shape[1:])))
    return _multiply_windows(x, transpose(matrices, (0, 2, 1)), kernel, out, reads)


def convolved_transposed(x: Node, weight: Node, strides: Sequence[int], dilations: Sequence[int], groups: int) -> Node:
    """x [n, c, spatial...] and weights [c, m / groups, taps...] to [n, m, spatial...], all that any tap reaches: a convolution of x
    with zeros between its elements."""
    kernel, sizes = weight.shape[2:], x.shape[2:]
    every = list(zip(sizes, kernel, strides, dilations, strict=True))
    out = tuple((size - 1) * stride + (taps - 1) * dilation + 1 for size, taps, stride, dilation in every)

    def reads(places: Sequence[Index], taps: Sequence[Index]) -> tuple[list[Index], _Tests]:
        positions, tests = list[Index](), _Tests()
        for place, tap, (size, count, stride, dilation) in zip(places, taps, every, strict=True):
            ahead = -(-(count - 1) * dilation // stride)  # so that what is divided is never negative
            whole, rest = (place - tap * dilation + ahead * stride).split(stride)
            positions.append(whole - ahead)
            tests += [(whole - ahead, size), (rest, 1)]
        return positions, tests

    channels, columns, taps = weight.shape[0] // groups, weight.shape[1], math.prod(kernel)
    apart = transpose(reshape(weight, (groups, channels, columns, taps)), (0, 1, 3, 2))
    return _multiply_windows(x, reshape(apart, (groups, channels * taps, columns)), kernel, out, reads)


def _multiply_windows(x: Node, matrices: Node, kernel: Sequence[int], out: Sequence[int], reads: _Reads) -> Node:
    """Windows of x times matrices [groups, channels · taps, columns]: for each place of `out` and each tap of `kernel` what `reads`
    says, zero where its tests fail."""
    groups, depth, columns = matrices.shape
    images, channels, dims = x.shape[0], x.shape[1] // groups, len(kernel)

    def parts(coords: Coords) -> tuple[list[Index], _Tests]:
        image, group, *rest = coords
        spots, tests = reads(rest[:dims], rest[dims + 1 :])
        return [image, group * channels + rest[dims], *spots], tests

    windows = View(
        (images, groups, *out, channels, *kernel),
        x.dtype,
        x,
        lambda coords: tuple(parts(coords)[0]),
        lambda coords: parts(coords)[1],
    )
    rows = reshape(windows, (images, groups, math.prod(out), depth))
    products = multiply_matrices(rows, reshape(matrices, (1, *matrices.shape)))
    return reshape(transpose(products, (0, 1, 3, 2)), (images, groups * columns, *out))
