"""The native engine on emulated 64-bit Arm processors, and what models of Arm cores say of its inner loops."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks.arm.emulation import COMPILER, EmulatedLibrary, EmulatorEnded, Processor, emulate, find_lacking_tool
from benchmarks.arm.inner_loops import (
    FLOORS,
    InnerLoop,
    compile_inner_loop,
    find_inner_loop,
    find_lacking_analyser,
    list_micro_kernels,
    measure_share,
)
from benchmarks.arm.random_regions import compare_products, compare_regions
from bricolage.native.cpu.isa import available_isas

LACKING = find_lacking_tool()
needs_emulator = pytest.mark.skipif(bool(LACKING), reason=f"{LACKING} is not here")
needs_analyser = pytest.mark.skipif(bool(find_lacking_analyser()), reason=f"{find_lacking_analyser()} is not here")
SMALLEST = [Processor("neon"), Processor("dotprod"), Processor("i8mm")]


@pytest.fixture
def undone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `emulate` replaces is there again behind the test."""
    monkeypatch.setattr(
        "benchmarks.arm.random_regions.emulate", lambda processor: emulate(processor, monkeypatch.setattr)
    )


@needs_emulator
@pytest.mark.usefixtures("undone")
def test_random_regions_are_right_on_arm() -> None:
    (counts,) = compare_regions(SMALLEST[:1], range(4))
    assert (counts.regions, counts.differences, counts.illegal) == (4, (), 0)


@needs_emulator
@pytest.mark.usefixtures("undone")
def test_products_of_bytes_are_exact_with_every_instruction() -> None:
    for counts in compare_products(SMALLEST, range(3)):
        assert (counts.regions, counts.differences, counts.illegal) == (3, (), 0)


@needs_emulator
def test_an_instruction_that_the_processor_lacks_ends_the_run(tmp_path: Path) -> None:
    library = tmp_path / "library.so"
    text = '__attribute__((constructor)) static void dot(void) { __asm__ volatile("sdot v0.4s, v1.16b, v2.16b"); }'
    command = [COMPILER, "-shared", "-fPIC", "-march=armv8.2-a+dotprod", "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=text, text=True, check=True)
    with pytest.raises(EmulatorEnded, match="an illegal instruction"):
        EmulatedLibrary(Processor("neon"), library, tmp_path)
    # A processor that has it gets as far as the functions, which this library lacks.
    with pytest.raises(EmulatorEnded, match="ended with 2"):
        EmulatedLibrary(Processor("dotprod", "max"), library, tmp_path)


@needs_emulator
@needs_analyser
def test_the_largest_tile_of_float32_reaches_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(Processor("neon"), monkeypatch.setattr)
    loop = compile_inner_loop(next(list_micro_kernels(available_isas()[0])))
    assert loop.instruction == "fmla" and not loop.spills
    for core in ("neoverse-n1", "neoverse-v2"):
        share = measure_share("neon", loop, core)
        assert share is not None and share.share >= FLOORS[core]


LOOP = """
kernel:
\tcmp\tx0, 0
.L2:
\tfmul\tv0.4s, v1.4s, v2.4s
.L3:
\tldr\tq1, [x1], 16
\tldr\tq4, [sp, 32]
\tfmla\tv2.4s, v1.4s, v3.4s
\tsubs\tx0, x0, #1
\tbne\t.L3
\tcbnz\tx2, .L2
.L4:
\tadd\tx2, x2, 1
\tb.lt\t.L4
\tret
\t.size\tkernel, .-kernel
"""


@needs_analyser
def test_the_loop_that_multiplies_is_cut_out() -> None:
    loop = find_inner_loop(LOOP, "kernel")
    assert [line.split()[0] for line in loop.lines] == ["ldr", "ldr", "fmla", "subs", "bne"]
    assert (loop.instruction, len(loop.multiplies), loop.spills) == ("fmla", 1, 1)
    with pytest.raises(ValueError, match="no loop of kernel multiplies"):
        find_inner_loop(LOOP.replace("fmla", "fadd"), "kernel")
    # A sum that waits for itself takes the four cycles of a multiply-add; N1 begins two of those in each.
    share = measure_share("neon", loop, "neoverse-n1")
    assert share is not None and 1 / 8 <= share.share < 1 / 2
    chains = tuple(f"\tfmla\tv{number}.4s, v30.4s, v31.4s" for number in range(24))
    whole = measure_share("neon", InnerLoop("kernel", chains, 0), "neoverse-n1")
    assert whole is not None and whole.share == 1.0
    assert measure_share("i8mm", InnerLoop("kernel", ("\tusmmla\tv0.4s, v1.16b, v2.16b",), 0), "neoverse-n1") is None
