"""What compilers are told of processors that are not this machine's, and the instructions that they then use.

Each processor is the flags that Linux shows on one. A code generator that goes by a processor's name takes instructions that a
hypervisor has taken away; one that goes by flags cannot.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bricolage.backends import registry
from bricolage.backends.interface import Resources
from bricolage.backends.isa_limits import LLVM_NAMES, llvm_target
from bricolage.device.device import Device
from bricolage.device.host import host, usable_flags
from bricolage.native.cpu.isa import available_isas
from tests.backends import regions

_V2 = "ssse3 sse4_1 sse4_2 popcnt cx16 lahf_lm"
_V3 = f"{_V2} avx f16c fma avx2 bmi1 bmi2 movbe abm"
_V4 = f"{_V3} avx512f avx512cd avx512bw avx512dq avx512vl"
PROCESSORS = {
    "Nehalem": _V2,
    "Haswell": _V3,
    "Zen 4, AVX-512 masked": _V3,
    "Alder Lake": f"{_V3} avx_vnni",
    "Skylake-X": _V4,
    "Zen 4": f"{_V4} avx512_vnni avx512_bf16",
    "Zen 4, AVX512_BF16 masked": f"{_V4} avx512_vnni",
    "Sapphire Rapids": f"{_V4} avx_vnni avx512_vnni avx512_bf16 avx512_fp16 amx_tile amx_bf16 amx_int8",
}
_REGISTERS = {"avx512": r"%zmm|%k[1-7]|%[xy]mm(1[6-9]|2\d|3[01])\b", "avx": r"%ymm"}


def device(name: str) -> Device:
    """This machine with the flags of another."""
    return replace(host(), instructions=frozenset(PROCESSORS[name].split()), isa="", architecture="x86_64")


def used(program: Path) -> set[str]:
    """Kinds of vector registers that the machine code in a file names: those of AVX-512 and of AVX."""
    if shutil.which("objdump") is None:
        pytest.skip("objdump (of Debian's binutils) is not installed")
    found: set[str] = set()
    for i, image in enumerate(images(program)):
        part = program.with_suffix(f".{i}.elf")
        part.write_bytes(image)
        command = ["objdump", "-d", "--no-show-raw-insn", str(part)]
        shown = subprocess.run(command, capture_output=True, text=True, check=True, encoding="utf-8").stdout
        assert "\tret" in shown
        found |= {kind for kind, registers in _REGISTERS.items() if re.search(registers, shown)}
    return found


def images(program: Path) -> Iterator[bytes]:
    """The ELF images in a file: a shared library is one, programs of IREE hold one for each executable."""
    content, magic = program.read_bytes(), b"\x7fELF\x02"
    starts = [found.start() for found in re.finditer(re.escape(magic), content)]
    assert starts
    yield from (content[start:end] for start, end in zip(starts, [*starts[1:], len(content)], strict=True))


def allowed(device: Device) -> set[str]:
    """Those that it has."""
    names = {"avx512": "avx512f", "avx": "avx"}
    return {kind for kind, flag in names.items() if flag in device.instructions}


@given(st.sets(st.sampled_from(sorted(LLVM_NAMES))))
def test_llvm_is_told_what_the_device_has_and_no_more(flags: set[str]) -> None:
    told = llvm_target(replace(host(), instructions=frozenset(flags)))
    assert {name.removeprefix("+") for name in told.features} == {LLVM_NAMES[flag] for flag in flags}
    assert told.cpu in ("x86-64", "generic")


@pytest.mark.parametrize("name", PROCESSORS)
def test_our_engine_chooses_what_runs(name: str) -> None:
    assert all(isa.needs <= device(name).instructions for isa in available_isas(device(name)))
    best = available_isas(device(name))[0].name
    assert best in {"Nehalem": ("generic",), "Haswell": ("avx2",)}.get(name, ("avx2", "avx512", "amx"))


@pytest.mark.parametrize("name", PROCESSORS)
def test_our_engines_code_keeps_to_the_processor(name: str, tmp_path: Path) -> None:
    target = device(name)
    folder = tmp_path / "made"
    folder.mkdir()
    registry.get("native").build(
        regions.conv_net(tmp_path), regions.F32, Resources(threads=1, device=target, cache=folder)
    )
    (library,) = folder.rglob("*.so")
    assert used(library) <= allowed(target)


@pytest.mark.apart
@pytest.mark.parametrize("name", ["Nehalem", "Zen 4, AVX-512 masked", pytest.param("Zen 4", marks=pytest.mark.slow)])
def test_tvms_code_keeps_to_the_processor(name: str, tmp_path: Path) -> None:
    from bricolage.backends.tvm import build_executable

    target = device(name)
    library = tmp_path / "region.so"
    build_executable(regions.conv_net(tmp_path), regions.F32, Resources(threads=1, device=target)).export_library(
        str(library)
    )
    assert used(library) == allowed(target)


@pytest.mark.apart
@pytest.mark.parametrize("name", ["Nehalem", "Zen 4, AVX-512 masked", pytest.param("Zen 4", marks=pytest.mark.slow)])
def test_irees_code_keeps_to_the_processor(name: str, tmp_path: Path) -> None:
    from bricolage.backends.iree_compile import CONVOLUTIONS, OPTIONS, compile_in_child, processor

    target = device(name)
    program = tmp_path / "region.vmfb"
    compile_in_child(regions.conv_net(tmp_path), program, (*OPTIONS, *CONVOLUTIONS["f32"], *processor(target)))
    assert used(program) == allowed(target)


def test_an_emulated_processor_is_what_it_answers_not_what_the_system_says() -> None:
    flags = set(PROCESSORS["Sapphire Rapids"].split())
    assert usable_flags(flags, {}) == flags
    emulated = usable_flags(flags, {"AVX512F": False, "AVX512BW": False, "AVX512BF16": False, "AVX512FP16": False})
    assert "avx2" in emulated and not {"avx512f", "avx512_bf16", "avx512_fp16", "amx_tile"} & emulated
