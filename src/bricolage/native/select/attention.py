"""Attention as one kernel: a product, the softmax of its rows, and the product with that.

A tile of rows goes through all three before the next, so that scores and probabilities never leave the thread's caches. Rows are
whole, with no running maximum (unlike in FlashAttention, which cuts columns as well: Dao et al., NeurIPS 2022). They end with
-infinity, whose exponential is 0, as far as the last vector goes: of 18 columns, two would be computed one by one otherwise, which
takes longer than the 16. Both right sides are packed once for each head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bricolage.native.cpu.emit import VECTORISED, indent_lines
from bricolage.native.cpu.gemm_tiles import TileCodegen
from bricolage.native.cpu.kernel_choice import MOST_BYTES, GemmConfig
from bricolage.native.cpu.packing import Packing
from bricolage.native.cpu.phase import ConstantBlock, FunctionMemory, Phase, local
from bricolage.native.cpu.tile_plan import plan_tile
from bricolage.native.fuse.kernel_plan import Buffer, PlannedKernel
from bricolage.native.ir.tensors import MatMul, Softmax
from bricolage.native.select.algorithm import Algorithm, KernelRequest
from bricolage.native.select.rows import SOFTMAX, exponentials, reductions

_ALL = GemmConfig(kc_bytes=MOST_BYTES, parallel="m", prefetch=False)
"""All of k at once."""


def _applies(request: KernelRequest) -> bool:
    """To what fusion has joined: two products with the softmax between them."""
    return isinstance(request.root, MatMul) and request.kernel.fused_producer is not None


def _generate(request: KernelRequest, weights: ConstantBlock) -> list[Phase]:
    """The phase of an attention with its epilogue. Threads share heads, or rows where there are fewer heads than threads."""
    kernel, plan, target = request.kernel, request.plan, request.target
    operand = request.arithmetic.operand(target.isa)
    assert kernel.fused_producer is not None
    first, softmax = kernel.fused_producer
    assert isinstance(first, MatMul) and isinstance(softmax, Softmax)
    width = softmax.shape[-1]
    memory = FunctionMemory(weights)
    tiling = plan_tile(kernel, plan, target, operand, _ALL)
    packing, pv = tiling.packing, TileCodegen(tiling, memory)
    in_place = operand.dtype == "float32"
    pitch = -(-width // target.lanes) * target.lanes
    strides = (*(0 for _ in softmax.shape[:-2]), pitch, 1)
    scores = Buffer(("scores", 0), softmax.shape, "float32", strides)
    inner = PlannedKernel(softmax.source, scores, first)
    qk = TileCodegen(plan_tile(inner, plan, target, operand, _ALL), memory)
    scratch = _Scratch()
    rights, pack_rights = _rights((qk, pv), scratch, memory)
    lines, pack_left, first_product = _left(qk, scratch, memory)
    lines.append(f"float *const rows = (float *)(own + {scratch.take(tiling.tile_rows * pitch * 4)});")
    probabilities, apart = ("rows", pitch) if in_place else ("probabilities", packing.depth)
    if not in_place:
        at = scratch.take(tiling.tile_rows * packing.depth * operand.bytes)
        lines.append(f"{operand.element} *restrict probabilities = ({operand.element} *)(own + {at});")
    m, tiles = tiling.m, tiling.tiles
    work = [
        "for (long first = low; first < high; first++) {",
        *indent_lines(
            [
                f"const long last = first + 1, start = {m}L * first / {tiles}, stop = {m}L * last / {tiles};",
                *pack_left,
                f"float *const {local(scores)} = rows - start * {pitch};",
                *_ends(width, pitch, target.lanes),
                "{",
                *indent_lines([rights[0], *first_product]),
                "}",
                "for (long r = 0; r < stop - start; r++) {",
                *indent_lines(_emit_softmax(packing, width, pitch, None if in_place else probabilities)),
                "}",
                "{",
                *indent_lines([rights[1], *pv.over_panels("first", "last", probabilities, apart, "start")]),
                "}",
            ]
        ),
        "}",
    ]
    lines += tiling.sharing.over_batches(pack_rights, work)
    helpers = {**reductions(target.lanes), **qk.helpers, **pv.helpers}
    share = tiling.sharing.range(tiles if pack_rights else 1)
    lines = operand.with_tile_config(tiling.tile_rows, lines)
    return [Phase(lines, share, memory.operands, thread_scratch=scratch.bytes, helpers=helpers)]


def _left(writer: TileCodegen, scratch: _Scratch, memory: FunctionMemory) -> tuple[list[str], list[str], list[str]]:
    """The left side of the first product: as a declaration, what packs it where it does not lie in rows, and the product."""
    packing = writer.tiling.packing
    if packing.direct is not None:
        return [], [], writer.over_panels("first", "last", packing.direct.pointer(memory), packing.direct.lda, "0")
    pack = packing.rows("start", "stop", "start", memory)
    at = scratch.take(writer.tiling.tile_rows * packing.pitch * packing.bytes)
    declared = f"{packing.element} *restrict block = ({packing.element} *)(own + {at});"
    return [declared], pack, writer.over_panels("first", "last", "block", packing.pitch, "start")


def _rights(writers: Sequence[TileCodegen], scratch: _Scratch, memory: FunctionMemory) -> tuple[list[str], list[str]]:
    """Where the right sides are, each as a declaration, and what packs those that are no constants."""
    rights: list[str] = []
    pack: list[str] = []
    for writer in writers:
        packing = writer.tiling.packing
        if callable(writer.tiling.p.right):
            rights += writer.constant_right().lines
        else:
            rights.append(packing.packed_right(scratch.take(packing.right_bytes)))
            pack += ["{", *indent_lines([rights[-1], *packing.right(memory)]), "}"]
    return rights, pack


@dataclass
class _Scratch:
    """A thread's own memory, handed out from its start."""

    bytes: int = 0

    def take(self, size: int) -> int:
        """Where the next `size` bytes begin: at a multiple of 64."""
        start, self.bytes = self.bytes, self.bytes + -(-size // 64) * 64
        return start


def _ends(width: int, pitch: int, lanes: int) -> list[str]:
    """Fills the last vector of all rows before there are scores: a load of a vector waits for stores of parts of it that are under
    way."""
    if width == pitch:
        return []
    fill = f"for (long i = {pitch - lanes}; i < {pitch}; i++) rows[r * {pitch} + i] = -__builtin_inff();"
    return ["for (long r = 0; r < stop - start; r++) {", f"  {fill}", "}"]


def _emit_softmax(packing: Packing, width: int, pitch: int, probabilities: str | None) -> list[str]:
    """From row `r` of scores to a row of probabilities, packed as the second product reads it; in place where `probabilities` is
    None."""
    lines = [f"float *const row = rows + r * {pitch};", *exponentials(pitch)]
    if probabilities is None:
        return [*lines, VECTORISED, f"for (long i = 0; i < {pitch}; i++) row[i] = {SOFTMAX};"]
    return [
        *lines,
        f"{packing.element} *const to = {probabilities} + r * {packing.depth};",
        "#pragma GCC ivdep",
        f"for (long i = 0; i < {width}; i++) {{",
        *indent_lines(packing.kept(SOFTMAX, "i", packing.part)),
        "}",
        *packing.zeros("to", width, packing.part),
    ]


ATTENTION = Algorithm("attention", _applies, _generate)
