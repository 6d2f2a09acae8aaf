"""Winograd's transformation of bytes: the same integers as the direct convolution."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bricolage.backends.interface import RegionModel, Resources
from bricolage.backends.native.engine import FORCED_ISA_VARIABLE, Native
from bricolage.native.cpu.arithmetic import FLOAT32
from bricolage.native.cpu.isa import find_isa
from bricolage.native.cpu.kernel_choice import KernelChoice
from bricolage.native.cpu.winograd_transform import WHOLE_F2, WHOLE_F4, Transform
from bricolage.native.fuse.kernel_plan import FusionPlan
from bricolage.native.ir.tensors import Conv
from bricolage.native.select.algorithm import KernelRequest
from bricolage.native.select.algorithm_table import choose_algorithm
from bricolage.native.select.winograd import WINOGRAD, choose_transform
from tests.backends import regions
from tests.native.cpu.test_byte_products import runnable
from tests.native.cpu.test_given_bytes import convolved, s8, u8
from tests.native.targets import cpu_target, planned_region

whole = pytest.mark.parametrize("t", [WHOLE_F2, WHOLE_F4], ids=["2x2", "4x4"])
BYTES = st.integers(0, 255) | st.sampled_from([0, 255])
WEIGHTS = st.integers(-128, 127) | st.sampled_from([-128, 127])


def correlated(data: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    windows = np.lib.stride_tricks.sliding_window_view(data, (3, 3))
    return np.einsum("yxij,ij->yx", windows, kernel)


@whole
@given(st.data())
def test_the_multiple_comes_out(t: Transform, data: st.DataObject) -> None:
    n = t.m + 2
    d = np.array(data.draw(st.lists(BYTES, min_size=n * n, max_size=n * n))).reshape(n, n)
    g = np.array(data.draw(st.lists(WEIGHTS, min_size=9, max_size=9))).reshape(3, 3)
    b, f, a = (one.astype(np.int64) for one in (t.data, t.filter, t.output))
    assert all(np.array_equal(x, y) for x, y in ((b, t.data), (f, t.filter), (a, t.output)))
    right = correlated(d, g)
    assert np.array_equal(a @ ((f @ g @ f.T) * (b @ d @ b.T)) @ a.T, t.multiple * right)


@whole
def test_transformed_bytes_fit_int16(t: Transform) -> None:
    """At the worst of bytes and weights, and so do all partial sums, whatever their order."""
    by_point = np.einsum("ai,bj->abij", t.data, t.data).reshape((t.m + 2) ** 2, -1)
    assert 255 * np.maximum(by_point, 0).sum(axis=1).max() < 2**15
    assert 255 * np.abs(by_point).sum(axis=1).max() < 2**15
    filters = np.einsum("ai,bj->abij", t.filter, t.filter).reshape((t.m + 2) ** 2, -1)
    assert 128 * np.abs(filters).sum(axis=1).max() < 2**15


SIZES = {  # by name: images, weights, zero point, padding before and behind
    "full": ((1, 112, 5, 6), np.full((5, 112, 3, 3), 127, np.int8), 0, (1, 1)),  # sums just below 2^25
    "low": ((1, 112, 4, 4), np.full((3, 112, 3, 3), -128, np.int8), 255, (1, 1)),
    "odd": ((2, 32, 9, 7), s8(33, 32, 3, 3, seed=1), 7, (0, 2)),
    "half": ((1, 48, 8, 8), s8(16, 48, 3, 3, seed=2), 255, (1, 1)),
    "one": ((1, 16, 1, 1), s8(70, 16, 3, 3, seed=3), 131, (1, 1)),
    "deep": ((1, 16, 3, 5, 6), s8(7, 16, 3, 3, 3, seed=4), 9, (1, 1)),
}


def summed(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """A convolution of two or three spatial dimensions, padded and centred."""
    if x.ndim == 4:
        return convolved(x, w)
    places = range(x.shape[2] - 2)
    return np.stack([sum(convolved(x[:, :, at + t], w[:, :, t]) for t in range(3)) for at in places], axis=2)


def layers(folder: Path) -> tuple[RegionModel, list[np.ndarray], list[np.ndarray]]:
    """Convolutions of bytes that lie with their channels last: their inputs, and what is right."""
    body, inputs, outputs, weights = "", [], [], {}
    right, given = [], []
    for number, (name, (shape, w, zero, pads)) in enumerate(SIZES.items()):
        x = np.full(shape, 255, np.uint8) if name in ("full", "low") else u8(*shape, seed=number)
        x[0, 0, ..., 0] = 0
        spatial = x.ndim - 2
        right.append(summed(np.pad(x.astype(np.int64) - zero, ((0, 0), (0, 0), *[pads] * spatial)), w))
        given.append(np.ascontiguousarray(np.moveaxis(x, 1, -1)))
        body += f"""
        t_{name} = Transpose <perm = {[0, spatial + 1, *range(1, spatial + 1)]}> (x_{name})
        y_{name} = ConvInteger <pads = {[pads[0]] * spatial + [pads[1]] * spatial}> (t_{name}, w_{name}, z_{name})
        """
        inputs.append(f"uint8[{', '.join(map(str, given[-1].shape))}] x_{name}")
        outputs.append(f"int32[{', '.join(map(str, right[-1].shape))}] y_{name}")
        weights |= {f"w_{name}": w, f"z_{name}": np.uint8(zero)}
    return regions.region(folder, body, ", ".join(inputs), ", ".join(outputs), **weights), given, right


def tiles(plan: FusionPlan, instructions: str, tile: int | None) -> dict[int, Transform | None]:
    """The transformation of each convolution of a plan, by number of the kernel."""
    isa = find_isa(instructions)
    choice, target = KernelChoice(tile), cpu_target(isa)
    requests = {
        number: KernelRequest(kernel, plan, target, FLOAT32, choice)
        for number, kernel in enumerate(plan.kernels)
        if isinstance(kernel.root, Conv)
    }
    return {
        number: choose_transform(request) if choose_algorithm(request) is WINOGRAD else None
        for number, request in requests.items()
    }


@pytest.mark.thinned("instructions")
@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize("instructions", runnable())
def test_convolutions(instructions: str, tile: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORCED_ISA_VARIABLE, instructions)
    model, inputs, right = layers(tmp_path)
    found = tiles(planned_region(model), instructions, tile)
    assert [t is not None and t.m for t in found.values()] == [tile] * len(right)
    tuned = regions.F32.tuned({f"{number}.tile": tile for number in found})
    answers = regions.answer(Native(), model, *inputs, config=tuned, resources=Resources(threads=2))
    for name, one, expected in zip(SIZES, answers, right, strict=True):
        np.testing.assert_array_equal(one, expected, err_msg=name)


@pytest.mark.parametrize(
    ("weights", "known"),
    [
        (np.full((1, 112, 3, 3), 127, np.int8), [2, 4]),
        (np.full((1, 128, 3, 3), 127, np.int8), [2]),
        (np.full((1, 1840, 3, 3), 127, np.int8), [2]),
        (np.full((1, 1856, 3, 3), 127, np.int8), []),
        (np.full((1, 1856, 3, 3), -128, np.int8), []),
        (np.tile(np.array([127, -127], np.int8), (1, 192, 9)).reshape(1, 384, 3, 3)[:, :224], [2, 4]),
    ],
    ids=["small", "more", "many", "too many", "negative", "both signs"],
)
def test_tiles_whose_sums_may_be_lost_are_not_taken(weights: np.ndarray, known: list[int], tmp_path: Path) -> None:
    channels = weights.shape[1]
    body = "t = Transpose <perm = [0, 3, 1, 2]> (x) \n y = ConvInteger (t, w)"
    model = regions.region(tmp_path, body, f"uint8[1, 8, 8, {channels}] x", "int32[1, 1, 6, 6] y", w=weights)
    plan = planned_region(model)
    assert [tile for tile in (2, 4) if any(t is not None for t in tiles(plan, "generic", tile).values())] == known


@pytest.mark.skipif(find_isa("pairs-avx2") is None, reason="of AVX2")
def test_a_layer_of_a_network_takes_it_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With vectors that need three instructions for 32 products; a tuner may take another tile, or none."""
    monkeypatch.setenv(FORCED_ISA_VARIABLE, "pairs-avx2")
    model = regions.region(
        tmp_path,
        "t = Transpose <perm = [0, 3, 1, 2]> (x) \n y = ConvInteger <pads = [1, 1, 1, 1]> (t, w)",
        "uint8[1, 56, 56, 64] x",
        "int32[1, 64, 56, 56] y",
        w=s8(64, 64, 3, 3) // 2,
    )
    found = [t.m for t in tiles(planned_region(model), "pairs-avx2", None).values() if t is not None]
    assert found == [4]
    tasks = Native().space(model, regions.F32, Resources(threads=1)).tasks
    assert [task.parameters["tile"] for task in tasks if "tile" in task.parameters] == [(0, 2)]
