"""What the processor can do at best, measured with the engine's own inner loop: the roofline that kernels are held against."""

from __future__ import annotations

import ctypes
from dataclasses import replace

from bricolage.base import scratch
from bricolage.device.device import Peaks
from bricolage.native.c import define, read_header
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

_MEASURE = read_header("peaks")


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
    operand = operand or arithmetic.operands(isa)[-1]
    vectors = operand.panel_vectors
    operand = replace(operand, ordered=False)  # the roof is that of the steps that come first
    products = _DEPTH_BYTES // operand.bytes
    rows, steps, depth = operand.rows(isa), operand.steps(products), operand.row(products)
    part, sets = operand.depth(products) // operand.splits, operand.sets([rows], vectors)
    name, micro = operand.micro_kernel(MicroTile(rows, vectors, depth, isa.lanes, part=part, sets=sets))
    multiply = "\n  ".join(operand.with_tile_config(rows, [_MULTIPLY]))
    defined = {
        "ELEMENT": operand.element,
        "SUMS": operand.sums,
        "ROWS": rows,
        "PLANES": operand.planes,
        "DEPTH": depth,
        "WIDE": vectors * isa.lanes,
        "PRODUCTS": _PRODUCTS,
        "STEPS": steps,
        "MICRO": name,
        "MULTIPLY": " ".join(multiply.split()),
    }
    text = "\n".join(
        [
            define(_GNU_SOURCE="", LANES=isa.lanes),
            *operand.preamble(isa),
            HEAD,
            THREADS,
            micro,
            define(**defined),
            _MEASURE,
        ]
    )
    with scratch.using(scratch.temporary()) as folder:
        library = folder / "peaks.so"
        toolchain.compile_library(
            text, arithmetic.flags(isa, of_bytes=operand.dtype == "uint8"), library, "bricolage native"
        )
        loaded = ctypes.CDLL(str(library))
        loaded.peaks.restype = None
        loaded.peaks.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_long, ctypes.POINTER(ctypes.c_double)]
        seconds = (ctypes.c_double * 2)()
        rounds = -(-_LEAST_READ // stream)
        loaded.peaks(threads, stream, rounds, seconds)
    if not all(seconds):
        return None
    flops = 2 * threads * _PRODUCTS * rows * vectors * isa.lanes * products
    return Peaks(gflops=flops / seconds[0] / 1e9, gbytes=stream * rounds / seconds[1] / 1e9)
