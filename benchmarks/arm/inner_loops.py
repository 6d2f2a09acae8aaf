"""Inner loops of the micro-kernels, as the compiler writes them, on LLVM's models of Arm cores (llvm-mca).

A model knows how many instructions a core begins and how long each takes. It knows nothing of caches, so it says what a loop
reaches at best. The bound of a loop is the time of its multiply-adds alone, at the rate that the model gives a loop of only these.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from benchmarks.arm.emulation import COMPILER
from bricolage.native.c import define
from bricolage.native.cpu import toolchain
from bricolage.native.cpu.arithmetic import FLOAT32, Arithmetic
from bricolage.native.cpu.c_source import HEAD
from bricolage.native.cpu.isa import Isa
from bricolage.native.cpu.panels import MicroTile, ProductOperand

ANALYSER = "llvm-mca-19"
FLOORS = {"neoverse-n1": 0.9, "neoverse-v1": 0.9, "neoverse-v2": 0.9, "cortex-a55": 0.75}
"""Cores, and the share of the bound that the largest tile is to reach on each."""
_HELD = {("fmla", "cortex-a55"): 0.74, ("sdot", "cortex-a55"): 0.74}
"""Where a tile may not get there: the share that it may not fall below. Rows that lie 12 KiB apart need a second address, which is
added to in each turn; where the next panel is fetched as well, that is one cycle too many."""
_EXTENDING = ("smull", "smull2", "smlal", "smlal2")
"""Products of bytes where no instruction adds four of them. Half of the work is in other instructions, so no floor is asked."""
_LACKING = re.compile(r"usdot|sudot|\w+mmla|bf\w+")
_SMALL = frozenset(["cortex-a55", "neoverse-n1"])
"""Cores without the multiply-adds that `_LACKING` names."""
_INTEGER_CORES = frozenset(["cortex-a55"])
"""Cores whose model begins two multiply-adds of four floats a cycle, as of two floats, where the core begins one (Arm, "Cortex-A55
Software Optimization Guide"). The model is right about integers, which take the same two units for as long: they stand in."""
_MULTIPLIES = re.compile(r"\s(fmla|smull2?|smlal2?|sdot|udot|usdot|sudot|smmla|ummla|usmmla|bfmmla|bfdot)\s")
_LABEL, _BRANCH = re.compile(r"^(\.L\w+):"), re.compile(r"^\s+(?:b\.?\w*|cbn?z|tbn?z)\s.*?(\.L\w+)$")
_ON_STACK = re.compile(r"\[sp\b")
_DIRECTIVE = re.compile(r"^\s*(\.|//|#|$)")
_FEW, _MANY = 100, 400
"""Turns of a loop; the difference of their times leaves out how it begins."""
_DEPTH_BYTES = (512, 12 << 10)
"""Of a row: all rows within reach of one address, and each far from the next."""


@dataclass(frozen=True)
class InnerLoop:
    """The loop of a micro-kernel that multiplies most, as the compiler wrote it."""

    kernel: str
    lines: tuple[str, ...]
    spills: int
    """Of its instructions that read or write the stack."""

    @property
    def multiplies(self) -> tuple[str, ...]:
        """Its multiply-adds."""
        return tuple(line for line in self.lines if _MULTIPLIES.search(line))

    @property
    def instruction(self) -> str:
        """The most frequent of them."""
        names = [match[1] for line in self.lines if (match := _MULTIPLIES.search(line))]
        return max(set(names), key=names.count)


@dataclass(frozen=True)
class LoopShare:
    """How near a loop comes to its bound on a core."""

    isa: str
    kernel: str
    instruction: str
    multiplies: int
    instructions: int
    spills: int
    core: str
    cycles: float
    """Of a turn."""
    share: float
    """Of the bound, at most 1."""
    whole: bool
    """Whether the tile is the largest one, of which the floor is asked."""

    @property
    def reaches_floor(self) -> bool:
        """Whether it is as near to the bound as it is to be."""
        return not self.whole or self.instruction in _EXTENDING or self.share >= FLOORS[self.core]

    @property
    def is_held(self) -> bool:
        """Whether it is no further from the bound than is known, and keeps nothing on the stack."""
        held = self.share >= _HELD.get((self.instruction, self.core), 1.0) or self.reaches_floor
        return not self.whole or (held and not self.spills)


@dataclass(frozen=True)
class MicroKernel:
    """C of a micro-kernel."""

    name: str
    text: str
    flags: tuple[str, ...]
    whole: bool


def list_micro_kernels(isa: Isa) -> Iterator[MicroKernel]:
    """Micro-kernels of float32 and of bytes: the largest tile, half of its rows, one row, and panels of one vector."""
    for arithmetic in (FLOAT32, Arithmetic(in_bytes=True)):
        operand = arithmetic.operands(isa)[-1]
        rows, most = operand.rows(isa), operand.panel_vectors
        shapes = [(rows, most, False), (rows, most, True), (rows // 2, most, False), (1, most, False), (rows, 1, False)]
        for count, vectors, prefetch in dict.fromkeys(shapes):
            for row_bytes in _DEPTH_BYTES if count > 1 else _DEPTH_BYTES[:1]:
                yield _micro_kernel(
                    isa, arithmetic, operand, (count, vectors, row_bytes), prefetch, count == rows and vectors == most
                )


def _micro_kernel(
    isa: Isa, arithmetic: Arithmetic, operand: ProductOperand, shape: tuple[int, int, int], prefetch: bool, whole: bool
) -> MicroKernel:
    rows, vectors, row_bytes = shape
    products = row_bytes // operand.bytes
    tile = MicroTile(
        rows,
        vectors,
        operand.pitch(products),
        isa.lanes,
        part=operand.depth(products) // operand.splits,
        prefetch=prefetch,
        sets=operand.sets([rows], vectors),
    )
    name, text = operand.micro_kernel(tile)
    head = [define(_GNU_SOURCE="", LANES=isa.lanes), *operand.preamble(isa), HEAD, *operand.helpers(isa).values()]
    kept = f"void *const kept_{name} = (void *){name};"  # a static function that nothing names is left out
    flags = arithmetic.flags(isa, of_bytes=operand.k_pack == 4)
    return MicroKernel(name, "\n".join([*head, text, kept]), flags, whole)


def compile_inner_loop(kernel: MicroKernel) -> InnerLoop:
    """The loop of a micro-kernel that multiplies most, at the product's own level of optimisation.

    Raises:
        subprocess.CalledProcessError: it does not compile.
        ValueError: no loop multiplies.
    """
    words = [COMPILER, *toolchain.FLAGS, "-O3", *kernel.flags, "-S", "-x", "c", "-", "-o", "-"]
    ran = subprocess.run(words, input=kernel.text, capture_output=True, text=True, check=True)
    return find_inner_loop(ran.stdout, kernel.name)


def find_inner_loop(assembly: str, function: str) -> InnerLoop:
    """The loop of a function, without loops in it, that multiplies most.

    Raises:
        ValueError: no loop multiplies.
    """
    _, _, body = assembly.partition(f"\n{function}:\n")
    lines = body.partition("\t.size\t")[0].splitlines()
    labels: dict[str, int] = {}
    loops: list[tuple[int, int]] = []
    for number, line in enumerate(lines):
        if label := _LABEL.match(line):
            labels[label[1]] = number
        elif (branch := _BRANCH.match(line)) and branch[1] in labels:
            loops.append((labels[branch[1]], number))
    innermost = [
        (start, stop)
        for start, stop in loops
        if not any((start, stop) != other and start <= other[0] and other[1] <= stop for other in loops)
    ]
    found = [
        tuple(line for line in lines[start + 1 : stop + 1] if not _DIRECTIVE.match(line)) for start, stop in innermost
    ]
    best = max(found, key=lambda each: sum(bool(_MULTIPLIES.search(line)) for line in each), default=())
    if not any(_MULTIPLIES.search(line) for line in best):
        raise ValueError(f"no loop of {function} multiplies")
    return InnerLoop(function, best, sum(bool(_ON_STACK.search(line)) for line in best))


def measure_share(isa: str, loop: InnerLoop, core: str, *, whole: bool = True) -> LoopShare | None:
    """How near a loop comes to its bound on a core; None where the core lacks its multiply-add."""
    if core in _SMALL and _LACKING.fullmatch(loop.instruction):
        return None
    sample = next(line for line in loop.multiplies if _MULTIPLIES.search(line)[1] == loop.instruction)  # type: ignore[index]
    cycles = count_cycles(loop.lines, core)
    bound = len(loop.multiplies) * _multiply_cycles(sample, core)
    return LoopShare(
        isa,
        loop.kernel,
        loop.instruction,
        len(loop.multiplies),
        len(loop.lines),
        loop.spills,
        core,
        cycles,
        min(1.0, bound / cycles),
        whole,
    )


@cache
def _multiply_cycles(sample: str, core: str) -> float:
    """Cycles of a multiply-add among others that do not wait for it."""
    independent = [re.sub(r"\bv\d+(?=\.4s,)", f"v{number}", sample, count=1) for number in range(24)]
    behind = [re.sub(r"(,\s*)v\d+\.", r"\1v31.", line) for line in independent]
    if "s[" in sample or "4b[" in sample:  # an element lies in one of the lower registers where elements are of 16 bits
        behind = [re.sub(r"v31\.(4?[sb]\[)", r"v30.\1", line) for line in behind]
    return count_cycles(tuple(behind), core) / len(behind)


def count_cycles(lines: Sequence[str], core: str) -> float:
    """Of a turn of a loop."""
    few, many = (_total_cycles(lines, core, turns) for turns in (_FEW, _MANY))
    return (many - few) / (_MANY - _FEW)


def _total_cycles(lines: Sequence[str], core: str, turns: int) -> int:
    words = [ANALYSER, "-mtriple=aarch64-linux-gnu", f"-mcpu={core}", f"-iterations={turns}", "-json", "-"]
    lines = [line.replace("\tfmla\t", "\tmla\t") for line in lines] if core in _INTEGER_CORES else lines
    text = ".arch_extension dotprod\n.arch_extension i8mm\n" if core == "cortex-a55" else ""
    labelled = "\n".join(["loop:", *(re.sub(r"\.L\w+", "loop", line) for line in lines)])
    ran = subprocess.run(words, input=f"{text}{labelled}\n", capture_output=True, text=True, check=True)
    (region,) = json.loads(ran.stdout)["CodeRegions"]
    return int(region["SummaryView"]["TotalCycles"])


def find_lacking_analyser() -> str:
    """The program that is missing here; empty where it is there."""
    return "" if shutil.which(ANALYSER) else ANALYSER


def analyse(isa: Isa) -> Iterator[LoopShare]:
    """All inner loops of an instruction set on all cores."""
    for kernel in list_micro_kernels(isa):
        loop = compile_inner_loop(kernel)
        for core in FLOORS:
            share = measure_share(isa.name, loop, core, whole=kernel.whole)
            if share is not None:
                yield share
