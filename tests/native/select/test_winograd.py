"""Winograd's transformations: exact identities, and convolutions done with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bricolage.backends.interface import RegionModel, Resources
from bricolage.backends.native.engine import Native
from bricolage.device.host import host
from bricolage.errors import Refused
from bricolage.native.cpu import winograd_transform
from bricolage.native.cpu.isa import Isa, available_isas
from bricolage.native.cpu.winograd_transform import F2, F4, Transform
from bricolage.work.implementation import KernelConfig, named
from tests.backends import regions


@given(st.sampled_from([F2, F4]), st.integers(0, 1000))
def test_the_transformations_are_correlations(t: Transform, seed: int) -> None:
    draw = np.random.default_rng(seed)
    n = t.m + 2
    data, kernel = draw.standard_normal((n, n)), draw.standard_normal((3, 3))
    transformed = (t.filter @ kernel @ t.filter.T) * (t.data @ data @ t.data.T)
    found = t.output @ transformed @ t.output.T
    expected = [[np.sum(data[i : i + 3, j : j + 3] * kernel) for j in range(t.m)] for i in range(t.m)]
    assert np.allclose(found, expected, atol=1e-12)


def network(
    folder: Path, shape: tuple[int, ...], channels: int, pads: tuple[int, ...], out: tuple[int, ...]
) -> RegionModel:
    """A pointwise convolution, whose result lies channels last, and one of three taps in each dimension behind it."""
    spatial = len(shape) - 2
    v = regions.noise(shape[1], shape[1], *(1,) * spatial) / np.sqrt(np.float32(shape[1]))
    w = regions.noise(channels, shape[1], *(3,) * spatial, seed=1) / np.sqrt(np.float32(shape[1] * 3**spatial))
    return regions.region(
        folder,
        f"a = Conv (x, v) \n c = Conv <pads = {list(pads)}> (a, w, b) \n y = Relu (c)",
        f"float{list(shape)} x",
        f"float{[shape[0], channels, *out]} y",
        v=v,
        w=w,
        b=regions.noise(channels, seed=2),
    )


EVEN = pytest.param((1, 64, 28, 30), 48, (1, 1, 1, 1), (28, 30), id="even")
ODD = pytest.param((2, 96, 33, 21), 72, (0, 2, 1, 0), (32, 21), id="odd sizes and pads")
DEEP = pytest.param((1, 32, 5, 17, 18), 33, (1, 1, 1, 1, 1, 1), (5, 17, 18), id="with depth")
SIZES = ("shape", "channels", "pads", "out")


def error(model: RegionModel, x: np.ndarray, config: KernelConfig, direct: KernelConfig) -> float:
    """Of `config`, which must not be what `direct` is."""
    found, other = (
        regions.answer(Native(), model, x, config=one, resources=Resources(threads=2)) for one in (config, direct)
    )
    assert not np.array_equal(found[0], other[0]), "it was done another way"
    return regions.error(found, regions.reference(model, x))


@pytest.mark.thinned("isa", "config")
@pytest.mark.parametrize(SIZES, [EVEN, ODD, DEEP])
@pytest.mark.parametrize("config", named("f32-winograd2", "f32-winograd4"), ids=str)
@pytest.mark.usefixtures("isa")
def test_convolutions(
    shape: tuple[int, ...],
    channels: int,
    pads: tuple[int, ...],
    out: tuple[int, ...],
    config: KernelConfig,
    tmp_path: Path,
) -> None:
    model, x = network(tmp_path, shape, channels, pads, out), regions.noise(*shape, seed=3)
    assert error(model, x, config, regions.F32) < 5e-6


@pytest.mark.parametrize(
    SIZES, [ODD, *(pytest.param(*one.values, id=one.id, marks=pytest.mark.slow) for one in (EVEN, DEEP))]
)
@pytest.mark.parametrize(
    "isa", [isa for isa in available_isas() if isa.multiplies_bfloat16(host())], ids=lambda isa: isa.name, indirect=True
)
def test_convolutions_in_bfloat16(
    shape: tuple[int, ...],
    channels: int,
    pads: tuple[int, ...],
    out: tuple[int, ...],
    isa: Isa,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if isa.matrix_unit:  # products are so cheap there that layers this small do not gain
        monkeypatch.setattr(winograd_transform, "_TRANSFORM_COST", 0.0)
        monkeypatch.setattr(winograd_transform, "_STREAM_COST", 0.0)
    model, x = network(tmp_path, shape, channels, pads, out), regions.noise(*shape, seed=3)
    assert 1e-4 < error(model, x, *named("bf16-winograd2", "bf16")) < 1e-2


def test_a_region_that_gains_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no convolution gains"):
        Native().compile(regions.conv_net(tmp_path), KernelConfig("f32-winograd2"), Resources(threads=1))
