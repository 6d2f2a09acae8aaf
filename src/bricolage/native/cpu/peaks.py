"""What the processor can do at best, measured with the engine's own inner loop: the roofline that kernels are held against."""

from __future__ import annotations

import ctypes
from dataclasses import replace

from bricolage.base import scratch
from bricolage.device.device import Peaks
from bricolage.native.cpu import toolchain
from bricolage.native.cpu.arithmetic import Arithmetic
from bricolage.native.cpu.c_source import HEAD
from bricolage.native.cpu.isa import Isa
from bricolage.native.cpu.panels import MicroTile, ProductOperand
from bricolage.native.cpu.threads import THREADS

_DEPTH_BYTES = 512
"""Of one part of a row: so few that both operands stay in the first-level cache."""
_PRODUCTS = 2000
_BYTES = 256 << 20
_LEAST_READ = 64 << 20
"""Bytes of a measurement: less takes no longer than starting the threads."""

_MEASURE = r"""
#include <string.h>
#include <time.h>
#ifdef __linux__
#include <sys/mman.h>
#endif
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }

static void multiply(const uintptr_t *with, struct seat *at) {
  (void)with;
  ELEMENT a[ROWS * DEPTH] __attribute__((aligned(64))), b[DEPTH * WIDE] __attribute__((aligned(64)));
  SUMS tile[ROWS * WIDE] __attribute__((aligned(64)));
  memset(a, 0, sizeof a);
  memset(b, 0, sizeof b);
  while (take(at, at->threads) >= 0) { @MULTIPLY@ }
}

static void stream(const uintptr_t *with, struct seat *seat) {
  const float *data = (const float *)with[0];
  const long count = with[1], rounds = with[2], pieces = seat->threads;
  vec a = {0}, b = {0}, c = {0}, d = {0};  /* an array would be stored and loaded for every sum */
  for (long piece; (piece = take(seat, pieces)) >= 0;) {
    const long begin = count * piece / pieces, end = count * (piece + 1) / pieces;
    for (long round = 0; round < rounds; round++) {
      for (const float *at = data + begin; at + 4 * LANES <= data + end; at += 4 * LANES) {
        a += load(at);
        b += load(at + LANES);
        c += load(at + 2 * LANES);
        d += load(at + 3 * LANES);
      }
      __asm__ volatile("" ::: "memory");
    }
  }
  volatile float kept = (a + b + c + d)[0];
  (void)kept;
}

/* Seconds of the fastest of `runs` runs or more, until some time is over: a helper that wakes up late leaves its share of the first
   ones to the caller, and half of the processor looks like all of it. */
static double best(struct team *team, const struct run *run, long runs) {
  double found = 1e9;
  const double least = now() + 0.05;
  for (long n = 0; n < runs || now() < least; n++) {
    const double start = now();
    team_run(team, run);
    const double took = now() - start;
    found = took < found ? took : found;
  }
  return found;
}

/* Seconds of PRODUCTS tiles on each thread, and of reading `bytes` bytes `rounds` times on all of them together; 0 without
   memory. */
void peaks(long threads, long bytes, long rounds, double *found) {
  struct team *team = team_make(threads);
  char *data = NULL;
  found[0] = found[1] = 0;
  if (team && !posix_memalign((void **)&data, 2 << 20, bytes)) {
#ifdef __linux__
    madvise(data, bytes, MADV_HUGEPAGE);  /* as numpy asks for its large arrays, in which weights lie */
#endif
    memset(data, 1, bytes);  /* of zeros the compiler makes calloc, whose pages are all one page, in a cache */
    const struct run products = { multiply, {0}, threads, 1, floats_mode() };
    const struct run reads = { stream, { (uintptr_t)data, bytes / 4, rounds }, threads, 1, floats_mode() };
    found[0] = best(team, &products, 15);
    found[1] = best(team, &reads, 7);
  }
  free(data);
  team_free(team);
}
"""


_MULTIPLY = (
    'for (long n = 0; n < PRODUCTS; n++) { MICRO(STEPS, a, b, tile); __asm__ volatile("" :: "r"(tile) : "memory"); }'
)


def measure(
    isa: Isa, arithmetic: Arithmetic, threads: int, operand: ProductOperand | None = None, stream: int = _BYTES
) -> Peaks | None:
    """Peak of `threads` threads on products of the fastest operands of an arithmetic, or of one that is given, and their bandwidth
    from memory; None where there is not enough memory to tell. A `stream` of fewer bytes, which all threads share, gives the
    bandwidth from the cache that holds it.

    Raises:
        Refused: the C does not compile.
    """
    operand, vectors = operand or arithmetic.operands(isa)[-1], 2
    operand = replace(operand, ordered=False)  # the roof is that of the steps that come first
    products = _DEPTH_BYTES // operand.bytes
    rows, steps, depth = operand.rows(isa), operand.steps(products), operand.row(products)
    name, micro = operand.micro_kernel(
        MicroTile(rows, vectors, depth, isa.lanes, part=operand.depth(products) // operand.splits)
    )
    multiply = "\n  ".join(operand.with_tile_config(rows, [_MULTIPLY]))
    defined = {
        "ELEMENT": operand.element,
        "SUMS": operand.sums,
        "ROWS": rows,
        "DEPTH": depth,
        "WIDE": vectors * isa.lanes,
        "PRODUCTS": _PRODUCTS,
        "STEPS": steps,
        "MICRO": name,
    }
    text = "\n".join(
        [
            "#define _GNU_SOURCE",
            *operand.preamble(isa),
            HEAD.replace("@LANES@", str(isa.lanes)),
            THREADS,
            micro,
            *(f"#define {key} {value}" for key, value in defined.items()),
            _MEASURE.replace("@MULTIPLY@", multiply),
        ]
    )
    with scratch.using(scratch.temporary()) as folder:
        library = folder / "peaks.so"
        toolchain.compile_library(
            text, arithmetic.flags(isa, of_bytes=operand.k_pack == 4), library, "bricolage native"
        )
        loaded = ctypes.CDLL(str(library))
        loaded.peaks.restype = None
        loaded.peaks.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_long, ctypes.POINTER(ctypes.c_double)]
        found = (ctypes.c_double * 2)()
        rounds = -(-_LEAST_READ // stream)
        loaded.peaks(threads, stream, rounds, found)
    if not all(found):
        return None
    flops = 2 * threads * _PRODUCTS * rows * vectors * isa.lanes * products
    return Peaks(gflops=flops / found[0] / 1e9, gbytes=stream * rounds / found[1] / 1e9)
