"""Products with weights of 4 and 8 bits: exact with every instruction, and as near to float64 as rounding allows."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from itertools import product
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bricolage.backends.interface import RegionModel, Resources
from bricolage.backends.native.engine import FORCED_ISA_VARIABLE, Native
from bricolage.errors import Refused
from bricolage.graph.quantised_blocks import QuantisedBlocks, blocks_of
from bricolage.native.c import define
from bricolage.native.cpu import toolchain
from bricolage.native.cpu.block_floats import BlockFloats
from bricolage.native.cpu.block_format import BlockOperand
from bricolage.native.cpu.block_products import block_operand
from bricolage.native.cpu.block_tiles import block_tiles
from bricolage.native.cpu.c_source import HEAD
from bricolage.native.cpu.isa import Isa, find_isa
from bricolage.native.cpu.panels import MicroTile
from bricolage.native.library_files import HEADER_BYTES, WEIGHTS
from bricolage.work.implementation import KernelConfig
from tests.backends import regions
from tests.native.cpu.test_byte_products import runnable


def different() -> list[str]:
    """Instruction sets that run here and multiply a few rows in ways of their own."""
    found: dict[object, str] = {}
    for name in runnable():
        isa = find_isa(name)
        assert isa is not None
        if not name.startswith("split"):  # plain C as for `generic`, for more lanes
            found.setdefault((isa.lanes, isa.vector_dot, isa.flags), name)
    return list(found.values())


sets = pytest.mark.parametrize("instructions", different())
KINDS = [(*kind, in_bytes) for kind in ((4, 16, True), (4, 104, False), (8, 40, True)) for in_bytes in (False, True)]
"""Bits, integers in a block, whether zero points are given, and whether rows are bytes."""
ROWS, MOST = (1, 3, 4, 6, 8), 300


class Kernels:
    """Micro-kernels and what packs rows, compiled for instruction sets."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[str, ctypes.CDLL] = {}

    def multiply(self, instructions: str, x: np.ndarray, blocks: QuantisedBlocks, *, in_bytes: bool) -> np.ndarray:
        """x [m, k] times the blocks, panel after panel, as generated code does it."""
        isa = find_isa(instructions)
        assert isa is not None
        library = self._made.get(instructions) or self._compiled(instructions)
        operand = block_operand(isa, blocks, in_bytes=in_bytes)
        (m, k), lanes = x.shape, isa.lanes
        lda = operand.pitch(MOST)
        rows = np.zeros((m, lda), np.uint8)
        for row, numbers in zip(rows, np.ascontiguousarray(x), strict=True):
            getattr(library, f"pack_{_name(operand)}")(_at(numbers), _at(row), k)
        panels = np.ascontiguousarray(operand.block_panels(blocks, lanes))
        found, offset = np.zeros((m, -(-blocks.n // lanes) * lanes), np.float32), 0
        for start in range(0, found.shape[1], 2 * lanes):
            vectors = min(2, (found.shape[1] - start) // lanes)
            tile = np.zeros((m, vectors * lanes), np.float32)
            kernel = getattr(library, f"multiply_{_name(operand)}_{m}_{vectors}")
            kernel(operand.steps(k), _at(rows), _at(panels, offset), _at(tile))
            if isinstance(operand, BlockFloats):  # as for many rows: in two pieces, with the same bits
                pieces = np.full_like(tile, np.nan)
                kernel = getattr(library, f"unpacked_{_name(operand)}_{m}_{vectors}")
                kernel(operand.steps(k), _at(rows), _at(panels, offset), _at(pieces))
                np.testing.assert_array_equal(pieces, tile)
            found[:, start : start + vectors * lanes] = tile
            offset += operand.steps(k) * operand.k_step * vectors * lanes
        assert offset == panels.size
        return found[:, : blocks.n]

    def _compiled(self, instructions: str) -> ctypes.CDLL:
        isa = find_isa(instructions)
        assert isa is not None
        texts: dict[str, str] = {}
        wrappers: dict[str, None] = {}
        for bits, block, zeros, in_bytes in KINDS:
            some = blocks_of(np.zeros((1, 1), np.uint8), np.ones((1, 1), np.float32), None, bits, block)
            for zero in (0.0, 1 / 3) if zeros else (None,):  # a minimum that float16 holds, and one that it does not
                given = None if zero is None else np.full((1, 1), zero, np.float32)
                operand = block_operand(isa, replace(some, zeros=given), in_bytes=in_bytes)
                texts.update(operand.helpers(isa))
                wrappers.update(dict.fromkeys(_wrappers(operand, isa, texts)))
        path = self._folder / f"{instructions}.so"
        head = f"{define(LANES=isa.lanes)}\n{HEAD}"
        toolchain.compile_library("\n".join([head, *texts.values(), *wrappers]), isa.flags, path, "native")
        made = self._made[instructions] = ctypes.CDLL(str(path))
        return made


def _wrappers(operand: BlockOperand, isa: Isa, texts: dict[str, str]) -> list[str]:
    """Functions with names that are known here. With many rows, what they multiply is made ready before."""
    pack = operand.pack_row("x", "to", 0, 0).replace(", 0,", ", k,")
    wrappers = [f"void pack_{_name(operand)}(const float *x, uint8_t *to, long k) {{ {pack} }}"]
    for rows, vectors in product(ROWS, (1, 2)):
        tile = MicroTile(rows, vectors, operand.pitch(MOST), isa.lanes)
        name, texts[name] = operand.micro_kernel(tile)
        head = "(long n, const uint8_t *a, const uint8_t *b, float *tile)"
        wrappers.append(f"void multiply_{_name(operand)}_{rows}_{vectors}{head} {{ {name}(n, a, b, tile); }}")
        if isinstance(operand, BlockFloats):
            unpack, texts[unpack] = operand.unpacking(vectors, isa.lanes)
            name, texts[name] = operand.micro_kernel(replace(tile, adds=True))
            size = operand.unpacked_bytes(vectors * isa.lanes)
            wrappers.append(
                f"void unpacked_{_name(operand)}_{rows}_{vectors}{head} {{\n"
                f"  uint8_t some[{size} * {-(-MOST // operand.block)}] __attribute__((aligned(64)));\n"
                f"  const long half = n / 2;\n"
                f"  {unpack}(n, b, some);\n"
                f"  if (half) {name}(half, a, some, tile, 1);\n"
                f"  {name}(n - half, a + half * {operand.row_step}, some + half * {size}, tile, half == 0);\n"
                "}"
            )
    return wrappers


def _name(operand: BlockOperand) -> str:
    return operand.prefix + operand.kind


def _at(array: np.ndarray, offset: int = 0) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data + offset)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    return Kernels(tmp_path_factory.mktemp("kernels"))


@pytest.mark.thinned("instructions")
@sets
@given(data=st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_products_of_integers_are_exact(instructions: str, data: st.DataObject, kernels: Kernels) -> None:
    """Rows of integers whose blocks reach 127 have the scale 1, so that every sum is an integer that float32 holds."""
    bits, block, zeros, in_bytes = data.draw(st.sampled_from(KINDS))
    m, k, n = data.draw(st.tuples(st.sampled_from(ROWS), st.integers(1, MOST), st.integers(1, 70)))
    draw = np.random.default_rng(data.draw(st.integers(0, 99)))
    extreme = data.draw(st.booleans())
    count, top = -(-k // block), (1 << bits) - 1
    integers = draw.choice([0, top], (n, k)) if extreme else draw.integers(0, top + 1, (n, k))
    x = draw.choice([-127, 127], (m, k)) if extreme else draw.integers(-127, 128, (m, k))
    x[:, ::block] = 127
    around = draw.integers(0, top + 1, (n, count)) if zeros else np.full((n, count), (top + 1) // 2)
    blocks = blocks_of(integers.astype(np.uint8), np.ones((n, count), np.float32), None, bits, block)
    blocks = replace(blocks, zeros=around.astype(np.float32)) if zeros else blocks
    found = kernels.multiply(instructions, x.astype(np.float32), blocks, in_bytes=in_bytes)
    np.testing.assert_array_equal(found, x @ (integers - np.repeat(around, block, axis=1)[:, :k]).T)


@pytest.mark.thinned("instructions")
@sets
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("sign", [1, -1])
def test_every_integer_times_the_largest_byte(bits: int, sign: int, instructions: str, kernels: Kernels) -> None:
    """Where sums in int16 would be largest: 127 everywhere, times each integer everywhere."""
    values = np.arange(1 << bits)
    block = 104 if bits == 4 else 40
    integers = np.repeat(values[:, None], 2 * block, axis=1).astype(np.uint8)
    middle = np.full((len(values), 2), 1 << (bits - 1), np.float32) if bits == 8 else None
    blocks = blocks_of(integers, np.ones((len(values), 2), np.float32), None, bits, block)
    if middle is not None:  # the kernel with zero points
        blocks = replace(blocks, zeros=middle)
    x = np.full((1, 2 * block), 127 * sign, np.float32)
    found = kernels.multiply(instructions, x, blocks, in_bytes=True)
    np.testing.assert_array_equal(found[0], 2 * block * 127 * sign * (values - (1 << (bits - 1))))


@sets
def test_rows_become_bytes_as_defined(instructions: str, kernels: Kernels) -> None:
    """The unit matrix as weights shows what a row has become: the nearest multiples of the largest of a block by 127."""
    draw = np.random.default_rng(3)
    x = (draw.standard_normal((3, 208)) * [[1], [1e-30], [1e30]]).astype(np.float32)
    integers = (np.eye(208) + 8).astype(np.uint8)
    blocks = blocks_of(integers, np.ones((208, 2), np.float32), None, 4, 104)
    found = kernels.multiply(instructions, x, blocks, in_bytes=True)
    scales = np.repeat(np.abs(x).reshape(3, 2, 104).max(axis=2) / np.float32(127), 104, axis=1)
    assert (np.abs(found - x) <= scales * 0.501).all()
    np.testing.assert_allclose(found / scales, np.rint(x / scales), atol=1e-4)


@sets
def test_what_is_not_finite_stays_so(instructions: str, kernels: Kernels) -> None:
    blocks = blocks_of(np.full((5, 208), 9, np.uint8), np.ones((5, 2), np.float32), None, 4, 104)
    for value, in_bytes in product((np.nan, np.inf, -np.inf), (False, True)):
        x = np.ones((3, 208), np.float32)
        x[0, 177] = value
        found = kernels.multiply(instructions, x, blocks, in_bytes=in_bytes)
        assert not np.isfinite(found[0]).any() and (found[1:] == 208).all()
    for tiny in (0.0, 1e-42):
        found = kernels.multiply(instructions, np.full((1, 208), tiny, np.float32), blocks, in_bytes=True)
        assert np.abs(found).max() <= 208 * tiny


def few_bits(
    folder: Path,
    m: int,
    k: int,
    n: int,
    bits: int = 4,
    block: int = 32,
    *,
    zeros: bool = True,
    bias: bool = False,
    level: int = 0,
) -> tuple[RegionModel, np.ndarray]:
    """A MatMulNBits, and its weights [k, n] in float64."""
    draw = np.random.default_rng(m + k + n)
    count = -(-k // block)
    integers = draw.integers(0, 1 << bits, (n, count * block), np.uint8)
    scales = (draw.random((n, count)) + 0.1).astype(np.float32)
    around = draw.integers(0, 1 << bits, (n, count), np.uint8) if zeros else np.full((n, count), 1 << (bits - 1))
    weights = (integers - np.repeat(around, block, axis=1).astype(float)) * np.repeat(scales, block, axis=1)
    given = {"w": _packed(integers, bits).reshape(n, count, -1), "s": scales.reshape(-1)}
    given |= {"z": _packed(around, bits).reshape(-1)} if zeros else {}
    given |= {"c": np.arange(n, dtype=np.float32)} if bias else {}
    names = f"x, w, s, {'z' if zeros else ''}{', , c' if bias else ''}".rstrip(", ")
    text = f"y = com.microsoft.MatMulNBits <K={k}, N={n}, bits={bits}, block_size={block}, accuracy_level={level}> ({names})"
    domain = ', "com.microsoft" : 1'
    region = regions.region(folder, text, f"float[{m}, {k}] x", f"float[{m}, {n}] y", domains=domain, **given)
    return region, weights.T[:k]


def _packed(integers: np.ndarray, bits: int) -> np.ndarray:
    if bits == 8:
        return integers
    even = np.pad(integers, ((0, 0), (0, integers.shape[1] % 2)))
    return even[:, ::2] | even[:, 1::2] << 4


@pytest.mark.parametrize(
    ("shape", "bits", "block", "zeros"),
    [((1, 100, 33), 4, 16, True), ((9, 70, 40), 8, 32, True), ((20, 96, 50), 4, 32, False)],
    ids=str,
)
def test_matmul_n_bits(shape: tuple[int, int, int], bits: int, block: int, zeros: bool, tmp_path: Path) -> None:
    m, k, n = shape
    region, weights = few_bits(tmp_path, m, k, n, bits, block, zeros=zeros, bias=bits == 8)
    x = regions.noise(m, k)
    right = x.astype(float) @ weights + (np.arange(n) if bits == 8 else 0)
    for config, bound in (("f32", 1e-6), ("int8", 1e-2)):
        (found,) = regions.answer(
            Native(), region, x, config=KernelConfig(config), resources=Resources(threads=1 + m % 2)
        )
        assert np.linalg.norm(found - right) <= bound * np.linalg.norm(right)


@pytest.mark.parametrize("instructions", [name for name in runnable() if name in ("avx2", "generic")])
def test_products_in_a_region(instructions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORCED_ISA_VARIABLE, instructions)
    region, weights = few_bits(tmp_path, 9, 96, 50)
    x = regions.noise(9, 96)
    (found,) = regions.answer(Native(), region, x, resources=Resources(threads=2))
    assert np.linalg.norm(found - x @ weights) <= 1e-6 * np.linalg.norm(x @ weights)


@pytest.mark.parametrize(
    ("kind", "zeros", "body"),
    [
        (ml_dtypes.int4, False, "y = MatMul (x, f)"),
        (ml_dtypes.uint4, True, "y = MatMul (x, f)"),
        (np.int8, True, "y = Gemm <transB = 1> (x, f)"),
        (ml_dtypes.uint4, True, "p = MatMul (x, f) y = Add (p, f)"),
    ],
    ids=["int4", "uint4", "int8-rows", "read-twice"],
)
def test_dequantize_linear_in_blocks(kind: type, zeros: bool, body: str, tmp_path: Path) -> None:
    """Opset 21: integers of 4 and 8 bits in blocks, along rows or columns, as weights and as a plain tensor."""
    draw, axis = np.random.default_rng(1), int("transB" in body)
    info = ml_dtypes.iinfo(kind)
    shape, steps = ((48, 64), (48, 4)) if axis else ((64, 64), (4, 64))
    integers, around = (draw.integers(int(info.min), int(info.max) + 1, size) for size in (shape, steps))
    scales = (draw.random(steps) + 0.1).astype(np.float32)
    weights = (integers - np.repeat(around, 16, axis=axis) * zeros) * np.repeat(scales, 16, axis=axis).astype(float)
    given = {"q": integers.astype(kind), "s": scales} | ({"z": around.astype(kind)} if zeros else {})
    text = f"f = DequantizeLinear <axis = {axis}, block_size = 16> ({', '.join(given)}) {body}"
    outputs = f"float[64, {shape[0] if axis else 64}] y"
    region = regions.region(tmp_path, text, "float[64, 64] x", outputs, opset=21, **given)
    x = regions.noise(64, 64)
    (found,) = regions.answer(Native(), region, x, resources=Resources(threads=2))
    right = x.astype(float) @ (weights.T if axis else weights) + (weights if "Add" in body else 0)
    assert np.linalg.norm(found - right) <= 1e-6 * np.linalg.norm(right)


def test_the_accuracy_level_of_a_model_allows_bytes(tmp_path: Path) -> None:
    """At level 4 every configuration multiplies bytes; at others only those that are asked to."""
    x = regions.noise(2, 96)
    usual, weights = few_bits(tmp_path, 2, 96, 50, level=0)
    answers = list(regions.answer(Native(), usual, x))
    (asked,) = regions.answer(Native(), usual, x, config=KernelConfig("int8"))
    in_bytes, _ = few_bits(tmp_path, 2, 96, 50, level=4)
    answers += regions.answer(Native(), in_bytes, x)
    with pytest.raises(Refused, match="int8"):
        regions.answer(Native(), in_bytes, x, config=KernelConfig("int8"))
    errors = [np.linalg.norm(found - x @ weights) / np.linalg.norm(x @ weights) for found in answers]
    assert errors[0] < 1e-6 < 1e-4 < errors[1] < 1e-2
    np.testing.assert_array_equal(answers[1], asked)


def test_weights_stay_small(tmp_path: Path) -> None:
    """A library keeps 4 bits and a scale for each block: 5 bits a weight."""
    region, _ = few_bits(tmp_path, 1, 256, 256, zeros=False)
    for config in ("f32", "int8"):
        Native().compile(region, KernelConfig(config), Resources(threads=1, cache=tmp_path / config))
        (kept,) = (tmp_path / config).rglob(WEIGHTS)
        assert kept.stat().st_size - HEADER_BYTES == 256 * 256 * 5 // 8


@pytest.mark.parametrize(
    ("extra", "inputs", "reason"),
    [
        ("bits=4", "x, w, s, , g", "g_idx"),
        ("bits=2", "x, w, s", "2 bits"),
        ("bits=3", "x, w, s", "whole bytes"),
        ("bits=8", "x, w, s", "bytes of weights"),
        ("bits=4", "x, w, t", "computed"),
    ],
)
def test_what_is_refused(extra: str, inputs: str, reason: str, tmp_path: Path) -> None:
    given = {
        "w": np.zeros((8, 1, 16), np.uint8),
        "s": np.ones(8, np.float32),
        "g": np.zeros(32, np.int32),
    }
    text = f"y = com.microsoft.MatMulNBits <K=32, N=8, block_size=32, {extra}> ({inputs})"
    taken = {name: array for name, array in given.items() if name in inputs}
    region = regions.region(
        tmp_path, text, "float[1, 32] x, float[8] t", "float[1, 8] y", domains=', "com.microsoft" : 1', **taken
    )
    with pytest.raises(Refused, match=reason):
        regions.answer(Native(), region, regions.noise(1, 32), np.ones(8, np.float32))


@pytest.mark.thinned("instructions")
@pytest.mark.parametrize(
    "instructions", [name for name in runnable() if (found := find_isa(name)) and found.matrix_unit]
)
@pytest.mark.parametrize(
    ("shape", "bits", "block", "zeros"),
    [
        ((45, 150, 70), 4, 32, True),
        ((264, 300, 70), 4, 128, False),
        ((33, 100, 40), 8, 32, True),
        ((16, 64, 33), 8, 64, False),
    ],
    ids=str,
)
def test_many_rows_in_tiles(
    shape: tuple[int, int, int],
    bits: int,
    block: int,
    zeros: bool,
    instructions: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Integers whose blocks reach 127 are exact, whichever of rows and columns threads share."""
    monkeypatch.setenv(FORCED_ISA_VARIABLE, instructions)
    m, k, n = shape
    region, weights = few_bits(tmp_path, m, k, n, bits, block, zeros=zeros, level=4)
    x = np.random.default_rng(0).integers(-127, 128, (m, k)).astype(np.float32)
    x[:, ::block] = 127
    (found,) = regions.answer(Native(), region, x, resources=Resources(threads=1 + m % 2))
    right = x.astype(float) @ weights
    assert np.abs(found - right).max() <= 1e-6 * np.abs(right).max()


def test_prompts_are_multiplied_in_tiles() -> None:
    """From some rows on, where there is a matrix unit for bytes and blocks fill its rows."""
    isa = find_isa("split-amx") or find_isa("emulated-amx")
    if isa is None:
        pytest.skip("this processor runs no code for tiles")
    for block, rows, tiled in ((32, 64, True), (256, 64, True), (16, 64, False), (32, 8, False)):
        blocks = blocks_of(np.zeros((1, block), np.uint8), np.ones((1, 1), np.float32), None, 4, block)
        assert (block_tiles(isa, blocks, rows) is not None) == tiled
