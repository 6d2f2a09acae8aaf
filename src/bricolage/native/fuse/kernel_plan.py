"""What a plan is: fused kernels in order, the buffers that they store in, and where these lie."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeAlias

from bricolage.native.ir.index_expressions import ZERO, Index
from bricolage.native.ir.tensors import Constant, Conv, Coords, MatMul, Node, Shape, View


@dataclass(frozen=True, eq=False)
class Buffer:
    """Memory of a tensor: `strides` in elements, `offset` in elements from the start of `storage`.

    `storage` is ("input", position), ("output", position) or ("arena", number).
    """

    storage: tuple[str, int]
    shape: Shape
    dtype: str
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def order(self) -> list[int]:
        """Dimensions from the outermost in memory to the innermost."""
        return sorted(range(len(self.shape)), key=lambda axis: -self.strides[axis])

    @property
    def extent(self) -> tuple[int, int]:
        """Its first element in the storage, and the first behind its last; others may have elements between these two."""
        last = sum((extent - 1) * stride for extent, stride in zip(self.shape, self.strides, strict=True))
        return self.offset, self.offset + last + 1

    def address(self, coords: Coords) -> Index:
        """Of an element: how many lie before it from the start of the buffer."""
        total = ZERO
        for index, stride in zip(coords, self.strides, strict=True):
            total = total + index * stride
        return total


FusedProducer: TypeAlias = tuple[Conv | MatMul, Node]
"""A root that is computed in the kernel of another, and what of it the other reads."""


@dataclass(frozen=True, eq=False)
class PlannedKernel:
    """One fused kernel: `result` is stored in `target`; `root` lies in its expression, or is the result itself."""

    result: Node
    target: Buffer
    root: Node | None
    path: tuple[View, ...] = ()
    """Views between the root and the result, the first behind the root first."""
    secondary_outputs: tuple[tuple[Node, Buffer], ...] = ()
    """What is computed from the result element by element, and stored too."""
    fused_producer: FusedProducer | None = None
    """A root before the root, and what of it the root reads, some rows at a time: the first product and the softmax of an
    attention, a grouped convolution before a pointwise (1×1) one. They are stored nowhere."""

    @property
    def stores(self) -> tuple[tuple[Node, Buffer], ...]:
        """All tensors that it stores, with where they lie."""
        return ((self.result, self.target), *self.secondary_outputs)

    @property
    def targets(self) -> tuple[Buffer, ...]:
        """Where they lie."""
        return tuple(buffer for _, buffer in self.stores)

    @property
    def kind(self) -> str:
        """What the kernel is built around, in one word."""
        if self.fused_producer is not None:
            return "attention" if isinstance(self.root, MatMul) else "separable"
        return type(self.root).__name__.lower() if self.root is not None else "elementwise"

    @property
    def of_bytes(self) -> bool:
        """Whether it is built around an exact product of bytes that the graph gives."""
        return isinstance(self.root, (Conv, MatMul)) and self.root.dtype == "int32"

    def result_coords(self, coords: Coords) -> Coords:
        """Where the element of the root at `coords` comes to lie in the result."""
        for view in self.path:
            assert view.inverse is not None
            coords = view.inverse(coords)
        return coords


@dataclass
class FusionPlan:
    """Kernels in executable order, and where every stored tensor lies."""

    inputs: Sequence[Node]
    outputs: Sequence[Node]
    kernels: list[PlannedKernel] = field(default_factory=list)
    buffers: dict[Node, Buffer] = field(default_factory=dict)
    stores_more_than_operands: bool = False
    """Whether something is stored in bfloat16 that not only products read."""
    arena_bytes: int = 0
    arena_offsets: dict[int, int] = field(default_factory=dict)
    """Bytes from the start of the arena, by number."""
    arena_sizes: dict[int, int] = field(default_factory=dict)
    waves: tuple[tuple[int, ...], ...] | None = None
    """Numbers of the kernels that run at the same time, wave by wave; None where they run in their order."""
    strands: Mapping[int, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    """By number of a wave whose kernels are rows that do not depend on each other, and of which a thread runs one in its order:
    these rows."""
    slices: Mapping[int, int] = field(default_factory=dict)
    """By number of a wave of two kernels, a product and what reads it, which threads go through slice by slice
    (`fuse.slice_pairs`): how many columns of the product, equally far apart, an element of the second reads."""

    @property
    def of_bytes(self) -> bool:
        """Whether some kernel is."""
        return any(kernel.of_bytes for kernel in self.kernels)

    @cached_property
    def products_of_weights(self) -> Counter[int]:
        """How many products have the same constant weights, by these' identity: steps of a recurrence share them. Asked when the
        plan is whole."""
        roots = [kernel.root for kernel in self.kernels]
        weights = [
            root.right if isinstance(root, MatMul) else root.weight
            for root in roots
            if isinstance(root, (MatMul, Conv))
        ]
        return Counter(right.identity for right in weights if isinstance(right, Constant))

    @property
    def sections(self) -> tuple[tuple[int, ...], ...]:
        """Numbers of the kernels, wave by wave, or one by one."""
        return self.waves if self.waves is not None else tuple((number,) for number in range(len(self.kernels)))

    def arena_span(self, number: int) -> tuple[int, int]:
        """First byte of one storage in the arena, and the first behind it."""
        start = self.arena_offsets.get(number, 0)
        return start, start + self.arena_sizes.get(number, 0)


StorageDtypePolicy = Literal["nothing", "operands", "everything"]
"""What is stored in bfloat16: nothing, what only products read, or all float32 tensors between kernels."""


def kernel_reads(kernel: PlannedKernel, plan: FusionPlan) -> list[Buffer]:
    """Buffers that a kernel reads."""
    return kernel_nodes(kernel, plan)[1]


def buffers_below(node: Node, plan: FusionPlan) -> list[Buffer]:
    """Buffers that a tensor is, or is computed from where it is read."""
    buffer = plan.buffers.get(node)
    return [buffer] if buffer is not None else [each for source in node.sources for each in buffers_below(source, plan)]


def kernel_nodes(kernel: PlannedKernel, plan: FusionPlan) -> tuple[list[Node], list[Buffer]]:
    """Nodes that a kernel computes, its constants among them, and buffers that it reads."""
    stored, targets = {node for node, _ in kernel.stores}, kernel.targets
    inside: list[Node] = []
    reads: dict[Buffer, None] = {}
    todo = [node for node, _ in kernel.stores]
    seen: set[Node] = set()
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        buffer = plan.buffers.get(node)
        if buffer is not None and buffer not in targets:
            reads.setdefault(buffer)
        elif node in stored or buffer is None:
            inside.append(node)
            todo.extend(node.sources)
    return inside, list(reads)
