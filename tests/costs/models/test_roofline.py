from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bricolage.costs.models.roofline import added_ms, floor_ms, least_ms
from bricolage.device.caches import Cache, Caches
from bricolage.device.device import Peaks
from bricolage.device.host import host
from bricolage.work.cost import Setting
from bricolage.work.implementation import KernelConfig
from bricolage.work.workload import OperatorWork, Workload

PEAKS = Peaks(gflops=200.0, gbytes=20.0)
amounts = st.floats(0, 1e12)


def test_operations_bytes_and_a_start_add_up() -> None:
    assert added_ms(PEAKS, 4e8, 1e7, start_us=3.0) == pytest.approx(2.0 + 0.5 + 0.003)
    assert added_ms(PEAKS, 0, 0) > 0.0


@given(amounts, amounts)
def test_between_the_floor_and_twice_the_floor_after_the_start(flops: float, size: float) -> None:
    """The larger of the two is the least there can be; their sum is at most twice that."""
    floor = PEAKS.floor_ms(flops, size)
    work = added_ms(PEAKS, flops, size) - added_ms(PEAKS, 0, 0)
    assert floor * (1 - 1e-9) - 1e-9 <= work <= 2 * floor * (1 + 1e-9) + 1e-9


@given(amounts, amounts, amounts)
def test_more_work_is_never_cheaper(flops: float, size: float, more: float) -> None:
    assert added_ms(PEAKS, flops + more, size) >= added_ms(PEAKS, flops, size)
    assert added_ms(PEAKS, flops, size + more) >= added_ms(PEAKS, flops, size)


def _setting(peaks: Peaks, *instructions: str) -> Setting:
    device = replace(host(), peaks=peaks, instructions=frozenset(instructions), caches=Caches())
    return Setting(device, device.threads)


def _operator(kind: str, **more: Any) -> Workload:
    work = OperatorWork(kind, "float", (1, 8, 16, 16), flops=10**9, read=1000, constant=1000, written=1000, **more)
    return Workload((work,), 10**6, 10**6, 10**6)


@pytest.mark.parametrize(("flag", "times"), [("avx512_bf16", 2.0), ("amx_bf16", 16.0), ("bf16", 4.0), ("avx2", 1.0)])
def test_the_floor_is_that_of_the_arithmetic(flag: str, times: float) -> None:
    """Else it would be no bound: a product of bfloat16 takes half of the time, and with tiles a sixteenth."""
    work, computing, moving = _operator("MatMul"), _setting(Peaks(100.0, 1e9), flag), _setting(Peaks(1e9, 10.0), flag)
    config = KernelConfig("bf16")
    assert floor_ms(work, computing, config) == pytest.approx(floor_ms(work, computing) / times)
    assert floor_ms(work, moving, config) == pytest.approx(floor_ms(work, moving) / 2)


@pytest.mark.parametrize(
    ("work", "fewer"),
    [
        (_operator("Conv", kernel=(3, 3)), (2.25, 4.0)),
        (_operator("Conv", kernel=(3, 3), strides=(1, 1)), (2.25, 4.0)),
        (_operator("Conv", kernel=(3, 3), strides=(2, 2)), (1.0, 1.0)),
        (_operator("Conv", kernel=(3, 3), groups=8), (1.0, 1.0)),
        (_operator("Conv", kernel=(1, 7)), (1.0, 1.0)),
        (_operator("MaxPool", kernel=(3, 3)), (1.0, 1.0)),
    ],
)
def test_tiles_of_winograd_take_fewer_products(work: Workload, fewer: tuple[float, float]) -> None:
    """A bound by the products of the direct way ruled out tiles wherever that way came near to its roofline."""
    setting = _setting(Peaks(100.0, 1e9))
    direct = floor_ms(work, setting)
    for tile, times in zip((2, 4), fewer, strict=True):
        assert floor_ms(work, setting, KernelConfig(f"f32-winograd{tile}")) == pytest.approx(direct / times)


def test_the_floor_is_the_longer_of_computing_and_moving() -> None:
    work, both = _operator("Conv", kernel=(1, 1)), _setting(Peaks(100.0, 10.0))
    assert floor_ms(work, both) == both.device.peaks.floor_ms(work.flops, work.bytes) < least_ms(work, both)
    fewer_threads = Setting(replace(both.device, cores=tuple(range(8))), 4)
    assert floor_ms(work, fewer_threads) == pytest.approx(2 * work.flops / 100.0 / 1e6)
    narrow = _setting(Peaks(1e9, 10.0))
    cached = Setting(replace(narrow.device, caches=Caches((Cache(3, 2 * 10**6),))), narrow.threads)
    assert floor_ms(work, cached) == pytest.approx(floor_ms(work, narrow) / 3), (
        "the last cache holds two of three million bytes"
    )
