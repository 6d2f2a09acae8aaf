"""The native engine on random regions, against float64, on every instruction set that runs here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bricolage.backends.interface import Resources
from bricolage.backends.native.engine import FORCED_ISA_VARIABLE, Native
from bricolage.errors import Refused
from bricolage.native.cpu.isa import available_isas, find_isa
from bricolage.native.ir.lowerings import contractions
from bricolage.testing import grow
from bricolage.testing.truth import BOUND
from bricolage.verify.reference import evaluate
from bricolage.work.implementation import KernelConfig
from tests.backends import regions
from tests.native.exactness import check


@pytest.mark.thinned("isa")
@pytest.mark.parametrize("block", [*range(4), *(pytest.param(block, marks=pytest.mark.slow) for block in range(4, 8))])
@pytest.mark.usefixtures("isa")
def test_random_regions(block: int) -> None:
    for seed in range(5 * block, 5 * block + 5):
        check(grow(seed), seed, threads=1 + seed % 3)


@pytest.mark.parametrize(
    "start", [40, pytest.param(46, marks=pytest.mark.slow), pytest.param(52, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("isa", ["emulated-amx", pytest.param("split-amx", marks=pytest.mark.slow)])
def test_random_regions_in_six_products_are_as_accurate(isa: str, start: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if find_isa(isa) is None:
        pytest.skip("it does not run here")
    monkeypatch.setenv(FORCED_ISA_VARIABLE, isa)
    checked = 0
    for seed in range(start, start + 6):
        try:
            check(grow(seed), seed, threads=1 + seed % 3, config=KernelConfig("bf16x6"))
        except Refused as reason:
            assert "no products" in str(reason)
        else:
            checked += 1
    assert checked > 1


@pytest.mark.thinned("size", "attributes", "out")
@pytest.mark.parametrize(
    ("isa", "config"),
    [*((isa.name, "f32") for isa in available_isas()), ("emulated-amx", "bf16x6"), ("emulated-amx", "bf16x3")],
)
@pytest.mark.parametrize(
    ("size", "attributes", "out"),
    [
        ((17, 17), "pads = [9, 9, 9, 9], dilations = [9, 9]", (17, 17)),
        ((17, 12), "pads = [7, 3, 9, 10], dilations = [8, 6], strides = [2, 1]", (9, 13)),
        ((9, 40), "pads = [6, 0, 6, 1], dilations = [7, 2], strides = [1, 2]", (7, 19)),
        ((8, 16), "pads = [12, 6, 4, 6], dilations = [8, 6], group = 2", (8, 16)),
        ((40, 6), "pads = [14, 1, 14, 1], dilations = [14, 1]", (40, 6)),
    ],
)
def test_taps_that_fall_into_the_padding(
    size: tuple[int, int],
    attributes: str,
    out: tuple[int, int],
    isa: str,
    config: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    if find_isa(isa) is None:
        pytest.skip("it does not run here")
    monkeypatch.setenv(FORCED_ISA_VARIABLE, isa)
    monkeypatch.setattr(contractions, "_PART", 0)  # in parts even where they are too small to be worth it
    channels = 20 if "group" not in attributes else 10
    model = regions.region(
        tmp_path,
        f"a = Conv <{attributes}> (x, w, b) \n y = Relu (a)",
        f"float[2, 20, {size[0]}, {size[1]}] x",
        f"float[2, 24, {out[0]}, {out[1]}] y",
        w=regions.noise(24, channels, 3, 3),
        b=regions.noise(24),
    )
    x = regions.noise(2, 20, *size, seed=1)
    expected = evaluate(model.model, {"x": x}, dtype=np.float64)["y"]
    found = regions.answer(Native(), model, x, config=KernelConfig(config), resources=Resources(threads=2))
    assert regions.error(found, [expected]) < (2e-5 if config == "bf16x3" else BOUND)


@pytest.mark.parametrize("first", ["", "a = Conv (x, w)"], ids=["channels first", "channels last"])
@pytest.mark.parametrize(
    "pool", ["MaxPool", "AveragePool <count_include_pad = 1,", "AveragePool <count_include_pad = 0,"]
)
def test_padding_of_pools_in_either_layout(pool: str, first: str, tmp_path: Path) -> None:
    opening = pool if "<" in pool else f"{pool} <"
    model = regions.region(
        tmp_path,
        f"{first} y = {opening} kernel_shape = [3, 5], pads = [1, 2, 1, 2]> ({'a' if first else 'x'})",
        "float[2, 20, 9, 11] x",
        "float[2, 20, 9, 11] y",
        **({"w": regions.noise(20, 20, 1, 1)} if first else {}),
    )
    x = regions.noise(2, 20, 9, 11, seed=1)
    expected = evaluate(model.model, {"x": x}, dtype=np.float64)["y"]
    assert regions.error(regions.answer(Native(), model, x, resources=Resources(threads=2)), [expected]) < BOUND


@pytest.mark.thinned("isa")
@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.usefixtures("isa")
def test_padding_in_front_of_narrow_products(width: int, tmp_path: Path) -> None:
    """GCC 12.2 made wrong code of a test with two comparisons in a loop over two neighbours."""
    model = regions.region(
        tmp_path,
        "p = Pad (x, pads) \n y = MatMul (p, w)",
        f"float[7, 3, {width}] x",
        "float[11, 3, 16] y",
        pads=np.array([1, 0, 0, 3, 0, 0]),
        w=regions.noise(width, 16),
    )
    x = regions.noise(7, 3, width, seed=1)
    expected = regions.reference(model, x)
    assert regions.error(regions.answer(Native(), model, x, resources=Resources(threads=2)), expected) < BOUND


def test_a_reduction_over_nothing_but_extents_of_one_with_work_before_and_behind_it(tmp_path: Path) -> None:
    model = regions.region(
        tmp_path,
        "a = Tanh (x) \n b = ReduceMean (a, axes) \n y = Elu (b)",
        "float[3, 1, 1] x",
        "float[3, 1, 1] y",
        axes=np.int64([1, 2]),
    )
    x = regions.noise(3, 1, 1)
    expected = evaluate(model.model, {"x": x}, dtype=np.float64)["y"]
    assert regions.error(regions.answer(Native(), model, x, resources=Resources(threads=2)), [expected]) < BOUND


@pytest.mark.thinned("isa")
@pytest.mark.parametrize(
    ("shape", "pads", "out"),
    [((7, 2, 1), [1, 0, 0, 2, 0, 0], (10, 2, 1)), ((1, 16, 5, 7), [0, 0, 2, 0, 1, 1, 2, 2], (2, 17, 9, 9))],
    ids=["short rows", "images"],
)
@pytest.mark.usefixtures("isa")
def test_padding_where_the_compiler_might_vectorise_around_it(
    shape: tuple[int, ...],
    pads: list[int],
    out: tuple[int, ...],
    tmp_path: Path,
) -> None:
    """GCC 12 reads zeros in place of some elements there, if it may."""
    model = regions.region(
        tmp_path,
        "y = Pad (x, pads, half)",
        f"float{list(shape)} x",
        f"float{list(out)} y",
        pads=np.int64(pads),
        half=np.float32(0.5),
    )
    x = regions.noise(*shape)
    (found,) = regions.answer(Native(), model, x)
    assert np.array_equal(found, regions.reference(model, x)[0])


@pytest.mark.thinned("isa")
@pytest.mark.usefixtures("isa")
def test_padded_convolutions_of_narrow_images(tmp_path: Path) -> None:
    """Their taps are runs of one or two elements, for which GCC 12 vectorised the loops around them, wrongly."""
    model = regions.region(
        tmp_path,
        """
        t = ConvTranspose <kernel_shape = [5, 5], pads = [1, 1, 1, 1], strides = [3, 3]> (x, u)
        y = Conv <dilations = [2, 1], pads = [1, 1, 1, 0], strides = [1, 2]> (t, v)
        a = Conv <pads = [0, 1, 1, 0]> (x, w)
        z = ReduceMin <keepdims = 1> (a, axes)
        """,
        "float[1, 1, 7, 5] x",
        "float[1, 5, 23, 8] y, float[1, 2, 8, 1] z",
        u=regions.noise(1, 2, 5, 5),
        v=regions.noise(5, 2, 1, 2, seed=1),
        w=regions.noise(2, 1, 1, 3, seed=2),
        axes=np.array([0, 3]),
    )
    x = regions.noise(1, 1, 7, 5, seed=3)
    found = regions.answer(Native(), model, x, resources=Resources(threads=2))
    assert regions.error(found, regions.reference(model, x)) < BOUND


@pytest.mark.thinned("isa")
@pytest.mark.usefixtures("isa")
def test_threads_store_their_own_share_only(tmp_path: Path) -> None:
    """GCC 12 stored back what it had read beyond a thread's share, when it vectorised the loop over places."""
    model = regions.region(
        tmp_path,
        "y = Conv <pads = [1, 1, 0, 0]> (x, w) \n z = Conv <group = 4, pads = [1, 1, 0, 1], strides = [2, 1]> (f, v)",
        "float[1, 1, 5, 6] x, float[1, 4, 5, 6] f",
        "float[1, 16, 5, 5] y, float[1, 4, 3, 8] z",
        w=regions.noise(16, 1, 2, 3),
        v=regions.noise(4, 1, 1, 1, seed=1),
    )
    given = [regions.noise(1, 1, 5, 6, seed=2), regions.noise(1, 4, 5, 6, seed=3)]
    expected = regions.reference(model, *given)
    _, outputs, call = regions.bound(Native().compile(model, regions.F32, Resources(threads=2)), model, *given)
    for _ in range(300):
        for array in outputs:
            array.fill(np.nan)
        call()
        assert regions.error(outputs, expected) < BOUND


@pytest.mark.slow
@pytest.mark.parametrize("block", range(50))
@pytest.mark.usefixtures("isa")
def test_many_random_regions(block: int) -> None:
    for seed in range(1000 + 100 * block, 1100 + 100 * block):
        check(grow(seed), seed)
