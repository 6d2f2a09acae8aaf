"""Products of bytes: exact in integers with every instruction, and as near to float64 as rounding to bytes allows."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bricolage.backends.interface import RegionModel, Resources
from bricolage.backends.native.engine import FORCED_ISA_VARIABLE, Native
from bricolage.device.host import host
from bricolage.errors import Refused
from bricolage.lowering.byte_columns import QuantisedColumns, quantised_columns
from bricolage.native.c import define
from bricolage.native.cpu import toolchain
from bricolage.native.cpu.byte_c import pack_bytes
from bricolage.native.cpu.byte_products import byte_operand
from bricolage.native.cpu.isa import FOR_TESTS, ISAS, Isa, available_isas, find_isa
from bricolage.work.implementation import KernelConfig
from tests.backends import regions

INT8 = KernelConfig("int8")


def runnable() -> list[str]:
    """Instruction sets whose code runs here, one of each way to multiply bytes (compiling takes most of the time); those for tests
    too."""
    ways: dict[tuple[str, int], str] = {}
    for candidate in (*ISAS, *FOR_TESTS):
        isa = find_isa(candidate.name)
        if isa is not None:
            ways.setdefault((isa.byte_dot, isa.lanes), isa.name)
    return list(ways.values())


sets = pytest.mark.parametrize("instructions", runnable())


def quantised_rows(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Integers, scales and zero points of rows, as the kernels define them."""
    low, high = np.minimum(x.min(axis=1), 0), np.maximum(x.max(axis=1), 0)
    scale = (high / np.float32(255) - low / np.float32(255)).astype(np.float32)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
    zero = np.rint(-low * inverse)
    integers = np.clip(np.rint(x * inverse[:, None]) + zero[:, None], 0, 255)
    return integers.astype(np.int64), scale, zero.astype(np.int64)


def expected(x: np.ndarray, weights: QuantisedColumns) -> np.ndarray:
    """The exact product of what the bytes stand for, in float64."""
    rows, scale, zero = quantised_rows(x)
    total = (rows - zero[:, None]) @ weights.integers[0].astype(np.int64)
    return total * scale[:, None].astype(np.float64) * weights.scales[0].astype(np.float64)


def product(folder: Path, x: np.ndarray, w: np.ndarray) -> RegionModel:
    (m, k), n = x.shape, w.shape[1]
    return regions.region(folder, "y = MatMul (x, w)", f"float[{m}, {k}] x", f"float[{m}, {n}] y", w=w)


def answer(folder: Path, x: np.ndarray, w: np.ndarray, threads: int = 2) -> np.ndarray:
    (found,) = regions.answer(Native(), product(folder, x, w), x, config=INT8, resources=Resources(threads=threads))
    return found


def pair_safe(instructions: str) -> bool:
    isa = find_isa(instructions)
    assert isa is not None
    return isa.byte_dot == "vpmaddubsw"


def check(found: np.ndarray, x: np.ndarray, w: np.ndarray, instructions: str) -> None:
    """The answer is the exact one, but for ties of x · (1 / scale) and the rounding of float32 behind the sums."""
    right = expected(x, quantised_columns(w[None], pair_safe=pair_safe(instructions)))
    _, scale, _ = quantised_rows(x)
    columns = quantised_columns(w[None], pair_safe=pair_safe(instructions))
    step = scale[:, None] * columns.scales * 127
    assert np.abs(found - right).max(initial=0) <= 1e-5 * np.abs(right).max(initial=1) + 2 * step.max(initial=0)
    assert np.mean(np.abs(found - right) > 1e-5 * np.abs(right) + 1e-6 * np.abs(right).max(initial=0)) < 0.02


@pytest.mark.thinned("shape")
@sets
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 7, 5), (16, 64, 16), (29, 65, 33), (33, 300, 70)], ids=str)
def test_products(
    shape: tuple[int, int, int], instructions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FORCED_ISA_VARIABLE, instructions)
    m, k, n = shape
    x, w = regions.noise(m, k), regions.noise(k, n, seed=1)
    check(answer(tmp_path, x, w, threads=1 + m % 3), x, w, instructions)


@sets
def test_no_pair_saturates(instructions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that become 255 everywhere times the largest weights of one sign: int16 would hold only half of them."""
    monkeypatch.setenv(FORCED_ISA_VARIABLE, instructions)
    x = np.ones((4, 128), np.float32)
    w = np.concatenate([np.ones((128, 8)), -np.ones((128, 9))], axis=1).astype(np.float32)
    found = answer(tmp_path, x, w)
    assert np.abs(found - x @ w).max() < 128 * 2e-2


@given(
    weights=st.lists(st.lists(st.floats(-10, 10, width=32), min_size=3, max_size=3), min_size=1, max_size=9),
)
@settings(max_examples=60, deadline=None)
def test_pair_safe_columns_never_reach_int16(weights: list[list[float]]) -> None:
    w = np.array(weights, np.float32)[None]
    found = quantised_columns(w, pair_safe=True)
    integers = found.integers[0].astype(int)
    even = np.concatenate([integers, np.zeros((len(integers) % 2, 3), int)])
    for first, second in zip(even[::2], even[1::2], strict=True):
        for a, b in zip(first, second, strict=True):
            assert 255 * (max(a, 0) + max(b, 0)) <= 32767 and 255 * (min(a, 0) + min(b, 0)) >= -32768
    assert (np.abs(integers * found.scales[0] - w[0]) <= found.scales[0] * 0.5001 + 1e-30).all()


@pytest.mark.thinned("instructions")
@sets
def test_what_is_not_finite_stays_so(instructions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORCED_ISA_VARIABLE, instructions)
    x, w = regions.noise(6, 40), regions.noise(40, 20, seed=1)
    x[1, 3], x[2, 38], x[3, 0] = np.nan, np.inf, -np.inf
    x[4] = 0.0
    x[5] = 1e-42
    found = answer(tmp_path, x, w)
    assert np.isfinite(found[[0, 4, 5]]).all() and not np.isfinite(found[1:4]).any()
    assert (found[4] == 0).all() and np.abs(found[5]).max() < 1e-38


@pytest.mark.thinned("instructions")
@sets
@pytest.mark.parametrize(
    ("make", "shape"),
    [(regions.conv_net, (1, 8, 32, 32)), (regions.attention_block, (1, 16, 32))],
    ids=["convolutions", "attention"],
)
def test_networks(
    make: object, shape: tuple[int, ...], instructions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FORCED_ISA_VARIABLE, instructions)
    assert callable(make)
    model, x = make(tmp_path), regions.noise(*shape)
    found = regions.answer(Native(), model, x, config=INT8, resources=Resources(threads=2))
    assert 0 < regions.error(found, regions.reference(model, x)) < 5e-2


def test_offered_at_low_alone() -> None:
    for precision in ("highest", "high", "medium"):
        assert not any(config.name.startswith("int8") for config in Native().configs(precision, host()))
    assert INT8 in Native().configs("low", host())


def test_without_constant_weights_there_is_nothing_to_do(tmp_path: Path) -> None:
    model = regions.region(tmp_path, "y = MatMul (x, w)", "float[4, 8] x, float[8, 4] w", "float[4, 4] y")
    with pytest.raises(Refused, match="constant weights"):
        regions.answer(Native(), model, regions.noise(4, 8), regions.noise(8, 4), config=INT8, resources=Resources())


def test_the_best_instruction_of_a_processor() -> None:
    device = replace(host(), instructions=frozenset({"avx2", "fma"}))
    assert available_isas(device)[0].byte_dot == "vpmaddubsw"
    device = replace(host(), instructions=frozenset({"avx2", "fma", "avx_vnni"}))
    assert (available_isas(device)[0].byte_dot, available_isas(device)[0].byte_flags) == ("vpdpbusd", ("-mavxvnni",))


@pytest.mark.thinned("instructions")
@sets
@given(data=st.data())
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rows_are_packed_as_defined(instructions: str, data: st.DataObject, packer: Packers) -> None:
    k = data.draw(st.integers(1, 150))
    row = data.draw(
        st.lists(st.floats(-(2.0**90), 2.0**90, width=32, allow_subnormal=False), min_size=k, max_size=k).map(
            lambda values: np.array([values], np.float32)
        )
    )
    depth = -(-k // 4) * 4
    found, scale, zero = packer(instructions, row, depth)
    integers, scales, zeros = quantised_rows(row)
    if scales[0] < 1.2e-38:
        assert scale in (0.0, scales[0])
        return
    assert scale == scales[0] and zero == zeros[0]
    assert np.abs(found[:k].astype(int) - integers[0]).max() <= 1 and (found[k:] == 0).all()


class Packers:
    """`pack_bytes` compiled for instruction sets."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[str, ctypes.CDLL] = {}

    def __call__(self, instructions: str, row: np.ndarray, depth: int) -> tuple[np.ndarray, float, int]:
        library = self._made.get(instructions) or self._compiled(instructions)
        to = np.zeros(depth + 8, np.uint8)
        library.pack(row.ctypes.data_as(ctypes.c_void_p), to.ctypes.data_as(ctypes.c_void_p), row.shape[1], depth)
        return to[:depth], float(to[depth : depth + 4].view(np.float32)[0]), int(to[depth + 4 :].view(np.int32)[0])

    def _compiled(self, instructions: str) -> ctypes.CDLL:
        isa = find_isa(instructions)
        assert isa is not None
        text = "\n".join(
            [
                define(LANES=isa.lanes),
                *byte_operand(isa).preamble(isa),
                "void pack(const float *x, uint8_t *to, long k, long depth) { pack_bytes(x, to, k, depth); }",
            ]
        )
        assert pack_bytes() in text
        path = self._folder / f"{instructions}.so"
        toolchain.compile_library(text, _flags(isa), path, "native")
        made = self._made[instructions] = ctypes.CDLL(str(path))
        made.pack.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long, ctypes.c_long]
        made.pack.restype = None
        return made


def _flags(isa: Isa) -> tuple[str, ...]:
    return (*isa.flags, *isa.byte_flags)


@pytest.fixture(scope="module")
def packer(tmp_path_factory: pytest.TempPathFactory) -> Packers:
    return Packers(tmp_path_factory.mktemp("packers"))
