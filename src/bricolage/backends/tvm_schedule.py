"""Processor schedules for TVM's tensor programs, by rules of thumb or as a search has chosen (`tvm_tuning`).

TVM 0.27 leaves the loops of a program as they are unless a tuner or a rule rearranges them, and its own processor rules
know only matrix-vector products and softmax-like chains. The rules here cover the rest:

*tile*   one reduction whose results are contiguous (convolution with channels last, matrix product, pooling): a block of
         results stays in vector registers while the reduction runs (Goto & van de Geijn, "Anatomy of High-Performance
         Matrix Multiplication", 2008, section 4), and element-wise operators behind it run on the block.
*chain*  TVM's rule for softmax and normalisations: everything under one parallel loop.
*spread* anything else: each loop nest in parallel over its outer loops, contiguous inner loops in vectors.

`tvm_sampling` has the alternative: MetaSchedule's own rules for processors, with their choices drawn at random (*sampled*).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tvm import IRModule
    from tvm.s_tir import SBlock, Schedule
    from tvm.s_tir.schedule import LoopRV, SBlockRV
    from tvm.target import Target
    from tvm.tirx import PrimFunc

_VECTOR_BITS = 512
_REGISTERS = 24  # of the 32 vector registers; the rest hold operands
_WIDTHS = (1, 2, 4)  # vectors side by side in a block of results; LLVM takes other numbers apart
_NARROWEST = 4  # elements of a vector that is still worth it
_SPATIAL, _REDUCTION = 0, 2  # TVM's numbers for axes of results and axes summed over
LONGEST_VECTOR = 64  # elements of a loop that a drawn schedule makes one vector
_PARALLEL_FROM = 1 << 14  # iterations below which waking other threads costs more than it gains


@dataclass(frozen=True)
class Tiling:
    """How *tile* cuts a program up. What is 0, the rule of thumb decides."""

    height: int = 0
    """Rows of a block of results, at most."""
    vectors: int = 0
    """Vectors side by side in it, at most."""
    depth: int = 1
    """Steps of the reduction that are written out."""
    rows_first: int = 0
    """1: all columns of some rows, then the next rows; 0: all rows of some columns."""

    def __str__(self) -> str:
        return f"tile {self.height} {self.vectors} {self.depth} {self.rows_first}"


_HEIGHTS, _DEPTHS = (0, 4, 6, 8, 12, 16, 3, 2, 24, 1), (1, 4, 2, 8)
TILINGS = tuple(
    sorted(
        (
            Tiling(*sizes)
            for sizes in itertools.product(_HEIGHTS, (0, *_WIDTHS), _DEPTHS, (0, 1))
            if sizes != (0, 0, 1, 0)
        ),
        key=lambda t: sum(
            (_HEIGHTS.index(t.height), (0, *_WIDTHS).index(t.vectors), _DEPTHS.index(t.depth), t.rows_first)
        ),
    )
)
"""Other ways than the rule of thumb, nearest first."""


Choice = Callable[["PrimFunc", "Target", int], "Schedule | None"]
"""What schedules a tensor program: function, target and threads to a schedule; None where it does not fit."""


def schedule_module(
    module: IRModule, target: Target, threads: int, chosen: Mapping[str, Choice] | None = None
) -> IRModule:
    """The module with every tensor program scheduled as was `chosen` for the function of its name, else by the first rule that
    applies. Meaning is never changed: each step is one of TVM's checked schedule primitives, and what one of them declines
    leaves the program as it was."""
    import tvm

    changed = {}
    for variable, function in module.functions_items():
        if not isinstance(function, tvm.tirx.PrimFunc):
            continue
        choice = (chosen or {}).get(variable.name_hint)
        scheduled = None if choice is None else _apply_rule(choice, function, target, threads)
        scheduled = scheduled or scheduled_by_rule(function, target, threads)
        if scheduled is not None:
            program = scheduled.mod["main"].without_attr("global_symbol")  # a sampled one is called "main"
            changed[variable] = program.with_attr("tirx.is_scheduled", True)
    for variable, function in changed.items():
        module[variable] = function
    return module


def scheduled_by_rule(function: PrimFunc, target: Target, threads: int) -> Schedule | None:
    """A program scheduled by the first rule that applies; None where none does."""
    schedules = (_apply_rule(rule, function, target, threads) for rule in (_tile, _chain, _spread))
    return next((candidate for candidate in schedules if candidate is not None), None)


def by_tiling(function: PrimFunc, target: Target, threads: int, tiling: Tiling) -> Schedule | None:
    """A program scheduled by the rule *tile*, cut up in another way."""
    return _apply_rule(partial(_tile, tiling=tiling), function, target, threads)


def _apply_rule(rule: Choice, function: PrimFunc, target: Target, threads: int) -> Schedule | None:
    import tvm

    try:
        return rule(function, target, threads)
    except (tvm.s_tir.schedule.ScheduleError, tvm.error.InternalError, ValueError, TypeError):
        return None  # the primitives' way of saying that the rule does not fit


def _blocks(sch: Schedule) -> list[SBlockRV]:
    return list(sch.get_child_blocks(sch.get_sblock("root")))


def _reduces(sch: Schedule, block: SBlockRV) -> bool:
    return any(variable.iter_type == _REDUCTION for variable in sch.get(block).iter_vars)


def _extent(sch: Schedule, loop: LoopRV) -> int:
    return int(sch.get(loop).extent)


def _divisor(number: int, limit: int) -> int:
    """The largest divisor that is no larger than `limit`."""
    return next(d for d in range(min(number, max(limit, 1)), 0, -1) if number % d == 0)


def block_size(
    rows: int, columns: int, lanes: int, cap: int = 1 << 30, *, height: int = 0, vectors: int = 0
) -> tuple[int, int]:
    """Rows and columns of results held in registers: the block with the most work per operand loaded. `lanes` is the
    number of elements in a vector, `cap` the largest number of columns; `height` rows and `vectors` vectors are the
    most where they are not 0."""
    best, score = (1, 1), 0.0
    most = height or _REGISTERS
    for several in (vectors,) if vectors else _WIDTHS:
        width = _divisor(columns, min(several * lanes, cap))
        used = math.ceil(width / lanes)
        height = _divisor(rows, min(most, _REGISTERS // used))
        work = height * width / (height + used)
        if work > score:
            best, score = (height, width), work
    return best


def _tile(function: PrimFunc, target: Target, threads: int, tiling: Tiling = Tiling()) -> Schedule | None:
    import tvm

    del target
    sch = tvm.s_tir.Schedule(function)
    blocks = _blocks(sch)
    reductions = [block for block in blocks if _reduces(sch, block)]
    if len(reductions) != 1:
        return None
    main = reductions[0]
    if not _contiguous(sch.get(main)):
        return None
    position = next(i for i, block in enumerate(blocks) if sch.get(block).same_as(sch.get(main)))
    padding, behind = _inline(sch, blocks, position, main)
    lanes = _VECTOR_BITS // sch.get(main).writes[0].source.dtype.bits
    kinds = [variable.iter_type for variable in sch.get(main).iter_vars]
    loops = sch.get_loops(main)
    spatial = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == _SPATIAL]
    inner = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == _REDUCTION]
    if len(spatial) < 2 or not inner:
        return None
    column = spatial[-1]
    row = next((loop for loop in reversed(spatial[:-1]) if _extent(sch, loop) > 1), spatial[-2])
    others = [loop for loop in spatial[:-1] if loop is not row]
    cap = _group_width(sch.get(main))
    height, width = block_size(
        _extent(sch, row), _extent(sch, column), lanes, cap, height=tiling.height, vectors=tiling.vectors
    )
    row_outer, row_inner = sch.split(row, factors=[None, height])
    column_outer, column_inner = sch.split(column, factors=[None, width])
    # One panel of the second operand serves all rows before the next panel is read; batches keep their own.
    batch = others[: _count_shared_axes(sch.get(main))]
    rest = others[len(batch) :]
    steps = _divisor(_extent(sch, inner[-1]), tiling.depth)
    if steps > 1:
        *_, written_out = inner[-1:] = sch.split(inner[-1], factors=[None, steps])
    order = [*rest, row_outer, column_outer] if tiling.rows_first else [column_outer, *rest, row_outer]
    sch.reorder(*batch, *order, *inner, row_inner, column_inner)
    outer = sch.fuse(*batch, *order)
    if threads > 1:
        sch.parallel(outer)  # before the block is taken apart: its halves alone no longer look independent
    sch.reverse_compute_at(behind, outer)
    *around, final = sch.get_loops(behind)[1:]
    for loop in around:  # results leave the registers only if every index into them is a constant
        sch.unroll(loop)
    sch.vectorize(final)
    sch.vectorize(column_inner)
    sch.unroll(row_inner)
    if steps > 1:
        sch.unroll(written_out)
    sch.decompose_reduction(main, inner[0])
    for block in padding:
        _spread_block(sch, block, threads)
    return sch


def _inline(
    sch: Schedule, blocks: Sequence[SBlockRV], position: int, main: SBlockRV
) -> tuple[list[SBlockRV], SBlockRV]:
    """Inlines what is around the reduction at `position`. Returns the blocks of padding, and the block that takes the sums."""
    padding = []
    for block in blocks[:position]:
        if "pad" in sch.get(block).name_hint:  # inlined, it would put a branch into the innermost loop
            padding.append(block)
        else:
            sch.compute_inline(block)
    for block in blocks[position + 1 : -1]:
        sch.compute_inline(block)
    behind = blocks[-1] if position + 1 < len(blocks) else sch.cache_write(main, 0, "local")
    if behind is blocks[-1]:
        sch.set_scope(main, 0, "local")
    return padding, behind


def _contiguous(block: SBlock) -> bool:
    """Whether the last axis of the results also walks contiguously through an operand, and no reduction axis has to."""
    import tvm

    spatial = [variable.var for variable in block.iter_vars if variable.iter_type == _SPATIAL]
    if not spatial or not block.writes[0].region[-1].min.same_as(spatial[-1]):
        return False
    last = spatial[-1]
    walks = False
    for read in block.reads:
        if not read.region:
            continue
        uses = tvm.tirx.analysis.undefined_vars(read.region[-1].min, [])
        walks = walks or any(variable.same_as(last) for variable in uses)
        for axis in list(read.region)[:-1]:
            panel = isinstance(axis.min, tvm.tirx.FloorDiv)  # of a packed operand: whole panels lie one after another
            if not panel and any(var.same_as(last) for var in tvm.tirx.analysis.undefined_vars(axis.min, [])):
                return False
    return walks


def _count_shared_axes(block: SBlock) -> int:
    """Number of leading result axes that index every operand: batches of a batched product."""
    import tvm

    count = 0
    for variable in [v.var for v in block.iter_vars if v.iter_type == _SPATIAL][:-2]:
        used = [
            any(variable.same_as(var) for axis in read.region for var in tvm.tirx.analysis.undefined_vars(axis.min, []))
            for read in block.reads
        ]
        if not all(used):
            break
        count += 1
    return count


def _group_width(block: SBlock) -> int:
    """Largest width of a block of results whose columns share their inputs: a group's channels in grouped convolution."""
    if not block.name_hint.startswith("group_conv") or len(block.reads) != 2:
        return 1 << 30
    inputs, weights = (read.source.shape for read in block.reads)
    groups = int(inputs[-1]) // int(weights[-2])
    per_group = int(weights[-1]) // groups
    return per_group if per_group > 1 else 1 << 30


def _chain(function: PrimFunc, target: Target, threads: int) -> Schedule | None:
    from tvm.s_tir.dlight.cpu import Reduction

    del threads
    return Reduction().apply(function, target, False)


def _spread(function: PrimFunc, target: Target, threads: int) -> Schedule | None:
    import tvm

    del target
    sch = tvm.s_tir.Schedule(function)
    blocks = _blocks(sch)
    for block in blocks[:-1]:
        if not _reduces(sch, block) and len(sch.get_consumers(block)) == 1:
            try:
                sch.compute_inline(block)
            except tvm.s_tir.schedule.ScheduleError:
                continue  # it stays a loop nest of its own
    for block in _blocks(sch):
        _spread_block(sch, block, threads)
    return sch


def _spread_block(sch: Schedule, block: SBlockRV, threads: int) -> None:
    """Parallel outer result loops and a vector innermost, where that is contiguous."""
    loops = sch.get_loops(block)
    kinds = [variable.iter_type for variable in sch.get(block).iter_vars]
    if len(loops) != len(kinds) or not loops:
        return
    total = math.prod(_extent(sch, loop) for loop in loops)
    leading = list(itertools.takewhile(lambda pair: pair[1] == _SPATIAL, zip(loops, kinds, strict=True)))
    outer = [loop for loop, _ in leading]
    if len(outer) == len(loops) > 1:
        other = _find_turned_axis(sch.get(block))
        if other is None:
            _vector(sch, outer.pop())
        else:
            outer = _transpose(sch, outer, other)
    if threads > 1 and total >= _PARALLEL_FROM and outer:
        sch.parallel(sch.fuse(*outer))


def _find_turned_axis(block: SBlock) -> int | None:
    """Which result axis runs along the memory of an operand that the last result axis jumps through."""
    variables = [variable.var for variable in block.iter_vars]
    for read in block.reads:
        along = read.region[-1].min if read.region else None
        for number, variable in enumerate(variables[:-1]):
            if variable.same_as(along) and any(variables[-1].same_as(axis.min) for axis in read.region):
                return number
    return None


def _transpose(sch: Schedule, loops: list[LoopRV], other: int) -> list[LoopRV]:
    """Small squares, so that every cache line that is touched is used up; returns the loops around them."""
    row, column = loops[other], loops[-1]
    sides = _divisor(_extent(sch, row), 16), _divisor(_extent(sch, column), 16)
    row_outer, row_inner = sch.split(row, factors=[None, sides[0]])
    column_outer, column_inner = sch.split(column, factors=[None, sides[1]])
    outer = [*loops[:other], row_outer, *loops[other + 1 : -1], column_outer]
    sch.reorder(*outer, row_inner, column_inner)
    if sides[1] >= _NARROWEST:
        sch.vectorize(column_inner)
    return outer


def _vector(sch: Schedule, loop: LoopRV) -> None:
    """Vectors in a loop whose length allows whole ones; LLVM's own vectoriser gets the others."""
    extent = _extent(sch, loop)
    width = _divisor(extent, 64)
    if width < _NARROWEST:
        return
    if width == extent:
        sch.vectorize(loop)
    else:
        sch.vectorize(sch.split(loop, factors=[None, width])[1])
