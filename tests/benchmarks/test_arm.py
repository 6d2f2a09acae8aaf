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
from bricolage.backends.interface import Resources
from bricolage.backends.native.engine import Native
from bricolage.native.cpu.isa import available_isas
from bricolage.work.implementation import KernelConfig
from tests.backends import regions

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
@pytest.mark.usefixtures("undone")
@pytest.mark.parametrize("threads", [1, 2])
def test_rows_of_bytes_that_lie_in_pairs_are_right(
    threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row, odd numbers of them, and several tiles; depths that end within eight bytes."""
    emulate(Processor("i8mm"), monkeypatch.setattr)
    shapes = [(1, 40, 9), (2, 17, 16), (3, 5, 30), (25, 67, 12), (65, 24, 8)]
    model = regions.region(
        tmp_path,
        "\n".join(f"y{i} = MatMul (x{i}, w{i})" for i in range(len(shapes))),
        ", ".join(f"float[{m}, {k}] x{i}" for i, (m, k, _) in enumerate(shapes)),
        ", ".join(f"float[{m}, {n}] y{i}" for i, (m, _, n) in enumerate(shapes)),
        **{f"w{i}": regions.noise(k, n, seed=i) for i, (_, k, n) in enumerate(shapes)},
    )
    given = [regions.noise(m, k, seed=9) for m, k, _ in shapes]
    answers = regions.answer(Native(), model, *given, config=KernelConfig("int8"), resources=Resources(threads=threads))
    for answer, expected in zip(answers, regions.reference(model, *given), strict=True):
        assert 1e-5 < regions.error([answer], [expected]) < 2e-2


@needs_emulator
@needs_analyser
@pytest.mark.parametrize(
    ("processor", "kind", "instruction", "cores"),
    [
        ("neon", "product", "fmla", ("neoverse-n1", "neoverse-v2", "cortex-a55")),
        ("dotprod", "sdot", "sdot", ("neoverse-n1", "cortex-a55")),
        ("i8mm", "pairs", "usmmla", ("neoverse-v1", "neoverse-v2")),
    ],
)
def test_the_largest_tile_reaches_its_bound(
    processor: str, kind: str, instruction: str, cores: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    emulate(Processor(processor), monkeypatch.setattr)
    kernels = list_micro_kernels(available_isas()[0])
    loop = compile_inner_loop(next(kernel for kernel in kernels if kernel.name.startswith(kind)))
    assert loop.instruction == instruction and not loop.spills
    for core in cores:
        share = measure_share(processor, loop, core)
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
