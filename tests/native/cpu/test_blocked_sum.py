"""Sums of millions of elements, whose rounding must not grow with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bricolage.backends.interface import Resources
from bricolage.backends.native.engine import Native
from bricolage.verify.reference import evaluate
from tests.backends import regions

BOUND = 3e-7


def large(*shape: int) -> np.ndarray:
    """Of one sign, so that every partial sum is rounded to the size of the whole."""
    return np.random.default_rng(0).uniform(0.5, 1.5, shape).astype(np.float32)


@pytest.mark.thinned("isa")
@pytest.mark.usefixtures("isa")
def test_reductions(tmp_path: Path) -> None:
    """One long dimension, long rows, short rows, and dimensions in between."""
    shapes = [(2, 1_000_003), (2, 1_000, 700), (2, 200_001, 3), (2, 31, 9, 1_100, 2), (2, 3, 5_000, 1, 17)]
    calls, outputs = list[str](), list[str]()
    for i, shape in enumerate(shapes):
        axes = f"axes{len(shape)}"
        calls.append(f"s{i} = ReduceSum <keepdims = 0> (x{i}, {axes}) \n q{i} = ReduceSumSquare (x{i})")
        calls.append(f"m{i} = ReduceMean <keepdims = 0> (x{i}, {axes})")
        outputs.append(f"float[2] s{i}, float[2] m{i}, float{[1] * len(shape)} q{i}")
    model = regions.region(
        tmp_path,
        "\n".join(calls),
        ", ".join(f"float{list(shape)} x{i}" for i, shape in enumerate(shapes)),
        ", ".join(outputs),
        **{f"axes{rank}": np.arange(1, rank) for rank in {len(shape) for shape in shapes}},
    )
    given = [large(*shape) for shape in shapes]
    expected: list[np.ndarray] = []
    for x in given:
        rows = x.astype(np.float64).reshape(2, -1)
        expected += [rows.sum(axis=1), rows.mean(axis=1), (rows**2).sum()]
    assert regions.error(regions.answer(Native(), model, *given, resources=Resources(threads=2)), expected) < BOUND


def test_equal_terms_in_short_loops(tmp_path: Path) -> None:
    """All of them are rounded the same way, so that errors do not cancel; and no vector takes them apart."""
    x = np.full((17, 2, 7, 5, 1, 3), np.float32(1.5051261))
    model = regions.region(tmp_path, "s = ReduceSum (x)", f"float{list(x.shape)} x", f"float{[1] * x.ndim} s")
    found = regions.answer(Native(), model, x, resources=Resources(threads=1))
    assert regions.error(found, [x.astype(np.float64).sum()]) < 1e-6


@pytest.mark.thinned("isa")
@pytest.mark.parametrize(
    ("channels", "sizes", "last"),
    [(3, (900, 700), False), (32, (112, 112), True), (20, (7, 601), True), (16, (3001,), True)],
    ids=["first", "square", "long", "row"],
)
@pytest.mark.usefixtures("isa")
def test_images_and_their_normalisation(
    channels: int,
    sizes: tuple[int, ...],
    last: bool,
    tmp_path: Path,
) -> None:
    """Channels lie last where a convolution makes them; this one is exact."""
    shape, ones = [1, channels, *sizes], (1,) * len(sizes)
    groups = 1 if channels == 3 else 4
    model = regions.region(
        tmp_path,
        f"""
        a = {"Conv (x, w)" if last else "Neg (x)"}
        y = InstanceNormalization (a, g, b)
        h = GroupNormalization <num_groups = {groups}> (a, g, b)
        z = GlobalAveragePool (a)
        """,
        f"float{shape} x",
        f"float{shape} y, float{shape} h, float[1, {channels}, {', '.join('1' for _ in sizes)}] z",
        opset=21,
        g=np.ones(channels, np.float32),
        b=np.zeros(channels, np.float32),
        **({"w": -np.eye(channels, dtype=np.float32).reshape(channels, channels, *ones)} if last else {}),
    )
    x = large(*shape)
    wide = -x.astype(np.float64)
    grouped = wide.reshape(1, groups, -1)

    def normalised(values: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        mean, variance = values.mean(axis=axes, keepdims=True), values.var(axis=axes, keepdims=True)
        found: np.ndarray = ((values - mean) / np.sqrt(variance + 1e-5)).reshape(shape)
        return found

    places = tuple(range(2, len(shape)))
    expected = [normalised(wide, places), normalised(grouped, (2,)), wide.mean(axis=places, keepdims=True)]
    assert regions.error(regions.answer(Native(), model, x, resources=Resources(threads=2)), expected) < BOUND


@pytest.mark.thinned("isa")
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.usefixtures("isa")
def test_windows_with_padding(last: bool, tmp_path: Path) -> None:
    """Their terms are read under conditions."""
    model = regions.region(
        tmp_path,
        f"""
        a = {"Conv (x, w)" if last else "Neg (x)"}
        y = AveragePool <kernel_shape = [131, 129], pads = [9, 2, 0, 70], strides = [50, 40]> (a)
        z = AveragePool <kernel_shape = [17, 19], pads = [1, 8, 3, 9], strides = [9, 30], count_include_pad = 1> (a)
        """,
        "float[1, 16, 140, 150] x",
        "float[1, 16, 1, 3] y, float[1, 16, 15, 5] z",
        **({"w": -np.eye(16, dtype=np.float32).reshape(16, 16, 1, 1)} if last else {}),
    )
    x = large(1, 16, 140, 150)
    expected = evaluate(model.model, {"x": x}, dtype=np.float64)
    found = regions.answer(Native(), model, x, resources=Resources(threads=2))
    assert regions.error(found, [expected[info.name] for info in model.outputs]) < BOUND
