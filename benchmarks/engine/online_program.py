"""A native program as a task graph: its phases, their pieces, what follows what, and a library that runs one piece.

The C is the engine's own (`native.module.generate`). Only what hands out pieces is another: instead of taking them from the
team, a phase gets the number of one, does it, and is done.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bricolage.device.buffers import allocate_aligned
from bricolage.native.cpu import toolchain
from bricolage.native.cpu.arithmetic import FLOAT32
from bricolage.native.cpu.c_source import CSource
from bricolage.native.cpu.isa import Isa
from bricolage.native.cpu.threads import THREADS
from bricolage.native.fuse.kernel_plan import FusionPlan, kernel_reads

DRIVER = Path(__file__).with_name("online_driver.cpp")
_CALL = re.compile(r"^ *(\w+)\((.*)\);  /\* kernel_(\d+) \*/$", re.MULTILINE)
_FUNCTION = re.compile(
    r"^(static __attribute__\(\(noinline\)\) void (\w+)\((?:[^)]*, )?char \*own, char \*shared, struct seat \*at\) \{)$(.*?)^\}$",
    re.MULTILINE | re.DOTALL,
)
_ONE_PIECE = r"""
/* Instead of the team's: the piece whose number the seat holds, and then none. */
static inline long one_piece(struct seat *at) { const long piece = (long)at->mine; at->mine = (uint64_t)-1; return piece; }
#define take(at, pieces) one_piece(at)
"""
_MEMORY = "char **io, char *arena, const char *weights, char *own, char *shared"


class NoTaskflow(Exception):
    """Its headers or a C++ compiler are missing, or do not work together; the message says which."""


@dataclass(frozen=True)
class TaskGraph:
    """Phases of a program in its own order."""

    calls: tuple[str, ...]
    """C that runs a phase, without its end."""
    kernel: tuple[int, ...]
    pieces: tuple[int, ...]
    before: tuple[tuple[int, ...], ...]
    """For each phase those that it follows, without what follows from others."""
    shared: tuple[bool, ...]
    """Whether it uses memory that the phases of a kernel share."""


def apart(plan: FusionPlan) -> None:
    """Gives every stored tensor memory of its own, so that no order is forced by what shares it."""
    offset = 0
    for number, size in plan.arena_sizes.items():
        plan.arena_offsets[number] = offset
        offset += -(-(size + 64) // 64) * 64
    plan.arena_bytes = offset


def task_graph(source: CSource) -> TaskGraph:
    """Read from the generated C; what follows what, from the plan's buffers."""
    _, _, body = source.text.partition("static void region(")
    found = [match.groups() for match in _CALL.finditer(body)]
    functions = {match[1]: match[2] for match in _functions(source.text)}
    kernel = tuple(int(number) for _, _, number in found)
    waits = _kernels_before(source.plan)
    last = {number: phase for phase, number in enumerate(kernel)}
    before: list[tuple[int, ...]] = []
    begun: dict[int, int] = {}
    for phase, number in enumerate(kernel):
        before.append((begun[number],) if number in begun else tuple(last[one] for one in waits[number]))
        begun[number] = phase
    taken = [re.search(r"take\(at, (\d+)\)", functions[name]) for name, _, _ in found]
    return TaskGraph(
        tuple(f"{name}({arguments})" for name, arguments, _ in found),
        kernel,
        tuple(1 if match is None else int(match[1]) for match in taken),
        tuple(before),
        tuple(re.search(r"\bshared\b", functions[name]) is not None for name, _, _ in found),
    )


def _functions(text: str) -> list[tuple[str, str, str]]:
    """Head, name and body of the functions of phases."""
    return [match.groups() for match in _FUNCTION.finditer(text)]  # type: ignore[misc]


def _kernels_before(plan: FusionPlan) -> list[tuple[int, ...]]:
    """For each kernel those whose memory it must wait for: what it reads, what others still read or write where it writes. Parts of
    one concatenation do not overlap. What follows from other waits is left out."""
    writes = [{buffer.storage for buffer in kernel.targets} for kernel in plan.kernels]
    reads = [{buffer.storage for buffer in kernel_reads(kernel, plan)} for kernel in plan.kernels]

    def overlap(one: tuple[str, int], other: tuple[str, int]) -> bool:
        if one == other or one[0] != "arena" or other[0] != "arena":
            return one == other
        (a, b), (c, d) = plan.arena_span(one[1]), plan.arena_span(other[1])
        return a < d and c < b

    def conflict(early: int, late: int) -> bool:
        return (
            any(overlap(a, b) for a in reads[late] for b in writes[early])
            or any(overlap(a, b) for a in writes[late] for b in reads[early])
            or any(a != b and overlap(a, b) for a in writes[late] for b in writes[early])
        )

    reached: list[int] = []
    found = []
    for late in range(len(plan.kernels)):
        known, mine = 0, []
        for early in reversed(range(late)):
            if not known >> early & 1 and conflict(early, late):
                mine.append(early)
                known |= reached[early] | 1 << early
        reached.append(known)
        found.append(tuple(mine))
    return found


def pieces_library(source: CSource, graph: TaskGraph, isa: Isa, folder: Path) -> ctypes.CDLL:
    """A library with `online_piece`."""
    text = source.text.replace(THREADS.strip(), THREADS.strip() + "\n" + _ONE_PIECE, 1)
    lines = [
        *(f"static void phase_{n}({_MEMORY}, struct seat *at) {{ {call}; }}" for n, call in enumerate(graph.calls)),
        f"static void (*const phases[])({_MEMORY}, struct seat *at) = {{",
        *(f"  phase_{n}," for n in range(len(graph.calls))),
        "};",
        f"void online_piece(long phase, long number, {_MEMORY}) {{",
        "  struct seat at = { .mine = (uint64_t)number };",
        "  phases[phase](io, arena, weights, own, shared, &at);",
        "}",
    ]
    toolchain.compile_library(
        text + "\n\n" + "\n".join(lines) + "\n", FLOAT32.flags(isa), folder / "pieces.so", "benchmarks.engine.online"
    )
    return ctypes.CDLL(str(folder / "pieces.so"))


def driver(headers: Path, folder: Path) -> ctypes.CDLL:
    """The executor, compiled with Taskflow.

    Raises:
        NoTaskflow: it is not there, or does not compile.
    """
    if not (headers / "taskflow" / "taskflow.hpp").is_file():
        raise NoTaskflow(f"there is no {headers / 'taskflow' / 'taskflow.hpp'}: give the folder with --taskflow")
    words = ["g++", "-std=c++20", "-O3", "-shared", "-fPIC", "-pthread", "-I", str(headers), str(DRIVER)]
    try:
        subprocess.run(
            [*words, "-o", str(folder / "driver.so")], check=True, capture_output=True, text=True, encoding="utf-8"
        )
    except FileNotFoundError:
        raise NoTaskflow("there is no g++") from None
    except subprocess.CalledProcessError as error:
        raise NoTaskflow(f"the driver does not compile: {error.stderr.strip()[:600]}") from None
    library = ctypes.CDLL(str(folder / "driver.so"))
    library.online_make.restype = ctypes.c_void_p
    library.online_make.argtypes = [ctypes.c_long, ctypes.c_void_p, ctypes.c_long, *[ctypes.c_void_p] * 5]
    library.online_run.restype = None
    library.online_run.argtypes = [*[ctypes.c_void_p] * 5, ctypes.c_size_t, ctypes.c_void_p]
    library.online_free.restype = None
    library.online_free.argtypes = [ctypes.c_void_p]
    return library


class OnlineProgram:
    """A task graph on a work-stealing executor, bound to arrays."""

    def __init__(
        self, library: ctypes.CDLL, run: ctypes.CDLL, graph: TaskGraph, source: CSource, workers: int, *, whole: bool
    ) -> None:
        """With `whole` kernels, each phase is one task; otherwise each piece."""
        self._library, self._pieces = library, run
        shared = -(-source.shared_scratch_bytes // 64) * 64
        blocks = {
            number: index
            for index, number in enumerate(sorted({k for k, s in zip(graph.kernel, graph.shared, strict=True) if s}))
        }
        first = np.cumsum([0, *(len(some) for some in graph.before)])
        before = [one for some in graph.before for one in some]
        tasks = [1] * len(graph.calls) if whole else list(graph.pieces)
        columns = [
            np.array(column, np.int64)
            for column in (
                graph.pieces, tasks, first, before or [0], [shared * blocks.get(number, 0) for number in graph.kernel],
            )
        ]  # fmt: skip
        self._handle = library.online_make(
            workers,
            ctypes.cast(run.online_piece, ctypes.c_void_p),
            len(graph.calls),
            *(column.ctypes.data for column in columns),
        )
        self._own_bytes = -(-source.thread_scratch_bytes // 64) * 64
        self._own = allocate_aligned((self._own_bytes * workers + 64,), np.dtype(np.uint8))
        self._shared = allocate_aligned((shared * len(blocks) + 64,), np.dtype(np.uint8))
        self._arena = allocate_aligned((source.arena_bytes + 64,), np.dtype(np.uint8))
        self._weights = allocate_aligned(source.weights.shape, source.weights.dtype)
        self._weights[...] = source.weights

    def bind(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> Callable[[], None]:
        """A call that reads and writes these arrays."""
        memory = (*inputs, *outputs)
        addresses = (ctypes.c_void_p * max(1, len(memory)))(*(array.ctypes.data for array in memory))
        rest = (self._arena, self._weights, self._own)

        def call() -> None:
            self._library.online_run(
                self._handle, addresses, *(one.ctypes.data for one in rest), self._own_bytes, self._shared.ctypes.data
            )

        call.__dict__["keeps"] = memory
        return call

    def close(self) -> None:
        """Ends the executor's threads."""
        self._library.online_free(self._handle)
