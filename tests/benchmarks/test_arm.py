"""The native engine on emulated 64-bit Arm processors, and what models of Arm cores say of its inner loops."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks.arm import emulation
from benchmarks.arm.emulation import COMPILER, EmulatedLibrary, EmulatorEnded, Processor, emulate, find_lacking_tool
from benchmarks.arm.inner_loops import (
    FLOORS,
    InnerLoop,
    compile_inner_loop,
    count_cycles,
    find_inner_loop,
    find_lacking_analyser,
    list_micro_kernels,
    measure_share,
)
from benchmarks.arm.random_regions import compare_products, compare_regions
from benchmarks.arm.suite import compare_suite
from benchmarks.tools.output import ResultLines
from bricolage.backends.interface import Resources
from bricolage.backends.native.engine import Native
from bricolage.conformance.suite import suite_cases
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
@pytest.mark.usefixtures("undone")
def test_sets_share_a_library_that_is_the_same_for_both(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[tuple[str, ...]] = []
    compile_library = emulation._compile_library

    def count(text: str, flags: tuple[str, ...], *others: object) -> None:
        compiled.append(flags)
        compile_library(text, flags, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(emulation, "_compile_library", count)
    emulation._compile_once.cache_clear()
    floats = compare_regions(SMALLEST[:2], range(1))
    assert [counts.differences for counts in floats] == [(), ()] and len(compiled) == 1
    compare_products(SMALLEST[:2], range(1))
    assert len(compiled) == 3 and compiled[1] != compiled[2]


def test_a_run_goes_on_behind_the_last_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "arm.jsonl"
    kept = ResultLines(path)
    kept.add("first", 8, ["a\nb"])
    kept.add("second", 1)
    path.write_bytes(path.read_bytes()[:-2])
    again = ResultLines(path)
    assert again.values == {"first": [8, ["a\nb"]]}
    again.add("third", None)
    assert ResultLines(path).values == {"first": [8, ["a\nb"]], "third": [None]}
    again.forget()
    assert ResultLines(path).values == {}


@needs_emulator
def test_what_is_kept_is_not_tried_again_and_a_case_is_compared_with_the_same_here(tmp_path: Path) -> None:
    (case,) = [case for case in suite_cases(["Abs"], ["node"]) if case.name == "test_abs"]
    kept = ResultLines(tmp_path / "kept.jsonl")
    kept.add("here test_abs", "passes", "")
    kept.add("neon cortex-a72 test_abs", "wrong", "an illegal instruction")
    (comparison,) = compare_suite([case], 1, [Processor("neon", "cortex-a72")], kept)
    assert comparison.here == {"passes": 1} and comparison.there == {"wrong": 1} and comparison.illegal == 1
    assert len(comparison.differences) == 1
    (there,) = compare_suite([case], 1, [Processor("dotprod", "neoverse-n1")], kept)
    assert there.there == {"passes": 1} and not there.differences
    assert kept.values["dotprod neoverse-n1 test_abs"] == ["passes", ""]


@needs_analyser
def test_wider_vectors_multiply_no_faster() -> None:
    """Why there is no set for SVE of 256 bits: Neoverse V1 begins two of them in the time of four of NEON."""
    for neon, wide in (
        ("fmla v{0}.4s, v30.4s, v31.s[0]", "fmla z{0}.s, z30.s, z7.s[0]"),
        ("sdot v{0}.4s, v30.16b, v31.4b[0]", "sdot z{0}.s, z30.b, z7.b[0]"),
        ("usmmla v{0}.4s, v30.16b, v31.16b", "usmmla z{0}.s, z30.b, z31.b"),
        ("bfmmla v{0}.4s, v30.8h, v31.8h", "bfmmla z{0}.s, z30.h, z31.h"),
    ):
        sums = [register for register in range(25) if register != 7]
        lines = [tuple(f"\t{form.format(register)}" for register in sums) for form in (neon, wide)]
        cycles = [count_cycles(each, "neoverse-v1") for each in lines]
        assert cycles[1] >= 1.95 * cycles[0], f"{wide} is faster by bits than {neon}"


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
