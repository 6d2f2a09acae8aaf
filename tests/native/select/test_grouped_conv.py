"""Convolutions in groups: every way of laying out their channels, at every edge."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bricolage.backends.interface import Resources
from bricolage.backends.native.engine import Native
from tests.backends import regions

CASES: dict[str, tuple[int, int, int, tuple[int, ...], tuple[int, ...], dict[str, list[int]]]] = {
    "depthwise": (64, 64, 64, (3, 3), (12, 30), {"pads": [1, 1, 1, 1]}),
    "depthwise, channels that fill no vectors": (42, 42, 42, (5, 5), (11, 29), {"pads": [2, 2, 2, 2]}),
    "depthwise, few channels": (3, 3, 3, (3, 3), (8, 9), {"pads": [1, 1, 1, 1]}),
    "depthwise, long kernel": (16, 16, 16, (1, 13), (4, 40), {"pads": [0, 6, 0, 6]}),
    "depthwise, stride and uneven pads": (32, 32, 32, (7, 7), (23, 31), {"strides": [2, 2], "pads": [3, 2, 3, 4]}),
    "depthwise, dilation": (24, 24, 24, (3, 3), (14, 20), {"dilations": [2, 3], "pads": [2, 3, 2, 3]}),
    "depthwise, dilation that reaches far": (
        40,
        40,
        40,
        (3, 3),
        (14, 60),
        {"dilations": [6, 12], "pads": [6, 12, 6, 12]},
    ),
    "depthwise, nothing but padding at the edge": (16, 16, 16, (3, 3), (9, 30), {"pads": [4, 5, 4, 5]}),
    "depthwise, several blocks of channels": (200, 200, 200, (3, 3), (10, 16), {"pads": [1, 1, 1, 1]}),
    "depthwise, no padding": (16, 16, 16, (3, 2), (9, 17), {}),
    "depthwise, one dimension": (40, 40, 40, (5,), (50,), {"pads": [4, 0]}),
    "depthwise, three dimensions": (16, 16, 16, (3, 1, 3), (5, 6, 15), {"pads": [1, 0, 1, 1, 0, 1]}),
    "two channels a group": (32, 32, 16, (3, 3), (9, 15), {"pads": [1, 1, 1, 1]}),
    "four channels a group, some over": (36, 36, 9, (3, 3), (9, 15), {"pads": [1, 1, 1, 1]}),
    "eight channels a group, stride": (64, 64, 8, (3, 3), (13, 28), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "a group a vector": (48, 48, 3, (3, 3), (9, 15), {"pads": [1, 1, 1, 1]}),
    "vectors in a group": (64, 64, 2, (3, 3), (7, 7), {"pads": [1, 1, 1, 1]}),
    "more outputs than inputs": (12, 64, 2, (3, 3), (7, 9), {"pads": [1, 1, 1, 1]}),
    "groups that fit nowhere": (18, 24, 3, (3, 3), (7, 9), {"pads": [1, 1, 1, 1]}),
    "two outputs a channel": (24, 48, 24, (7, 7), (13, 18), {"strides": [2, 2], "pads": [3, 3, 3, 3]}),
    "one tap": (32, 32, 8, (1, 1), (7, 9), {}),
}


@pytest.mark.thinned("isa")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("isa")
def test_convolutions_in_groups(case: str, tmp_path: Path) -> None:
    """Between two pointwise convolutions, so that the data lies channels last, with an epilogue, on one to three threads."""
    c_in, c_out, groups, kernel, sizes, attributes = CASES[case]
    ones = (1,) * len(kernel)
    spatial = len(kernel)
    pads, strides, dilations = (
        attributes.get(name, [default] * count)
        for name, default, count in (("pads", 0, 2 * spatial), ("strides", 1, spatial), ("dilations", 1, spatial))
    )
    out = [
        (size + pads[i] + pads[i + spatial] - dilations[i] * (kernel[i] - 1) - 1) // strides[i] + 1
        for i, size in enumerate(sizes)
    ]
    text = ", ".join([f"group = {groups}", *(f"{name} = {value}" for name, value in attributes.items())])
    model = regions.region(
        tmp_path,
        f"""
        a = Conv (x, u)
        b = Conv <{text}> (a, v, bias)
        c = Relu (b)
        y = Conv (c, w)
        """,
        f"float{[2, 5, *sizes]} x",
        f"float{[2, 6, *out]} y",
        u=regions.noise(c_in, 5, *ones) / np.float32(2),
        v=regions.noise(c_out, c_in // groups, *kernel, seed=1) / np.sqrt(np.float32(c_in // groups * np.prod(kernel))),
        bias=regions.noise(c_out, seed=2),
        w=regions.noise(6, c_out, *ones, seed=3) / np.sqrt(np.float32(c_out)),
    )
    x = regions.noise(2, 5, *sizes, seed=4)
    expected = regions.reference(model, x)
    threads = 1 + len(case) % 3
    found = regions.answer(Native(), model, x, resources=Resources(threads=threads))
    assert regions.error(found, expected) < 1e-6


@pytest.mark.thinned("isa")
@pytest.mark.parametrize("first", ["0", "8"])
@pytest.mark.usefixtures("isa")
def test_tokens_and_heads_as_images(first: str, tmp_path: Path) -> None:
    """The source is a view of rows of tokens, the first of which is none of the image, or of heads that lie apart; of the heads'
    channels only some are read, from a multiple of a head's or not."""
    model = regions.region(
        tmp_path,
        """
        p = MatMul (x, m)
        s = Slice (p, one, end, one)
        t = Transpose <perm = [0, 2, 1]> (s)
        i = Reshape (t, image)
        y = Conv <group = 32, pads = [1, 1, 1, 1]> (i, w)
        h = Reshape (s, heads)
        u = Transpose <perm = [0, 2, 3, 1]> (h)
        r = Relu (u)
        v = Reshape (r, image)
        c = Slice (v, from, to, one)
        z = Conv <group = 16, pads = [2, 2, 2, 2]> (c, k)
        """,
        "float[2, 31, 16] x",
        "float[2, 32, 5, 6] y, float[2, 16, 5, 6] z, float[2, 4, 8, 30] r",
        m=regions.noise(16, 32) / np.float32(4),
        one=np.array([1]),
        end=np.array([31]),
        heads=np.array([2, 30, 4, 8]),
        image=np.array([2, 32, 5, 6]),
        w=regions.noise(32, 1, 3, 3, seed=1) / np.float32(3),
        k=regions.noise(16, 1, 5, 5, seed=2) / np.float32(5),
        **{"from": np.array([int(first) + 4]), "to": np.array([int(first) + 20])},
    )
    x = regions.noise(2, 31, 16, seed=3)
    found = regions.answer(Native(), model, x, resources=Resources(threads=2))
    assert regions.error(found, regions.reference(model, x)) < 1e-6
