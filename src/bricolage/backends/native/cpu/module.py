"""One C library for a region: the fused kernels, one after another on persistent threads, behind three functions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from bricolage.backends.native.cpu import (
    attention,
    elementwise,
    gemm,
    group_norm,
    grouped_conv,
    reduction,
    rows,
    separable_conv,
    winograd,
    winograd_transform,
)
from bricolage.backends.native.cpu.arithmetic import FLOAT32, Arithmetic
from bricolage.backends.native.cpu.emit import indented
from bricolage.backends.native.cpu.functions import MATHS
from bricolage.backends.native.cpu.kernel_choice import DEFAULT, KernelChoice
from bricolage.backends.native.cpu.phase import ConstantOperand, MemoryOperand, Phase, Weights, tensor_operand
from bricolage.backends.native.cpu.target import CpuTarget
from bricolage.backends.native.cpu.threads import RING, THREADS
from bricolage.backends.native.cpu.wide import HELPERS, PREFIX
from bricolage.backends.native.fuse.plan import Buffer, FusedKernel, FusionPlan, kernel_reads
from bricolage.backends.native.ir.tensors import STORED_TYPES, Conv, MatMul, Normalise, Reduce, Softmax


@dataclass(frozen=True)
class Source:
    """The C of a region, and the constants that it reads."""

    prologue: str
    """What every function may use: vectors, elementary functions, threads."""
    helpers: Mapping[str, str]
    """Micro-kernels and the like by name; later ones may call earlier ones."""
    functions: Mapping[str, str]
    """The work of kernels, by name."""
    entry: str
    """The order of their calls, and what the caller sees."""
    weights: np.ndarray
    """Bytes; every tensor in them starts at a multiple of 64."""
    arena_bytes: int
    thread_scratch_bytes: int
    """Scratch memory of each thread."""
    shared_scratch_bytes: int
    plan: FusionPlan
    meetings: int
    """How often threads wait for each other in a run."""

    @property
    def text(self) -> str:
        """All of it."""
        return "\n\n".join([self.prologue, *self.helpers.values(), *self.functions.values(), self.entry])

    @property
    def objects(self) -> dict[str, str]:
        """Each function as a text of its own that exports it, by symbol; the same function has the same text in any
        library."""
        return {self.symbol(name): self._object(name) for name in self.functions}

    @property
    def main(self) -> str:
        """The rest, which calls the functions of the objects."""
        declared = [f"{_head(text).replace('static ', '', 1)};" for text in self.functions.values()]
        renamed = [f"#define {name} {self.symbol(name)}" for name in self.functions]
        return "\n\n".join([self.prologue, "\n".join([*renamed, *declared]), self.entry])

    def symbol(self, name: str) -> str:
        """What a function is called by the linker: a hash of what it does."""
        return f"f_{hashlib.sha256(self._anonymous(name).encode()).hexdigest()[:24]}"

    def _anonymous(self, name: str) -> str:
        """A function with its helpers, without its name."""
        own = self.functions[name].replace(f"void {name}(", "void FUNCTION(", 1)
        needed: list[str] = []
        below = own
        for helper, text in reversed(list(self.helpers.items())):
            if helper in below:
                needed.insert(0, text)
                below += text
        return "\n\n".join([self.prologue, *needed, own.replace("static ", "", 1)])

    def _object(self, name: str) -> str:
        return self._anonymous(name).replace("void FUNCTION(", f"void {self.symbol(name)}(")


def _head(function: str) -> str:
    """The first line of a function behind its comment, without the brace."""
    line = next(line for line in function.splitlines() if line.startswith("static "))
    return line.removesuffix("{").strip()


def generate(
    plan: FusionPlan,
    target: CpuTarget,
    arithmetic: Arithmetic = FLOAT32,
    choices: Mapping[int, KernelChoice] = MappingProxyType({}),
    *,
    timed: bool = False,
    packed: dict[object, np.ndarray] | None = None,
) -> Source:
    """The library of a plan. `choices` say how kernels, by number, are computed
    if not as usual. A `timed` library adds up what each kernel takes, and threads meet behind every one. `packed` takes what
    was made of constants; libraries of the same plan, target and arithmetic may share it."""
    weights = Weights(made={} if packed is None else packed)
    helpers: dict[str, str] = {}
    functions = _FunctionTable(plan, target.threads)
    calls: list[str] = []
    own = shared = apart = 0
    hazards = _HazardTracker(plan)
    strands: list[str] = []
    for step, section in enumerate(plan.sections):
        rows = () if timed else plan.strands.get(step, ())
        who = replace(target, threads=1) if rows else target
        made = {
            number: _phases(plan.kernels[number], plan, weights, who, arithmetic, choices.get(number, DEFAULT))
            for number in section
        }
        phases = [phase for each in made.values() for phase in each]
        for phase in phases:
            helpers.update(phase.helpers)
        own = max(own, *(phase.thread_scratch for phase in phases))
        needed = {number: max(phase.shared_scratch for phase in made[number]) for number in section}
        if rows:
            apart_scratch = _side_by_side({i: max(needed[number] for number in row) for i, row in enumerate(rows)})
            memory = {number: apart_scratch[i] for i, row in enumerate(rows) for number in row}
            if any(hazards.conflicts(number, memory[number]) for number in section) or apart == RING:
                calls.append(_MEET)
                hazards.forget()
                apart = 0
            apart += 1
            cases = []
            for i, row in enumerate(rows):
                lines = []
                for number in row:
                    hazards.add(number, memory[number])
                    lines += [
                        functions.call(plan.kernels[number], phase, memory[number].start, alone=True)
                        for phase in made[number]
                    ]
                strands.append(_strand(f"strand_{step}_{i}", lines))
                cases.append(f"case {i}: strand_{step}_{i}(io, arena, weights, own, shared, at); break;")
            calls.append(f"for (long row; (row = take(at, {len(rows)})) >= 0;) switch (row) {{ {' '.join(cases)} }}")
            shared = max(shared, *(each.stop for each in memory.values()))
            continue
        scratch = _side_by_side(needed)
        steps = [(part, number) for number in section for part in range(len(made[number]))]
        for part, number in sorted(steps, key=lambda step: step[0]):
            kernel, phase = plan.kernels[number], made[number][part]
            if target.threads > 1 and (apart == RING or hazards.conflicts(number, scratch[number])):
                calls.append(_MEET)
                hazards.forget()
                apart = 0
            apart += 1
            hazards.add(number, scratch[number])
            call = functions.call(kernel, phase, scratch[number].start)
            calls.append((f"TIMED({number}, {call})" if timed else call) + f"  /* kernel_{number} */")
            shared = max(shared, scratch[number].stop)
    prologue = "\n\n".join(
        [
            "#define _GNU_SOURCE",
            *arithmetic.operand(target.isa).preamble(target.isa),
            HEAD.strip().replace("@LANES@", str(target.lanes)),
            MATHS.strip(),
            *(
                [HELPERS.strip()]
                if any(PREFIX in each for each in (*helpers.values(), *functions.texts.values()))
                else []
            ),
            THREADS.strip(),
        ]
    )
    entry = "\n\n".join(
        [
            *([_TIMED.strip().replace("@KERNELS@", str(max(1, len(plan.kernels))))] if timed else []),
            *strands,
            "\n".join(
                [
                    "static void region(char **io, char *arena, const char *weights, char *own, char *shared,"
                    " struct seat *at) {",
                    *indented(calls),
                    "}",
                ]
            ),
            _ENTRY.strip().replace("@THREADS@", str(target.threads)),
        ]
    )
    block = np.zeros(max(weights.size, 64), np.uint8)
    for offset, array in weights.arrays:
        assert isinstance(array, np.ndarray)
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        block[offset : offset + raw.size] = raw
    return Source(
        prologue, helpers, functions.texts, entry, block, plan.arena_bytes, own, shared, plan, calls.count(_MEET)
    )


def kernel_texts(
    plan: FusionPlan, target: CpuTarget, arithmetic: Arithmetic, number: int, choice: KernelChoice = DEFAULT
) -> tuple[str, ...]:
    """The functions that one kernel becomes, without its memory and its constants: equal texts do equal work."""
    functions, weights = _FunctionTable(plan, target.threads), Weights(dry=True)
    kernel = plan.kernels[number]
    phases = _phases(kernel, plan, weights, target, arithmetic, choice)
    return tuple("\n".join(functions.content(kernel, phase)) for phase in phases)


def _strand(name: str, calls: list[str]) -> str:
    """A function that one thread runs."""
    head = f"static __attribute__((noinline)) void {name}("
    head += "char **io, char *arena, const char *weights, char *own, char *shared, struct seat *at) {"
    return "\n".join([head, *indented(calls), "}"])


def _side_by_side(bytes_: Mapping[int, int]) -> dict[int, range]:
    """The scratch memory that all threads share, for kernels that run beside each other."""
    found, start = {}, 0
    for number, size in bytes_.items():
        found[number] = range(start, start + size)
        start += -(-size // 64) * 64
    return found


class _HazardTracker:
    """What the kernels since threads last met touch: a thread may run ahead of the others into a kernel that touches nothing
    of it. Parts of one concatenation do not overlap. Parts of one tensor are told apart in waves, whose order rests on that."""

    def __init__(self, plan: FusionPlan) -> None:
        self._plan = plan
        self._written: set[_Touched] = set()
        self._read: set[_Touched] = set()
        self._scratch: list[range] = []
        self._begun: set[int] = set()

    def conflicts(self, number: int, scratch: range) -> bool:
        """Of a kernel by number; it conflicts with an earlier phase of its own."""
        if number in self._begun or any(_overlap(scratch, other) for other in self._scratch):
            return True
        targets, reads = self._touched(number)
        if any(self._overlap(a, b) for a in reads for b in self._written):
            return True
        return any(self._overlap(a, b) for a in targets for b in self._read) or any(
            a[0] != b[0] and self._overlap(a, b) for a in targets for b in self._written
        )

    def add(self, number: int, scratch: range) -> None:
        targets, reads = self._touched(number)
        self._written |= targets
        self._read |= reads
        self._begun.add(number)
        self._scratch.append(scratch)

    def forget(self) -> None:
        self._written.clear()
        self._read.clear()
        self._begun.clear()
        self._scratch.clear()

    def _touched(self, number: int) -> tuple[set[_Touched], set[_Touched]]:
        kernel, apart = self._plan.kernels[number], self._plan.waves is not None

        def told(buffers: Iterable[Buffer]) -> set[_Touched]:
            return {(buffer.storage, range(*buffer.extent) if apart else None) for buffer in buffers}

        return told(kernel.targets), told(kernel_reads(kernel, self._plan))

    def _overlap(self, one: _Touched, other: _Touched) -> bool:
        (a, first), (b, second) = one, other
        if a == b:
            return first is None or second is None or _overlap(first, second)
        if a[0] != "arena" or b[0] != "arena":
            return False
        return _overlap(range(*self._plan.arena_span(a[1])), range(*self._plan.arena_span(b[1])))


_Touched: TypeAlias = tuple[tuple[str, int], range | None]
"""A storage, and which of its elements; all where that is None."""


def _overlap(one: range, other: range) -> bool:
    return max(one.start, other.start) < min(one.stop, other.stop)


def _phases(
    kernel: FusedKernel,
    plan: FusionPlan,
    weights: Weights,
    target: CpuTarget,
    arithmetic: Arithmetic,
    choice: KernelChoice,
) -> list[Phase]:
    if choice.pieces is not None:
        usual = _phases(kernel, plan, weights, target, arithmetic, replace(choice, pieces=None))
        return [replace(phase, share=replace(phase.share, most=choice.pieces)) for phase in usual]
    operand, config = arithmetic.operand(target.isa), choice.gemm
    match kernel.root:
        case MatMul() if kernel.fused_producer is not None:
            return [attention.attention(kernel, plan, weights, target, operand)]
        case Conv() if kernel.fused_producer is not None:
            return [separable_conv.separable(kernel, plan, weights, target, operand, config)]
        case Conv() if (
            transform := winograd_transform.choose(kernel.root, plan, target, arithmetic, choice.tile)
        ) is not None:
            return winograd.winograd(kernel, plan, weights, target, transform, operand, config.mc_bytes)
        case Conv() if (
            phases := grouped_conv.grouped(kernel, plan, weights, target.isa, target.caches.l1_bytes)
        ) is not None:
            return phases
        case Conv() | MatMul():
            return gemm.contraction(kernel, plan, weights, target, operand, config)
        case Normalise() if not kernel.root.in_rows:
            return [group_norm.group_norm(kernel, plan, weights)]
        case Softmax() | Normalise():
            return [rows.rows(kernel, plan, weights)]
        case Reduce():
            return [reduction.reduction(kernel, plan, weights)]
        case _:
            return [elementwise.elementwise(kernel, plan, weights)]


class _FunctionTable:
    """The functions of a library. Kernels that do the same with other memory share one: networks repeat their blocks, and
    compiling takes as long as the text is."""

    def __init__(self, plan: FusionPlan, threads: int) -> None:
        self.texts: dict[str, str] = {}
        """By name."""
        self._plan = plan
        self._threads = threads
        self._names: dict[tuple[str, str], str] = {}

    def call(self, kernel: FusedKernel, phase: Phase, shared: int = 0, *, alone: bool = False) -> str:
        """C that carries out a phase; its function is written if there is none like it yet. Its shared scratch memory starts at
        `shared` bytes. A thread does all of it `alone`, or they share it."""
        key = parameters, lines = self.content(kernel, phase, alone=alone)
        if key not in self._names:
            name = self._names[key] = f"{kernel.kind}_{len(self._names)}"
            head = f"static __attribute__((noinline)) void {name}({parameters}, struct seat *at) {{"
            self.texts[name] = "\n".join([f"/* {_described(kernel)} */", head, lines, "}"])
        arguments = ", ".join([argument for _, argument in self._arguments(kernel, phase)])
        return f"{self._names[key]}({arguments}, own, shared{f' + {shared}' if shared else ''}, at);"

    def content(self, kernel: FusedKernel, phase: Phase, *, alone: bool = False) -> tuple[str, str]:
        """Parameters and lines of the function of a phase."""
        declared = [f"{kind}m{number}" for number, (kind, _) in enumerate(self._arguments(kernel, phase))]
        parameters = ", ".join([*declared, "char *own", "char *shared"])
        return parameters, "\n".join(indented(self._shared_out(phase, alone=alone)))

    def _arguments(self, kernel: FusedKernel, phase: Phase) -> list[tuple[str, str]]:
        written = {tensor_operand(buffer) for buffer in kernel.targets}
        return [self._argument(operand, operand in written) for operand in phase.operands]

    def _shared_out(self, phase: Phase, *, alone: bool) -> list[str]:
        """The loop of a phase, piece by piece."""
        count = phase.share.count
        if self._threads == 1 or alone:
            return [f"const long begin = 0, end = {count}; (void)begin; (void)end;", *phase.lines]
        pieces = phase.share.pieces(self._threads)
        return [
            f"for (long piece; (piece = take(at, {pieces})) >= 0;) {{",
            f"  const long begin = {count}L * piece / {pieces}, end = {count}L * (piece + 1) / {pieces};",
            "  (void)begin; (void)end;",
            *indented(phase.lines),
            "}",
        ]

    def _argument(self, operand: MemoryOperand, written: bool) -> tuple[str, str]:
        """The C type of a piece of memory, and where it is."""
        if isinstance(operand, ConstantOperand):
            return "const char *", f"weights + {operand.offset}"
        kind = f"{'' if written else 'const '}{STORED_TYPES[operand.dtype]} *"
        storage, number = operand.storage
        start = {
            "input": f"io[{number}]",
            "output": f"io[{len(self._plan.inputs) + number}]",
            "arena": f"(arena + {self._plan.arena_offsets.get(number, 0)})",
        }[storage]
        return kind, f"({kind}){start} + {operand.offset}"


def _described(kernel: FusedKernel) -> str:
    sizes = "x".join(str(extent) for extent in kernel.result.shape) or "scalar"
    return f"{kernel.kind} to {sizes}"


_MEET = "meet(at);"
HEAD = r"""
#include <stdint.h>
#include <stddef.h>
#define LANES @LANES@
typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
#if defined(__clang__) || __GNUC__ >= 12
#define nat_shuffle(v, ...) __builtin_shufflevector(v, v, __VA_ARGS__)
#else
typedef int32_t nat_lanes __attribute__((vector_size(4 * LANES)));
#define nat_shuffle(v, ...) __builtin_shuffle(v, (nat_lanes){ __VA_ARGS__ })
#endif
static inline vec load(const float *p) { return *(const vec *)p; }
static inline void store(float *p, vec v) { *(vec *)p = v; }
static inline float nat_widen(uint16_t h) { union { uint32_t i; float f; } u = { .i = (uint32_t)h << 16 }; return u.f; }
static inline uint16_t nat_narrow(float x) {  /* to the nearest, to the even one between two; a NaN stays one */
  union { float f; uint32_t i; } u = { .f = x };
  const uint32_t nearest = (u.i + 0x7fff + ((u.i >> 16) & 1)) >> 16, quiet = (u.i >> 16) | 0x40;
  return x != x ? quiet : nearest;
}
static inline int64_t nat_wrap(int64_t i, int64_t n) { i = i < 0 ? i + n : i; return i < 0 ? 0 : i >= n ? n - 1 : i; }
"""
"""Vectors, and elements of bfloat16."""

_TIMED = r"""
#include <time.h>
static double spent[@KERNELS@];
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e3 + t.tv_nsec * 1e-6; }
#define TIMED(n, call) { const double start = now(); call; if (at->team) meet(at); if (at->tid == 0) spent[n] += now() - start; }
/* Milliseconds that each kernel has taken so far, all runs together. */
double *region_spent(void) { return spent; }
"""

_ENTRY = r"""
enum { THREADS = @THREADS@ };

static void work(const uintptr_t *with, struct seat *at) {
  char *scratch = (char *)with[3];
  const size_t own = with[4];
  region((char **)with[0], (char *)with[1], (const char *)with[2], scratch + at->tid * own, scratch + THREADS * own, at);
}

/* A team of at most so many threads. */
void *region_team(long most) { return team_make(most); }
void region_free(void *team) { team_free(team); }
/* Runs the region once; `scratch` holds `own` bytes for each thread, then what they share. Helpers spin for the next run where
   they may linger. */
void region_run(void *team, char **io, char *arena, const char *weights, char *scratch, size_t own, long lingers) {
  struct run run = { work, { (uintptr_t)io, (uintptr_t)arena, (uintptr_t)weights, (uintptr_t)scratch, own }, THREADS,
                     lingers, floats_mode() };
  struct seat alone = { 0 };
  if (THREADS == 1) work(run.with, &alone);
  else team_run(team, &run);
}
"""
