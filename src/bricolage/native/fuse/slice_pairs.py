"""A product and the kernel behind it in one parallel section, slice by slice: each thread reads what it has multiplied itself.

A cell of a recurrence multiplies its state for all gates, and then makes its new state of them element by element: unit by unit,
which needs no other units' gates. So a thread multiplies the gates of its own units and goes on with these at once. Threads meet
once a step, and each always has the same units, whose weights stay in its caches over all steps: a persistent recurrence (Diamos
et al., "Persistent RNNs", ICML 2016), with the second-level caches in place of registers. The same serves any product of a few
rows, such as the halves of a gated linear unit.

Where these halves are two products of weights in blocks, the second reads an element of the first for each of its own: a thread
multiplies its columns by both, one after the other. Such weights are streams, so it does not matter whether they stay in a cache.
"""

from __future__ import annotations

import math
from dataclasses import replace

from bricolage.native.fuse.buffer_layout import arena
from bricolage.native.fuse.kernel_plan import Buffer, FusionPlan, PlannedKernel, buffers_below, kernel_reads
from bricolage.native.ir.index_expressions import ZERO, Index, broadcast_coords, unflatten, variable
from bricolage.native.ir.tensors import BlockConstant, Constant, Coords, MatMul, Node, Pointwise, View

FEW_ROWS = 8
"""Rows of a product of blocks up to which each thread packs all of them for itself: that takes less than a meeting."""
MOST_ROWS = 32
"""Of a product whose columns threads share. With more the meeting is nothing in comparison."""
_MOST_PACKED = 16_384
"""Elements that each thread may pack for itself: some 2 µs."""
_MOST_KEPT = 1 / 2
"""Of a second-level cache. Weights that do not stay there come faster in the order in which they lie than slice by slice: an LSTM
of 384 units, with 0.56 of that cache for each thread, was 5 to 25 % slower in slices, a GRU of 512, with 0.5, 10 to 20 % faster."""


def in_slices(plan: FusionPlan, threads: int, panel: int, l2_bytes: int) -> FusionPlan:
    """The plan with products and what reads them in one section where that spares threads a meeting, and an arena for that;
    otherwise the same plan. The kernels keep their numbers. `panel` is how many columns are multiplied together at most,
    `l2_bytes` the size of a second-level cache, in which a thread's part of the weights has to fit."""
    if threads == 1:
        return plan
    most = int(_MOST_KEPT * l2_bytes) * threads
    sections: list[tuple[int, ...]] = []
    strands: dict[int, tuple[tuple[int, ...], ...]] = {}
    slices: dict[int, int] = {}
    for step, section in enumerate(plan.sections):
        last = sections[-1] if sections else ()
        if step in plan.strands:
            strands[len(sections)] = plan.strands[step]
        elif len(last) == len(section) == 1 and len(sections) - 1 not in strands:
            panels, rest = divmod(_units(plan.kernels[section[0]]), panel)
            parts = _parts(plan, last[0], section[0], most) if panels >= threads and not rest else 0
            parts = parts or _is_gate(plan, last[0], section[0])
            if parts:
                sections[-1] += section
                slices[len(sections) - 1] = parts
                continue
        sections.append(section)
    if not slices:
        return plan
    ordered = replace(plan, waves=tuple(sections), strands=strands, slices=slices)
    arena(ordered)
    return ordered


def rows_and_units(kernel: PlannedKernel) -> tuple[Index, Index, Coords]:
    """Loop variables `m` and `j` over the rows of an element-wise kernel and along them, and the coordinates of an element."""
    *lead, units = kernel.result.shape
    m, j = variable("m", math.prod(lead)), variable("j", units)
    return m, j, (*unflatten(m, lead), j)


def _units(kernel: PlannedKernel) -> int:
    return kernel.result.shape[-1] if kernel.result.shape else 1


def _parts(plan: FusionPlan, first: int, second: int, most: int) -> int:
    """How many columns of a product, as far apart as the second kernel has units, an element of that kernel reads; 0 where a
    slice of it needs more of the product than a slice of each part, the weights have more than `most` bytes, or the two cannot be
    in one section."""
    product, behind = plan.kernels[first], plan.kernels[second]
    root = product.root
    if behind.root is not None or not isinstance(root, MatMul) or product.of_bytes:
        return 0
    *batch, rows, columns = root.shape
    parts, rest = divmod(columns, _units(behind))
    plain_product = isinstance(root.right, Constant) and math.prod(batch) == 1 and product.fused_producer is None
    stays = 4 * root.right.elements <= most
    few = rows <= MOST_ROWS and rows * root.left.shape[-1] <= _MOST_PACKED
    if (
        not plain_product
        or not few
        or not stays
        or rest
        or len(product.stores) > 1
        or math.prod(behind.result.shape[:-1]) != rows
    ):
        return 0
    m, j, coords = rows_and_units(behind)
    origin = (ZERO,) * len(batch)
    part_places = [
        _place(product.target, product.result_coords((*origin, m, j + part * _units(behind)))) for part in range(parts)
    ]
    reads = _Reads(plan, behind)
    if not all(reads.all_of(node, coords) for node, _ in behind.stores):
        return 0
    read_places = [_place(buffer, at) for buffer, at in reads.found if _meets(buffer, product.target)]
    apart = not any(_meets(wrote, read) for wrote in behind.targets for read in kernel_reads(product, plan))
    return (
        parts
        if read_places and apart and all(any(read - at == ZERO for at in part_places) for read in read_places)
        else 0
    )


def _is_gate(plan: FusionPlan, first: int, second: int) -> bool:
    """Whether two products of a few rows by blocks have the same columns, and the second reads the first's at its own alone."""
    product, behind = plan.kernels[first], plan.kernels[second]
    gate, root = product.root, behind.root
    if not isinstance(gate, MatMul) or not isinstance(root, MatMul) or gate.shape != root.shape:
        return False
    *batch, rows, columns = root.shape
    blocks = isinstance(gate.right, BlockConstant) and isinstance(root.right, BlockConstant)
    if not blocks or rows > FEW_ROWS or math.prod(batch) > 1 or len(product.stores) > 1 or behind.path:
        return False
    origin = (ZERO,) * len(batch)
    coords = (*origin, variable("m", rows), variable("j", columns))
    if any(_meets(each, product.target) for each in buffers_below(root.left, plan)):
        return False
    reads = _Reads(plan, behind)
    if not all(reads.all_of(node, coords) for node, _ in behind.stores):
        return False
    at = _place(product.target, product.result_coords(coords))
    read_places = [_place(buffer, place) for buffer, place in reads.found if _meets(buffer, product.target)]
    apart = not any(_meets(wrote, read) for wrote in behind.targets for read in kernel_reads(product, plan))
    return bool(read_places) and apart and all(read - at == ZERO for read in read_places)


def _place(buffer: Buffer, coords: Coords) -> Index:
    """Of an element in its storage."""
    return buffer.address(coords) + buffer.offset


def _meets(one: Buffer, other: Buffer) -> bool:
    """Whether two buffers may have elements in common."""
    (first, end), (begin, behind) = one.extent, other.extent
    return one.storage == other.storage and first < behind and begin < end


class _Reads:
    """Where the elements lie that an element of an element-wise kernel is made of."""

    def __init__(self, plan: FusionPlan, kernel: PlannedKernel) -> None:
        self.found: list[tuple[Buffer, Coords]] = []
        self._plan, self._targets, self._root = plan, kernel.targets, kernel.root
        self._seen: set[tuple[Node, Coords]] = set()

    def all_of(self, node: Node, coords: Coords) -> bool:
        """Adds those of an element; False where they follow from data."""
        if (node, coords) in self._seen:
            return True
        self._seen.add((node, coords))
        buffer = self._plan.buffers.get(node)
        if buffer is not None and buffer not in self._targets:
            self.found.append((buffer, coords))
            return True
        match node:
            case Constant():
                return True
            case _ if node is self._root:  # whose elements the kernel has
                return True
            case Pointwise():
                return all(self.all_of(source, broadcast_coords(coords, source.shape)) for source in node.inputs)
            case View():
                return self.all_of(node.source, node.locate(coords))
        return False
