"""The compiler in the `ziglang` wheel, for machines that have none."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bricolage.backends.interface import Available, Missing, Resources
from bricolage.backends.native import engine
from bricolage.backends.native.engine import Native
from bricolage.device.host import host
from bricolage.errors import Refused
from bricolage.native.cpu import toolchain
from bricolage.native.cpu.isa import ARM_SETS, ISAS, Isa, available_isas
from bricolage.work.implementation import KernelConfig
from tests.backends import regions


@pytest.fixture
def only_zig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine without cc, gcc and clang."""
    pytest.importorskip("ziglang")
    caches = (toolchain.compiler, toolchain.compiler_version, engine._generation)
    monkeypatch.setenv("PATH", str(tmp_path))
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


@pytest.mark.parametrize(
    "isa",
    [
        pytest.param(isa, id=isa.name, marks=[pytest.mark.slow] * (isa != available_isas()[0]))
        for isa in available_isas()
    ],
    indirect=True,
)
def test_it_compiles_what_the_system_compiler_does(isa: Isa, only_zig: None, tmp_path: Path) -> None:
    assert isinstance(Native().status(), Available)
    for make, shape in ((regions.conv_net, (1, 8, 32, 32)), (regions.attention_block, (1, 16, 32))):
        folder = tmp_path / make.__name__
        folder.mkdir()
        model, x = make(folder), regions.noise(*shape)
        found = regions.answer(Native(), model, x, resources=Resources(threads=2))
        assert regions.error(found, regions.reference(model, x)) < 2e-6


def test_products_in_bfloat16(only_zig: None, tmp_path: Path) -> None:
    if not available_isas()[0].multiplies_bfloat16(host()):
        pytest.skip("this processor has no products of bfloat16")
    draw = np.random.default_rng(0)
    x, w = (draw.integers(-9, 10, shape).astype(np.float32) for shape in ((5, 64), (64, 33)))
    model = regions.region(tmp_path, "y = MatMul (x, w)", "float[5, 64] x", "float[5, 33] y", w=w)
    (found,) = regions.answer(Native(), model, x, config=KernelConfig("bf16"), resources=Resources(threads=2))
    assert np.array_equal(found, x @ w)


def test_how_much_is_optimised_is_part_of_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was compiled with little optimisation is not run where all of it is wanted."""
    model, x = regions.conv_net(tmp_path), regions.noise(1, 8, 32, 32)
    found = []
    for level in ("0", "3"):
        monkeypatch.setenv(toolchain.LEVEL_VARIABLE, level)
        assert toolchain.level() == f"-O{level}"
        found.append(regions.answer(Native(), model, x, resources=Resources(cache=tmp_path / "kept")))
    assert len(list((tmp_path / "kept").rglob("region.so"))) == 2
    assert regions.error(found[0], found[1]) < 2e-6
    monkeypatch.setenv(toolchain.LEVEL_VARIABLE, "fast")
    with pytest.raises(Refused, match="BRICOLAGE_NATIVE_LEVEL is none of 0, 1, 2, 3"):
        regions.answer(Native(), model, x)
    assert isinstance(Native().status(), Missing)


def test_what_libraries_share_is_compiled_again_once_the_cache_is_emptied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    for name in ("first", "second"):
        monkeypatch.setenv("BRICOLAGE_CACHE", str(tmp_path / name))
        made.append(toolchain.compile_shared_object("int shared_by_tests = 1;\n", "test"))
        assert made[-1].is_file()
    made[0].unlink()
    monkeypatch.setenv("BRICOLAGE_CACHE", str(tmp_path / "first"))
    assert toolchain.compile_shared_object("int shared_by_tests = 1;\n", "test") == made[0]
    assert made[0].is_file()


@pytest.mark.parametrize("name", ARM_SETS)
def test_zig_takes_the_flags_of_arms_sets(name: str, tmp_path: Path) -> None:
    """It knows no architecture by the name that GCC and Clang have for it."""
    pytest.importorskip("ziglang")
    (isa,) = (isa for isa in ISAS if isa.name == name)
    flags = toolchain.spell_for_zig((*isa.flags, *isa.byte_flags, "-O2"))
    assert flags[-1] == "-O2" and not any("march" in flag for flag in flags)
    source = tmp_path / "dot.c"
    dot = "int32x4_t f(int32x4_t a, int8x16_t b) { return vdotq_s32(a, b, b); }" if name != "neon" else "int f;"
    source.write_text(f"#include <arm_neon.h>\n{dot}\n", encoding="ascii")
    words = [sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-linux-gnu", *flags, "-c", str(source)]
    ran = subprocess.run([*words, "-o", str(tmp_path / "dot.o")], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
