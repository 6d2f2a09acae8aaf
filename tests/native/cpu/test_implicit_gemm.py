"""Convolutions in matrix form."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from bricolage.native.cpu.implicit_gemm import product
from bricolage.native.ir.tensors import Constant, Conv, Input


def random_conv(draw: random.Random) -> Conv:
    """Of one to three dimensions; windows that stand in the padding altogether are among them."""
    rank = draw.randint(1, 3)
    taps, strides, dilations, pads, sizes = (
        tuple(draw.randint(low, high) for _ in range(rank)) for low, high in ((1, 3), (1, 2), (1, 4), (0, 5), (1, 7))
    )
    sizes = tuple(max(n, d * (t - 1) + 1) for n, d, t in zip(sizes, dilations, taps, strict=True))
    out = tuple(
        (n + 2 * p - d * (t - 1) - 1) // s + 1
        for n, p, d, t, s in zip(sizes, pads, dilations, taps, strides, strict=True)
    )
    weight = Constant((4, 3, *taps), "float32", np.ones((4, 3, *taps), np.float32))
    images = draw.randint(1, 2)
    source = Input((images, 3, *sizes), "float32", 0)
    return Conv((images, 4, *out), "float32", source, weight, strides, pads, dilations, 1)


@pytest.mark.parametrize("seed", range(60))
def test_outside_of_what_is_inside_there_is_padding_only(seed: int) -> None:
    draw = random.Random(seed)
    root = random_conv(draw)
    form = product(root, 16)
    assert form.inside is not None
    spots = list(itertools.product(range(root.shape[0]), *map(range, root.shape[2:])))
    taps = list(itertools.product(*map(range, root.weight.shape[2:])))
    spared = 0
    for _ in range(20):
        start = draw.randrange(form.m)
        stop = draw.randint(start + 1, min(form.m, start + 9))
        own = form.inside(start, stop)
        assert own.start >= 0 and own.stop <= form.k
        spared += form.k - len(own)
        for row, (number, tap) in itertools.product(spots[start:stop], enumerate(taps)):
            at = row[1] * root.strides[0] + tap[0] * root.dilations[0] - root.pads[0]
            if not own.start <= number * 3 < own.stop:
                assert not 0 <= at < root.source.shape[2], (row, tap)
    if root.weight.shape[2] == 1 and root.pads[0] == 0:
        assert spared == 0, "nothing falls into the padding"
