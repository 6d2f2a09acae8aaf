"""One C library for a region: the fused kernels, one after another on persistent threads, behind three functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from bricolage.native.c import define, read_header
from bricolage.native.cpu.arithmetic import FLOAT32, Arithmetic
from bricolage.native.cpu.c_source import HEAD, CSource
from bricolage.native.cpu.emit import indent_lines
from bricolage.native.cpu.hazards import HazardTracker
from bricolage.native.cpu.kernel_choice import DEFAULT, KernelChoice
from bricolage.native.cpu.math_c import MATHS
from bricolage.native.cpu.panels import ProductOperand
from bricolage.native.cpu.phase import ConstantBlock, ConstantOperand, MemoryOperand, Phase, tensor_operand
from bricolage.native.cpu.sharing import ParallelRange
from bricolage.native.cpu.sliced import build_paired_phase, build_sliced_phase
from bricolage.native.cpu.target import CpuTarget
from bricolage.native.cpu.threads import RING, THREADS
from bricolage.native.cpu.tile_plan import plan_tile
from bricolage.native.cpu.wide import BYTE_RUNS, HELPERS, PREFIX, RUNS_SUFFIX
from bricolage.native.fuse.kernel_plan import FusionPlan, PlannedKernel
from bricolage.native.ir.tensors import STORED_TYPES
from bricolage.native.select.algorithm import KernelRequest
from bricolage.native.select.algorithm_table import generate_phases


def generate(
    plan: FusionPlan,
    target: CpuTarget,
    arithmetic: Arithmetic = FLOAT32,
    choices: Mapping[int, KernelChoice] = MappingProxyType({}),
    *,
    timed: bool = False,
    packed: dict[object, np.ndarray] | None = None,
) -> CSource:
    """The library of a plan. `choices` say how kernels, by number, are computed
    if not as usual. A `timed` library adds up what each kernel takes, and threads meet behind every one. `packed` takes what
    was made of constants; libraries of the same plan, target and arithmetic may share it."""
    weights = ConstantBlock(made={} if packed is None else packed)
    order = _Order(plan, target, arithmetic, choices, weights, timed)
    for step, section in enumerate(plan.sections):
        strands, parts = plan.strands.get(step), plan.slices.get(step)
        if strands is None and parts is None:
            order.side_by_side(section)
        elif timed:  # it tells what each kernel takes: threads share even those that one would run
            for number in section:
                order.side_by_side((number,))
        elif strands is not None:
            order.in_strands(step, strands)
        else:
            first, second = section
            order.in_slices(first, second, plan.slices[step])
    given = dict.fromkeys(arithmetic.operand_of(target.isa, kernel.root) for kernel in plan.kernels if kernel.of_bytes)
    return CSource(
        _prologue(order, target, (*arithmetic.operands(target.isa), *given)),
        order.helpers,
        functions=order.functions.texts,
        entry=_entry(order, len(plan.kernels) if timed else None),
        weights=_constants(weights),
        program=_program(order, plan, target),
        arena_bytes=plan.arena_bytes,
        thread_scratch_bytes=order.thread_scratch,
        shared_scratch_bytes=order.shared_scratch,
        plan=plan,
        meetings=order.calls.count(_MEET),
    )


def _prologue(order: _Order, target: CpuTarget, operands: Sequence[ProductOperand]) -> str:
    """What functions need that comes before them."""
    texts = (*order.helpers.values(), *order.functions.texts.values())
    return "\n\n".join(
        [
            define(_GNU_SOURCE="", LANES=target.lanes),
            *dict.fromkeys(text for operand in operands for text in operand.preamble(target.isa)),
            HEAD,
            MATHS,
            *([HELPERS] if any(PREFIX in each for each in texts) else []),
            *([BYTE_RUNS] if any(RUNS_SUFFIX in each for each in texts) else []),
            THREADS,
        ]
    )


def _entry(order: _Order, timed: int | None) -> str:
    """What calls the functions in their order, and takes the times of a number of kernels, if any."""
    return "\n\n".join(
        [
            *([] if timed is None else [define(KERNELS=max(1, timed)), _TIMED]),
            *order.strands,
            "\n".join(
                [
                    "static void region(end_pointer *io, char *arena, const char *weights, char *own, char *shared,"
                    " struct seat *at) {",
                    *indent_lines(order.calls),
                    "}",
                ]
            ),
        ]
    )


def _program(order: _Order, plan: FusionPlan, target: CpuTarget) -> str:
    """What a library knows of the region; `PROGRAM` is its name, which the library gives."""
    sizes = define(
        THREADS=target.threads,
        ARENA_BYTES=f"{plan.arena_bytes}ul",
        OWN_BYTES=f"{-(-order.thread_scratch // 64) * 64}ul",
        SHARED_BYTES=f"{order.shared_scratch}ul",
    )
    return "\n\n".join([read_header("program"), sizes, _ENTRY])


def _constants(weights: ConstantBlock) -> np.ndarray:
    """One block with all constants at their offsets."""
    block = np.zeros(max(weights.size, 64), np.uint8)
    for offset, array in weights.arrays:
        assert isinstance(array, np.ndarray)
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        block[offset : offset + raw.size] = raw
    return block


@dataclass(frozen=True)
class SharedLoop:
    """A loop of a kernel, by number, and how threads share it."""

    kernel: int
    share: ParallelRange


def loop_groups(
    plans: Sequence[FusionPlan], target: CpuTarget, arithmetic: Arithmetic, choices: Mapping[int, KernelChoice]
) -> list[tuple[tuple[SharedLoop, ...], ...]]:
    """For each of several orders of the same kernels, without strands and slices: its loops by the meetings of threads between
    them. Nothing is made of constants."""
    phases: dict[int, list[Phase]] = {}
    groups = []
    for plan in plans:
        order = _Order(plan, target, arithmetic, choices, ConstantBlock(dry=True), timed=False)
        order.phases = phases
        for section in plan.sections:
            order.side_by_side(section)
        groups.append(tuple(tuple(group) for group in order.groups if group))
    return groups


class _Order:
    """The calls of a region's functions in their order, with the meetings of threads."""

    def __init__(
        self,
        plan: FusionPlan,
        target: CpuTarget,
        arithmetic: Arithmetic,
        choices: Mapping[int, KernelChoice],
        weights: ConstantBlock,
        timed: bool,
    ) -> None:
        self.calls: list[str] = []
        self.strands: list[str] = []
        """Functions of strands."""
        self.helpers: dict[str, str] = {}
        self.functions = _FunctionTable(plan, target.threads)
        self.thread_scratch = self.shared_scratch = 0
        """Bytes."""
        self._plan, self._target, self._arithmetic = plan, target, arithmetic
        self._choices, self._weights, self._timed = choices, weights, timed
        self._hazards = HazardTracker(plan)
        self._apart = 0
        """Loops since threads last met."""
        self.groups: list[list[SharedLoop]] = [[]]
        """Loops that threads share, between meetings."""
        self.phases: dict[int, list[Phase]] = {}
        """Of kernels that threads share, by number."""

    def side_by_side(self, section: Sequence[int]) -> None:
        """Kernels whose loops threads share, all first phases before the second ones."""
        kernel_phases = {number: self._shared_phases(number) for number in section}
        scratch = self._placed(
            {number: max(phase.shared_scratch for phase in kernel_phases[number]) for number in section}
        )
        steps = [(part, number) for number in section for part in range(len(kernel_phases[number]))]
        for part, number in sorted(steps, key=lambda step: step[0]):
            self._begin({number: scratch[number]})
            self.groups[-1].append(SharedLoop(number, kernel_phases[number][part].share))
            call = self.functions.call(self._plan.kernels[number], kernel_phases[number][part], scratch[number].start)
            self.calls.append((f"TIMED({number}, {call})" if self._timed else call) + f"  /* kernel_{number} */")

    def in_strands(self, step: int, rows: Sequence[Sequence[int]]) -> None:
        """Rows of kernels, each of which a thread runs alone."""
        alone = replace(self._target, threads=1)
        kernel_phases = {number: self._phases(number, alone) for row in rows for number in row}
        scratch = self._placed(
            {
                i: max(phase.shared_scratch for number in row for phase in kernel_phases[number])
                for i, row in enumerate(rows)
            }
        )
        self._begin({number: scratch[i] for i, row in enumerate(rows) for number in row})
        cases = []
        for i, row in enumerate(rows):
            name, memory = (
                f"strand_{step}_{i}",
                "end_pointer *io, char *arena, const char *weights, char *own, char *shared",
            )
            calls = [
                self.functions.call(self._plan.kernels[number], phase, scratch[i].start, alone=True)
                for number in row
                for phase in kernel_phases[number]
            ]
            head = f"static __attribute__((noinline)) void {name}({memory}, struct seat *at) {{"
            self.strands.append("\n".join([head, *indent_lines(calls), "}"]))
            cases.append(f"case {i}: {name}(io, arena, weights, own, shared, at); break;")
        self.calls += [
            f"for (long row; (row = take(at, {len(rows)})) >= 0;) switch (row) {{",
            *indent_lines(cases),
            "}",
        ]

    def in_slices(self, first: int, second: int, parts: int) -> None:
        """A product and what reads it, of which each thread has slices."""
        product, behind = kernels = self._plan.kernels[first], self._plan.kernels[second]
        plan, target, choice = self._plan, self._target, self._choices.get(first, DEFAULT)
        operands = [self._arithmetic.operand_of(target.isa, kernel.root) for kernel in kernels]
        if behind.root is None:
            phase = build_sliced_phase(kernels, parts, plan, self._weights, target, operands[0], choice)
        else:
            choices = choice, self._choices.get(second, DEFAULT)
            gate, up = (
                plan_tile(kernel, plan, target, operand, each.gemm)
                for kernel, operand, each in zip(kernels, operands, choices, strict=True)
            )
            phase = build_paired_phase((gate, up), self._weights, choices[1].pieces)
        self._known(phase)
        self._begin({first: range(0), second: range(0)})
        both = replace(behind, root=product.root, secondary_outputs=(*product.stores, *behind.secondary_outputs))
        self.calls.append(self.functions.call(both, phase) + f"  /* kernel_{first} and kernel_{second} */")

    def _begin(self, scratch: Mapping[int, range]) -> None:
        """Before a loop of these kernels: threads meet where they must."""
        if self._target.threads == 1:
            return
        if self._apart == RING or any(
            self._hazards.conflicts(number, scratch_range) for number, scratch_range in scratch.items()
        ):
            self.calls.append(_MEET)
            self.groups.append([])
            self._hazards.forget()
            self._apart = 0
        self._apart += 1
        for number, scratch_range in scratch.items():
            self._hazards.add(number, scratch_range)

    def _shared_phases(self, number: int) -> list[Phase]:
        if number not in self.phases:
            self.phases[number] = self._phases(number, self._target)
        return self.phases[number]

    def _phases(self, number: int, target: CpuTarget) -> list[Phase]:
        choice = self._choices.get(number, DEFAULT)
        request = KernelRequest(self._plan.kernels[number], self._plan, target, self._arithmetic, choice)
        phases = generate_phases(request, self._weights)
        for phase in phases:
            self._known(phase)
        return phases

    def _known(self, phase: Phase) -> None:
        self.helpers.update(phase.helpers)
        self.thread_scratch = max(self.thread_scratch, phase.thread_scratch)

    def _placed(self, bytes_: Mapping[int, int]) -> dict[int, range]:
        """The scratch memory that threads share, for what runs side by side."""
        ranges, start = {}, 0
        for number, size in bytes_.items():
            ranges[number] = range(start, start + size)
            start += -(-size // 64) * 64
        self.shared_scratch = max(self.shared_scratch, *(each.stop for each in ranges.values()))
        return ranges


def kernel_texts(request: KernelRequest) -> tuple[str, ...]:
    """The functions that one kernel becomes, without its memory and its constants: equal texts do equal work."""
    functions = _FunctionTable(request.plan, request.target.threads)
    phases = generate_phases(request, ConstantBlock(dry=True))
    return tuple("\n".join(functions.content(request.kernel, phase)) for phase in phases)


def kernel_shares(request: KernelRequest) -> tuple[ParallelRange, ...]:
    """How threads share the loops of a kernel, phase by phase."""
    return tuple(phase.share for phase in generate_phases(request, ConstantBlock(dry=True)))


class _FunctionTable:
    """The functions of a library. Kernels that do the same with other memory share one: networks repeat their blocks, and
    compiling takes as long as the text is."""

    def __init__(self, plan: FusionPlan, threads: int) -> None:
        self.texts: dict[str, str] = {}
        """By name."""
        self._plan = plan
        self._threads = threads
        self._names: dict[tuple[str, str], str] = {}

    def call(self, kernel: PlannedKernel, phase: Phase, shared: int = 0, *, alone: bool = False) -> str:
        """C that carries out a phase; its function is written if there is none like it yet. Its shared scratch memory starts at
        `shared` bytes. A thread does all of it `alone`, or they share it."""
        key = parameters, lines = self.content(kernel, phase, alone=alone)
        if key not in self._names:
            name = self._names[key] = f"{kernel.kind}_{len(self._names)}"
            head = f"static __attribute__((noinline)) void {name}({parameters}, struct seat *at) {{"
            self.texts[name] = "\n".join([f"/* {_describe_kernel(kernel)} */", head, lines, "}"])
        arguments = ", ".join([argument for _, argument in self._arguments(kernel, phase)])
        return f"{self._names[key]}({arguments}, own, shared{f' + {shared}' if shared else ''}, at);"

    def content(self, kernel: PlannedKernel, phase: Phase, *, alone: bool = False) -> tuple[str, str]:
        """Parameters and lines of the function of a phase."""
        declared = [f"{kind}m{number}" for number, (kind, _) in enumerate(self._arguments(kernel, phase))]
        parameters = ", ".join([*declared, "char *own", "char *shared"])
        return parameters, "\n".join(indent_lines(self._shared_out(phase, alone=alone)))

    def _arguments(self, kernel: PlannedKernel, phase: Phase) -> list[tuple[str, str]]:
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
            *indent_lines(phase.lines),
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


def _describe_kernel(kernel: PlannedKernel) -> str:
    sizes = "x".join(str(extent) for extent in kernel.result.shape) or "scalar"
    return f"{kernel.kind} to {sizes}"


_MEET = "meet(at);"
_TIMED = read_header("timed")

_ENTRY = read_header("entry")
