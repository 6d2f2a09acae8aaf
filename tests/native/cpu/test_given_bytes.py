"""Integer products that a graph states: exact with every instruction set, whatever the bytes are."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.backends.interface import RegionModel, Resources
from bricolage.backends.native.engine import FORCED_ISA_VARIABLE, Native
from bricolage.native.cpu.arithmetic import FLOAT32
from bricolage.native.cpu.byte_products import ByteVectors
from bricolage.native.cpu.implicit_gemm import product
from bricolage.native.cpu.isa import find_isa
from bricolage.native.cpu.windowed_conv import windows
from bricolage.native.fuse.kernel_plan import FusionPlan
from bricolage.native.ir.lowerings.integers import ByteWeights
from bricolage.native.ir.tensors import Conv, MatMul
from tests.backends import regions
from tests.native.cpu.test_byte_products import runnable
from tests.native.targets import planned_region

sets = pytest.mark.parametrize("instructions", runnable())
TWO = Resources(threads=2)


def draw(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def u8(*shape: int, seed: int = 0) -> np.ndarray:
    return draw(seed).integers(0, 256, shape, np.uint8)


def s8(*shape: int, seed: int = 0, least: int = -128) -> np.ndarray:
    return draw(seed).integers(least, 128, shape, np.int8)


def convolved(
    x: np.ndarray, w: np.ndarray, *, pads: int = 0, stride: int = 1, groups: int = 1, dilation: int = 1
) -> np.ndarray:
    """An integer convolution of two spatial dimensions, in int64; x and w are centred."""
    x = np.pad(x.astype(np.int64), ((0, 0), (0, 0), (pads, pads), (pads, pads)))
    kernel = [(size - 1) * dilation + 1 for size in w.shape[2:]]
    windows = np.lib.stride_tricks.sliding_window_view(x, kernel, (2, 3))
    windows = windows[:, :, ::stride, ::stride, ::dilation, ::dilation]
    each, outputs = w.shape[1], w.shape[0] // groups
    parts = [
        np.einsum(
            "ncyxij,ocij->noyx",
            windows[:, g * each : (g + 1) * each],
            w[g * outputs : (g + 1) * outputs].astype(np.int64),
        )
        for g in range(groups)
    ]
    return np.concatenate(parts, axis=1)


def everything(folder: Path) -> tuple[RegionModel, list[np.ndarray], list[np.ndarray]]:
    """One region of many integer products, so that it compiles once: its inputs, and what is right."""
    extremes = np.where(np.arange(16) % 3 == 0, -127, 127).astype(np.int8)
    w = {
        "w_ends": np.broadcast_to(extremes, (67, 16)).copy(),  # all neighbours of one sign, as large as can be
        "w_low": np.full((64, 40), -128, np.int8),
        "w_odd": s8(13, 9, seed=1),
        "w_wide": u8(30, 20, seed=2),
        "w_wide_zero": draw(3).integers(90, 160, 20, np.uint8),
        "c_pad": s8(20, 5, 3, 3, seed=4),
        "c_few": s8(17, 3, 5, 5, seed=5),
        "c_u8": u8(8, 5, 1, 1, seed=6),
        "c_depth": s8(32, 1, 3, 3, seed=7),
        "c_depth_odd": s8(5, 1, 3, 3, seed=8),
        "c_group": s8(32, 8, 3, 3, seed=9),
        "z0": np.uint8(0),
        "z255": np.uint8(255),
        "z7": np.uint8(7),
        "zs": np.int8(-128),
        "zw": np.uint8(131),
    }
    x = {
        "full": np.full((5, 67), 255, np.uint8),
        "byte": u8(33, 64, seed=11),
        "odd": s8(7, 13, seed=12),
        "batch": u8(2, 3, 30, seed=13),
        "image": u8(1, 5, 9, 8, seed=14),
        "colours": u8(2, 3, 12, 11, seed=15),
        "many": u8(1, 32, 9, 17, seed=16),
        "signed": s8(1, 32, 6, 5, seed=17),
    }
    body = """
    y0 = MatMulInteger (full, w_ends)
    y1 = MatMulInteger (byte, w_low, z255)
    y2 = MatMulInteger (odd, w_odd, zs)
    y3 = MatMulInteger (batch, w_wide, z7, w_wide_zero)
    y4 = ConvInteger <pads = [1, 1, 1, 1]> (image, c_pad, z7)
    y5 = ConvInteger <pads = [2, 2, 2, 2], strides = [2, 2]> (colours, c_few, z255)
    y6 = ConvInteger (image, c_u8, z0, zw)
    y7 = ConvInteger <pads = [1, 1, 1, 1], group = 32> (many, c_depth, z255)
    y8 = ConvInteger <group = 5> (image, c_depth_odd, z7)
    y9 = ConvInteger <pads = [1, 1, 1, 1], group = 4, strides = [2, 2]> (many, c_group, z7)
    y10 = ConvInteger <pads = [2, 2, 2, 2], group = 32, dilations = [2, 2]> (signed, c_depth, zs)
    """
    wide = {name: one.astype(np.int64) for name, one in {**w, **x}.items()}
    right = [
        wide["full"] @ wide["w_ends"],
        (wide["byte"] - 255) @ wide["w_low"],
        (wide["odd"] + 128) @ wide["w_odd"],
        (wide["batch"] - 7) @ (wide["w_wide"] - wide["w_wide_zero"]),
        convolved(wide["image"] - 7, w["c_pad"], pads=1),
        convolved(wide["colours"] - 255, w["c_few"], pads=2, stride=2),
        convolved(wide["image"], wide["c_u8"] - 131),
        convolved(wide["many"] - 255, w["c_depth"], pads=1, groups=32),
        convolved(wide["image"] - 7, w["c_depth_odd"], groups=5),
        convolved(wide["many"] - 7, w["c_group"], pads=1, groups=4, stride=2),
        convolved(wide["signed"] + 128, w["c_depth"], pads=2, groups=32, dilation=2),
    ]
    names = {"uint8": "uint8", "int8": "int8"}
    inputs = ", ".join(f"{names[a.dtype.name]}[{', '.join(map(str, a.shape))}] {name}" for name, a in x.items())
    outputs = ", ".join(f"int32[{', '.join(map(str, a.shape))}] y{i}" for i, a in enumerate(right))
    return regions.region(folder, body, inputs, outputs, **w), list(x.values()), right


@pytest.mark.thinned("instructions")
@sets
def test_integer_products(instructions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORCED_ISA_VARIABLE, instructions)
    model, inputs, right = everything(tmp_path)
    found = regions.answer(Native(), model, *inputs, resources=TWO)
    for number, (one, expected) in enumerate(zip(found, right, strict=True)):
        np.testing.assert_array_equal(one, expected, err_msg=f"y{number}")


def test_they_have_kernels_of_their_own(tmp_path: Path) -> None:
    model, _, right = everything(tmp_path)
    roots = [kernel.root for kernel in planned_region(model).kernels]
    assert sum(isinstance(root, (MatMul, Conv)) and root.dtype == "int32" for root in roots) >= len(right)


@pytest.mark.parametrize("instructions", [one for one in runnable() if find_isa(one).byte_dot == "tdpbusd"])  # type: ignore[union-attr]
def test_windows_of_images(instructions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read where they lie: of several images, with taps apart, with k in pieces, around a zero point, and a last panel that is
    narrow."""
    monkeypatch.setenv(FORCED_ISA_VARIABLE, instructions)
    x = {"two": u8(2, 64, 17, 30, seed=1), "apart": u8(1, 128, 9, 30, seed=2), "deep": u8(1, 256, 6, 6, seed=3)}
    w = {"w0": s8(40, 64, 3, 3, seed=4), "w1": s8(32, 128, 3, 3, seed=5), "w2": s8(70, 256, 3, 3, seed=6)}
    right = [
        convolved(x["two"].astype(np.int64) - 7, w["w0"], pads=1),
        convolved(x["apart"].astype(np.int64) - 255, w["w1"], pads=2, dilation=2),
        convolved(x["deep"], w["w2"], pads=1),
    ]
    model = regions.region(
        tmp_path,
        """
        y0 = ConvInteger <pads = [1, 1, 1, 1]> (two, w0, z7)
        y1 = ConvInteger <pads = [2, 2, 2, 2], dilations = [2, 2]> (apart, w1, z255)
        y2 = ConvInteger <pads = [1, 1, 1, 1]> (deep, w2)
        """,
        ", ".join(f"uint8[{', '.join(map(str, a.shape))}] {name}" for name, a in x.items()),
        ", ".join(f"int32[{', '.join(map(str, a.shape))}] y{i}" for i, a in enumerate(right)),
        z7=np.uint8(7),
        z255=np.uint8(255),
        **w,
    )
    isa = find_isa(instructions)
    assert isa is not None
    roots = [kernel.root for kernel in planned_region(model).kernels if isinstance(kernel.root, Conv)]
    found = [windows(root, product(root, isa.lanes), FLOAT32.operand_of(isa, root)) for root in roots]
    assert len(found) == 3 and None not in found
    for one, expected in zip(regions.answer(Native(), model, *x.values(), resources=TWO), right, strict=True):
        np.testing.assert_array_equal(one, expected)


@pytest.mark.thinned("instructions")
@sets
def test_bytes_that_do_not_hold_what_is_rounded(
    instructions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Far beyond int32 as well; behind vectors of bytes, half of one, and some single ones."""
    monkeypatch.setenv(FORCED_ISA_VARIABLE, instructions)
    x, w = u8(9, 32, seed=1), s8(32, 60, seed=2)
    x[0] = 0
    model = regions.region(
        tmp_path,
        """
        y = QLinearMatMul (x, one, none, w, one, still, huge, zero)
        v = QLinearMatMul (x, one, none, w, one, still, near, zero)
        """,
        "uint8[9, 32] x",
        "uint8[9, 60] y, uint8[9, 60] v",
        w=w,
        one=np.float32(1),
        none=np.uint8(0),
        still=np.int8(0),
        huge=np.float32(1e-30),
        near=np.float32(128),
        zero=np.uint8(77),
    )
    total = x.astype(np.int64) @ w
    y, v = regions.answer(Native(), model, x)
    np.testing.assert_array_equal(y, np.where(total > 0, 255, np.where(total < 0, 0, 77)))
    np.testing.assert_array_equal(v, np.clip(np.rint(total / 128) + 77, 0, 255))


def operands(plan: FusionPlan, instructions: str) -> list[str]:
    isa = find_isa(instructions)
    assert isa is not None
    found = [FLOAT32.operand_of(isa, kernel.root) for kernel in plan.kernels]
    return [one.dot for one in found if isinstance(one, ByteVectors)]


@pytest.mark.skipif(find_isa("pairs-avx2") is None, reason="of AVX2")
def test_weights_are_widened_only_where_a_pair_may_saturate(tmp_path: Path) -> None:
    safe, unsafe = np.full((8, 16), 64, np.int8), np.full((8, 16), 65, np.int8)
    for weights, dot in ((safe, "vpmaddubsw"), (unsafe, "vpmaddwd")):
        folder = tmp_path / dot
        folder.mkdir()
        model = regions.region(folder, "y = MatMulInteger (x, w)", "uint8[4, 8] x", "int32[4, 16] y", w=weights)
        assert operands(planned_region(model), "pairs-avx2") == [dot]


@pytest.mark.skipif(find_isa("pairs-avx2") is None, reason="of AVX2")
def test_products_of_one_shape_have_each_its_own_order_of_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the blocks of a network have them: each has other steps in which a pair may saturate."""
    monkeypatch.setenv(FORCED_ISA_VARIABLE, "pairs-avx2")
    x, weights = u8(5, 64), {}
    for number in range(6):
        own = s8(64, 16, seed=number, least=-60) // 2
        own[8 * number : 8 * number + 8] = 127
        weights[f"w{number}"] = own
    body = " ".join(f"y{number} = MatMulInteger (x, w{number})" for number in range(6))
    outputs = ", ".join(f"int32[5, 16] y{number}" for number in range(6))
    model = regions.region(tmp_path, body, "uint8[5, 64] x", outputs, **weights)
    assert operands(planned_region(model), "pairs-avx2") == ["vpmaddwd"] * 6
    for one, own in zip(regions.answer(Native(), model, x, resources=TWO), weights.values(), strict=True):
        np.testing.assert_array_equal(one, x.astype(np.int64) @ own)


def qdq_net(folder: Path, kind: str) -> RegionModel:
    """Convolutions with a residual sum, pooling and a classifier between QuantizeLinear and DequantizeLinear."""
    signed = kind == "int8"

    def point(value: int) -> np.ndarray:
        return np.int8(value - 128) if signed else np.uint8(value)

    def scales(count: int, seed: int) -> np.ndarray:
        return draw(seed).uniform(0.005, 0.02, count).astype(np.float32)

    return regions.region(
        folder,
        """
        xq = QuantizeLinear (x, sx, zx)
        xd = DequantizeLinear (xq, sx, zx)
        w1d = DequantizeLinear <axis = 0> (w1, s1)
        b1d = DequantizeLinear (b1, sb)
        a = Conv <pads = [1, 1, 1, 1]> (xd, w1d, b1d)
        ar = Relu (a)
        aq = QuantizeLinear (ar, sa, za)
        ad = DequantizeLinear (aq, sa, za)
        p = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (ad)
        pq = QuantizeLinear (p, sa, za)
        pd = DequantizeLinear (pq, sa, za)
        w2d = DequantizeLinear <axis = 0> (w2, s2)
        c = Conv <pads = [1, 1, 1, 1], group = 16> (pd, w2d)
        cq = QuantizeLinear (c, sc, zc)
        cd = DequantizeLinear (cq, sc, zc)
        w3d = DequantizeLinear <axis = 0> (w3, s3)
        e = Conv (cd, w3d)
        eq = QuantizeLinear (e, sc, zc)
        ed = DequantizeLinear (eq, sc, zc)
        f = Add (ed, pd)
        fq = QuantizeLinear (f, sc, zc)
        fd = DequantizeLinear (fq, sc, zc)
        g = Flatten (fd)
        w4d = DequantizeLinear <axis = 1> (w4, s4)
        y = MatMul (g, w4d)
        """,
        "float[1, 3, 10, 12] x",
        f"float[1, 7] y, {kind}[1, 16, 5, 6] fq",
        opset=21,
        w1=s8(16, 3, 3, 3, seed=1),
        w2=s8(16, 1, 3, 3, seed=2),
        w3=s8(16, 16, 1, 1, seed=3),
        w4=s8(480, 7, seed=4),
        b1=draw(5).integers(-3000, 3000, 16, np.int32),
        s1=scales(16, 1),
        s2=scales(16, 2),
        s3=scales(16, 3),
        s4=scales(7, 4),
        sx=np.float32(0.0173),
        sb=np.float32(2e-4),
        sa=np.float32(0.031),
        sc=np.float32(0.047),
        zx=point(131),
        za=point(0),
        zc=point(120),
    )


@pytest.mark.parametrize(
    ("kind", "instructions"), [("uint8", runnable()[0]), ("int8", runnable()[0]), ("int8", "generic")]
)
def test_a_quantised_network(kind: str, instructions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORCED_ISA_VARIABLE, instructions)
    model, x = qdq_net(tmp_path, kind), regions.noise(1, 3, 10, 12)
    y, steps = regions.answer(Native(), model, x, resources=TWO)
    right, right_steps = regions.reference(model, x)
    apart = np.abs(steps.astype(int) - right_steps.astype(int))
    assert apart.max() <= 1 and apart.mean() < 1e-2
    assert np.abs(y - right).max() < 2e-2 * np.abs(right).max()


def test_bytes_between_layers(tmp_path: Path) -> None:
    plan = planned_region(qdq_net(tmp_path, "uint8"))
    between = [buffer.dtype for buffer in plan.buffers.values() if buffer.storage[0] == "arena"]
    assert between and set(between) == {"uint8"}


@pytest.mark.parametrize("instructions", [runnable()[0], "generic"])
def test_ties_go_where_the_quotient_of_float32_is(
    instructions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FORCED_ISA_VARIABLE, instructions)
    scale = np.float32([0.25, 0.1, 3.0, 1 / 3, 1e-20])[:, None]
    ties = (np.arange(-300, 300) / 2).astype(np.float32) * scale
    near = [np.nextafter(ties, np.float32(way)) for way in (-np.inf, np.inf)]
    ends = np.array([0, -0.0, 1e30, -1e30, np.inf, -np.inf, 1e-42], np.float32)
    x = np.concatenate([ties, *near, np.broadcast_to(ends, (len(scale), len(ends)))], axis=1)
    model = regions.region(
        tmp_path,
        "y = QuantizeLinear <axis = 0> (x, s, z)\n u = QuantizeLinear <axis = 0> (x, s, v)",
        f"float[5, {x.shape[1]}] x",
        f"int8[5, {x.shape[1]}] y, uint8[5, {x.shape[1]}] u",
        s=scale[:, 0],
        z=np.full(5, -3, np.int8),
        v=np.full(5, 131, np.uint8),
    )
    y, u = regions.answer(Native(), model, x)
    with np.errstate(over="ignore"):
        steps = np.rint(x / scale)
    np.testing.assert_array_equal(y, np.clip(steps - 3, -128, 127))
    np.testing.assert_array_equal(u, np.clip(steps + 131, 0, 255))


def test_a_zero_point_that_is_computed(tmp_path: Path) -> None:
    """Around the images, too, where it differs from call to call."""
    w, c = s8(24, 10, seed=1), s8(6, 4, 3, 3, seed=2)
    model = regions.region(
        tmp_path,
        """
        q, s, z = DynamicQuantizeLinear (x)
        y = MatMulInteger (q, w, z)
        r, t, u = DynamicQuantizeLinear (i)
        v = ConvInteger <pads = [1, 1, 1, 1]> (r, c, u)
        """,
        "float[5, 24] x, float[1, 4, 6, 5] i",
        "int32[5, 10] y, int32[1, 6, 6, 5] v",
        w=w,
        c=c,
    )
    kernel = Native().compile(model, regions.F32, TWO)
    for seed in range(3):
        x, i = regions.noise(5, 24, seed=seed) + seed, regions.noise(1, 4, 6, 5, seed=seed)
        _, outputs, call = regions.bound(kernel, model, x, i)
        call()
        for found, right in zip(outputs, regions.reference(model, x, i), strict=True):
            np.testing.assert_array_equal(found, right)


@given(
    w=st.lists(st.integers(0, 255), min_size=12, max_size=12),
    zeros=st.lists(st.integers(0, 255), min_size=3, max_size=3),
    rows=st.lists(st.integers(0, 255), min_size=8, max_size=8),
    zero=st.integers(0, 255),
    signed=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_weights_with_zero_points(
    w: Sequence[int], zeros: Sequence[int], rows: Sequence[int], zero: int, signed: bool
) -> None:
    """Σ (A - z_a)(W - z_w) from bytes with a sign, column sums, and row sums where they do not suffice."""
    dtype, less = (np.int8, 128) if signed else (np.uint8, 0)
    integers = (np.array(w).reshape(4, 3) - less).astype(dtype)
    points = (np.array(zeros)[None] - less).astype(np.int32)
    a = np.array(rows, np.int64).reshape(2, 4)
    found = ByteWeights.of(integers, points, 1)
    assert found is not None and found.integers.dtype == np.int8
    total = a @ found.integers.astype(np.int64) - zero * found.sums.astype(np.int64)
    if found.shifts is not None:
        total = total + a.sum(axis=1, keepdims=True) * found.shifts
    np.testing.assert_array_equal(total, (a - zero) @ (integers.astype(np.int64) - points))


@given(data=st.data())
@settings(max_examples=4, deadline=None)
def test_any_shape(data: st.DataObject) -> None:
    m, k, n = (data.draw(st.integers(1, most)) for most in (40, 90, 50))
    x, w = u8(m, k, seed=m), s8(k, n, seed=n)
    zero = data.draw(st.integers(0, 255))
    with tempfile.TemporaryDirectory() as folder:
        model = regions.region(
            Path(folder),
            "y = MatMulInteger (x, w, z)",
            f"uint8[{m}, {k}] x",
            f"int32[{m}, {n}] y",
            w=w,
            z=np.uint8(zero),
        )
        (found,) = regions.answer(Native(), model, x)
    np.testing.assert_array_equal(found, (x.astype(np.int64) - zero) @ w.astype(np.int64))
