"""Equal rows and equal columns have equal results, bit for bit, whatever tile, vector or thread they fall to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.random import Generator

from bricolage.backends.interface import RegionModel, Resources
from bricolage.backends.native.engine import FORCED_ISA_VARIABLE, Native
from bricolage.errors import Refused
from bricolage.native.cpu.isa import available_isas, find_isa
from bricolage.work.implementation import KernelConfig
from tests.backends import regions

FLOATS = [*(isa.name for isa in available_isas()), "split-avx512", "split-neon"]
WAYS = [
    *((isa, "f32") for isa in dict.fromkeys(FLOATS)),
    (FLOATS[0], "int8"),
    (FLOATS[0], "bf16"),
    *(("split-amx", config) for config in ("bf16", "bf16x6", "int8x6")),
]
ROWS = (1, 2, 3, 4, 5, 7, 9, 13, 29)
"""Of products: as many as a tile has, one more, and some that tiles share unevenly."""
CONVOLUTIONS = (
    # channels, outputs, height and width, attributes, groups
    (3, 21, (7, 5), "pads = [1, 1, 1, 1]", 1),
    (16, 5, (6, 6), "pads = [1, 1, 1, 1], strides = [2, 2]", 1),
    (16, 37, (9, 4), "pads = [1, 1, 1, 1]", 1),
    (20, 1, (5, 5), "pads = [4, 4, 4, 4], dilations = [4, 4]", 1),
    (37, 37, (6, 17), "pads = [1, 1, 1, 1], group = 37", 37),
    (8, 24, (5, 7), "pads = [1, 1, 1, 1], group = 2", 2),
)
IMAGES = 3
WIDTH = 37
"""Of rows of other operators: no multiple of any vector."""
OPERATORS = {
    **{
        name: f"{{y}} = {name} (x)"
        for name in ("Exp", "Tanh", "Erf", "Sqrt", "Softmax", "LogSoftmax", "LpNormalization")
    },
    **{name: f"{{y}} = {name} (x, v)" for name in ("Div", "LayerNormalization")},
    "ReduceSum": "{y}a = ReduceSum (x, last) \n {y} = Mul ({y}a, x)",
    "CumSum": "{y} = CumSum (x, last)",
    "Perceptron": "{y}a = MatMul (x, w) \n {y}b = Sigmoid ({y}a) \n {y}c = MatMul ({y}b, w) \n {y} = Add ({y}c, x)",
    "Attention": "{y}a = MatMul (x, w) \n {y}b = Softmax ({y}a) \n {y} = MatMul ({y}b, w)",
}


def run(region: RegionModel, config: str, *values: np.ndarray) -> list[np.ndarray]:
    """The outputs, which have the same bits on one thread and on two. Skips what an instruction set has no such products for."""
    try:
        first, second = (
            regions.answer(Native(), region, *values, config=KernelConfig(config), resources=Resources(threads=threads))
            for threads in (1, 2)
        )
    except Refused as reason:
        pytest.skip(str(reason))
    for output, (on_one, on_two) in enumerate(zip(first, second, strict=True)):
        assert on_one.tobytes() == on_two.tobytes(), f"output {output} differs between one thread and two"
    return first


def are_equal(parts: np.ndarray) -> bool:
    """Whether all parts along the first dimension have the same bits."""
    return len({part.tobytes() for part in parts}) == 1


def forced(isa: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Has C generated for an instruction set, whose lanes are returned."""
    chosen = find_isa(isa)
    if chosen is None:
        pytest.skip(f"{isa} does not run here")
    monkeypatch.setenv(FORCED_ISA_VARIABLE, isa)
    return chosen.lanes


def draw_products(draw: Generator, lanes: int) -> list[tuple[int, int, int]]:
    """Rows, columns and depth of products. The last of their panels, or the only one, is a vector wide or two."""
    return [
        (
            rows,
            2 * lanes * (number % 4 != 3) * int(draw.integers(1, 3))
            + int(draw.integers(1, lanes + lanes * (number % 3 == 2))),
            int(draw.integers(20, 150)),
        )
        for number, rows in enumerate(ROWS)
    ]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))])
@pytest.mark.parametrize(("isa", "config"), WAYS)
def test_equal_rows_and_columns_of_a_product(
    isa: str, config: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = np.random.default_rng(seed)
    sizes = draw_products(draw, forced(isa, monkeypatch))
    column = [draw.standard_normal((k, 1)).astype(np.float32) for _, _, k in sizes]
    row = [draw.standard_normal((1, k)).astype(np.float32) for _, _, k in sizes]
    region = regions.region(
        tmp_path,
        "\n".join(f"y{i} = MatMul (x{i}, w{i})" for i in range(len(sizes))),
        ", ".join(f"float[{m}, {k}] x{i}" for i, (m, _, k) in enumerate(sizes)),
        ", ".join(f"float[{m}, {n}] y{i}" for i, (m, n, _) in enumerate(sizes)),
        **{f"w{i}": np.repeat(column[i], n, axis=1) for i, (_, n, _) in enumerate(sizes)},
    )
    results = run(region, config, *(np.repeat(row[i], m, axis=0) for i, (m, _, _) in enumerate(sizes)))
    unequal = [size for size, y in zip(sizes, results, strict=True) if not are_equal(y.reshape(-1))]
    assert not unequal


@pytest.mark.parametrize("isa", dict.fromkeys(FLOATS))
def test_equal_images_and_channels_of_a_convolution(isa: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forced(isa, monkeypatch)
    draw = np.random.default_rng(0)
    body, inputs, outputs, values, weights = [], [], [], [], dict[str, np.ndarray]()
    for i, (channels, count, (height, width), attributes, groups) in enumerate(CONVOLUTIONS):
        image = draw.standard_normal((1, channels // groups, height, width)).astype(np.float32)
        kernel = draw.standard_normal((1, channels // groups, 3, 3)).astype(np.float32)
        values.append(np.tile(image, (IMAGES, groups, 1, 1)))
        weights[f"w{i}"] = np.repeat(kernel, count, axis=0)
        step = 2 if "strides" in attributes else 1
        body.append(f"y{i} = Conv <{attributes}> (x{i}, w{i})")
        inputs.append(f"float[{IMAGES}, {channels}, {height}, {width}] x{i}")
        outputs.append(f"float[{IMAGES}, {count}, {height // step}, {width // step}] y{i}")
    region = regions.region(tmp_path, "\n".join(body), ", ".join(inputs), ", ".join(outputs), **weights)
    results = run(region, "f32", *values)
    unequal = [
        convolution
        for convolution, y in zip(CONVOLUTIONS, results, strict=True)
        if not are_equal(y.reshape(-1, *y.shape[2:]))
    ]
    assert not unequal


@pytest.mark.thinned("config")
@pytest.mark.parametrize("config", ["f32-winograd2", "f32-winograd4"])
@pytest.mark.parametrize(("side", "images"), [(14, IMAGES), (6, 1)])
@pytest.mark.parametrize("isa", FLOATS[:1])
def test_equal_images_and_channels_by_winograd(
    isa: str, side: int, images: int, config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of few tiles as well, of which a thread of two has half as many in a micro-kernel as one thread alone."""
    lanes = forced(isa, monkeypatch)
    channels, outputs = 4 * lanes, 4 * lanes + 1
    region = regions.region(
        tmp_path,
        "a = Conv (x, v) \n y = Conv <pads = [1, 1, 1, 1]> (a, w)",
        f"float[{images}, {channels}, {side}, {side}] x",
        f"float[{images}, {outputs}, {side}, {side}] y",
        v=regions.noise(channels, channels, 1, 1),
        w=np.repeat(regions.noise(1, channels, 3, 3), outputs, axis=0),
    )
    (y,) = run(region, config, np.repeat(regions.noise(1, channels, side, side), images, axis=0))
    assert are_equal(y.reshape(-1, side, side))


@pytest.mark.usefixtures("product_level")
def test_equal_rows_of_other_operators(tmp_path: Path) -> None:
    """As compilers vectorise them, with what is left of a vector at the end of a thread's share."""
    draw = np.random.default_rng(0)
    rows = 13
    region = regions.region(
        tmp_path,
        "\n".join(body.format(y=f"y{i}") for i, body in enumerate(OPERATORS.values())),
        f"float[{rows}, {WIDTH}] x",
        ", ".join(f"float[{rows}, {WIDTH}] y{i}" for i in range(len(OPERATORS))),
        v=draw.uniform(0.5, 1.5, WIDTH).astype(np.float32),
        w=draw.standard_normal((WIDTH, WIDTH)).astype(np.float32),
        last=np.int64([-1]),
    )
    row = draw.uniform(0.05, 0.95, (1, WIDTH)).astype(np.float32)
    results = dict(zip(OPERATORS, run(region, "f32", np.repeat(row, rows, axis=0)), strict=True))
    assert not [name for name, y in results.items() if not are_equal(y)]
