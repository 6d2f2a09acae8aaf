"""Functions of a byte behind products of bytes: looked up, they give what they are computed to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bricolage.backends.interface import RegionModel, Resources
from bricolage.backends.native.engine import FORCED_ISA_VARIABLE, Native
from bricolage.native.cpu import byte_tables
from bricolage.native.cpu.byte_tables import byte_before
from bricolage.native.cpu.isa import find_isa
from bricolage.native.ir.tensors import View
from tests.backends import regions
from tests.native.cpu.test_given_bytes import s8, u8
from tests.native.targets import planned_region

TWO = Resources(threads=2)
LOOKING_UP = [name for name in ("pairs-avx2", "pairs-avx512") if find_isa(name) is not None]


def network(folder: Path, channels: int, taps: int) -> RegionModel:
    """Convolutions of bytes with functions between them: 1×1, whose result is its input, depthwise, and of so many taps."""
    return regions.region(
        folder,
        """
        xt = Transpose <perm = [0, 3, 1, 2]> (x)
        xd = DequantizeLinear (xt, one, z0)
        wd = DequantizeLinear (w, one, zs)
        a = Conv (xd, wd)
        aq = QuantizeLinear (a, one, z0)
        ad = DequantizeLinear (aq, sa, za)
        h = HardSigmoid <alpha = 0.16666667, beta = 0.5> (ad)
        hq = QuantizeLinear (h, sh, z0)
        hd = DequantizeLinear (hq, sh, z0)
        b = Mul (ad, hd)
        bq = QuantizeLinear (b, sb, zb)
        bd = DequantizeLinear (bq, sb, zb)
        vd = DequantizeLinear (v, sv, zs)
        c = Conv <pads = [1, 1, 1, 1], group = """
        + str(channels)
        + """> (bd, vd)
        cq = QuantizeLinear (c, sa, za)
        cd = DequantizeLinear (cq, sa, za)
        s = Sigmoid (cd)
        sq = QuantizeLinear (s, sh, z0)
        sd = DequantizeLinear (sq, sh, z0)
        ud = DequantizeLinear (u, sv, zs)
        e = Conv <auto_pad = "SAME_UPPER"> (sd, ud)
        eq = QuantizeLinear (e, sa, za)
        ed = DequantizeLinear (eq, sa, za)
        f = HardSwish (ed)
        fq = QuantizeLinear (f, sb, zb)
        bt = Transpose <perm = [0, 2, 3, 1]> (bq)
        st = Transpose <perm = [0, 2, 3, 1]> (sq)
        ft = Transpose <perm = [0, 2, 3, 1]> (fq)
        """,
        f"uint8[1, 9, 15, {channels}] x",
        ", ".join(f"uint8[1, 9, 15, {channels}] {name}" for name in ("bt", "st", "ft")),
        opset=21,
        w=np.eye(channels, dtype=np.int8)[:, :, None, None],
        v=s8(channels, 1, 3, 3, seed=1),
        u=s8(channels, channels, taps, taps, seed=2),
        one=np.float32(1),
        sa=np.float32(0.0687),
        sh=np.float32(1 / 255),
        sb=np.float32(0.0446),
        sv=np.float32(0.0021),
        z0=np.uint8(0),
        za=np.uint8(95),
        zb=np.uint8(8),
        zs=np.int8(0),
    )


@pytest.mark.thinned("instructions")
@pytest.mark.parametrize("instructions", LOOKING_UP)
@pytest.mark.parametrize(
    ("channels", "taps"), [(40, 1), *(pytest.param(count, 3, marks=pytest.mark.slow) for count in (21, 32))]
)
def test_they_give_what_is_computed(
    instructions: str, channels: int, taps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FORCED_ISA_VARIABLE, instructions)
    model, x = network(tmp_path, channels, taps), u8(1, 9, 15, channels)
    assert np.unique(x).size == 256
    native = Native()
    tables = native.kernel_report(model, regions.F32, TWO, timed=False).source.count("looked_up_bytes(table_")
    assert tables >= 3
    found = regions.answer(native, model, x, resources=TWO)
    monkeypatch.setattr(byte_tables, "_LEAST", 10**6)
    assert "looked_up_bytes(table_" not in native.kernel_report(model, regions.F32, TWO, timed=False).source
    for one, other in zip(found, regions.answer(native, model, x, resources=TWO), strict=True):
        np.testing.assert_array_equal(one, other)
    for one, right in zip(found, regions.reference(model, x), strict=True):
        assert np.abs(one.astype(int) - right.astype(int)).max() <= 1


def short(folder: Path, function: str) -> RegionModel:
    return regions.region(
        folder,
        f"""
        xd = DequantizeLinear (x, s, z)
        wd = DequantizeLinear (w, s, zs)
        a = Conv (xd, wd)
        aq = QuantizeLinear (a, s, z)
        ad = DequantizeLinear (aq, s, z)
        b = {function}
        q = QuantizeLinear (b, s, z)
        y = Transpose <perm = [0, 2, 3, 1]> (q)
        """,
        "uint8[1, 16, 4, 4] x",
        "uint8[1, 4, 4, 16] y",
        opset=21,
        w=s8(16, 16, 1, 1),
        s=np.float32(0.02),
        z=np.uint8(128),
        zs=np.int8(0),
    )


@pytest.mark.skipif(not LOOKING_UP, reason="of AVX2")
def test_a_tuner_may_choose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORCED_ISA_VARIABLE, "pairs-avx2")
    model = short(tmp_path, "HardSwish (ad)")
    native, config = Native(), regions.F32.tuned({"0.look_up": False})
    assert "looked_up_bytes(table_" in native.kernel_report(model, regions.F32, TWO, timed=False).source
    assert "looked_up_bytes(table_" not in native.kernel_report(model, config, TWO, timed=False).source
    assert any(task.parameters.get("look_up") == (False,) for task in native.space(model, regions.F32, TWO).tasks)


@pytest.mark.parametrize(
    ("function", "looked_up"),
    [("HardSwish (ad)", True), ("Add (ad, a)", False), ("Mul (ad, ad)", True), ("Add (ad, xd)", False)],
)
def test_only_functions_of_one_byte_are(function: str, looked_up: bool, tmp_path: Path) -> None:
    plan = planned_region(short(tmp_path, function))
    stored = [node.source if isinstance(node, View) else node for one in plan.kernels for node, _ in one.stores]
    found = [byte_before(node, plan.buffers) for node in stored]
    assert any(byte is not None for byte in found) == looked_up
