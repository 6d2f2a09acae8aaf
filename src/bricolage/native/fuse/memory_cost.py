"""What a fused kernel costs: starting it, the bytes that it moves at the level where they lie, and what it computes.

Nanoseconds of one thread, of everything that depends on what is fused with what. The arithmetic of products, reductions and rows is
left out, for it is the same in every plan. The figures are the best of some hundred runs of generated kernels (`Neg` of 32 KiB to
128 MiB for the bytes, with a transposition for those apart; functions on 64 KiB; one thread; a kernel of 64 elements for the
barrier of two threads), on an AMD EPYC Zen 5 with AVX-512 and GCC 12.2. They are constants, and only the size of the second-level
cache is the target's, so that a region has the same plan on all machines with equal caches.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field

from bricolage.native.fuse.function_cost import NANOSECONDS
from bricolage.native.fuse.kernel_plan import FusionPlan, PlannedKernel
from bricolage.native.ir.cache_nodes import CacheNode
from bricolage.native.ir.tensors import (
    STORED_BYTES,
    Constant,
    Conv,
    Gather,
    Input,
    MatMul,
    Node,
    Normalise,
    Pointwise,
    Reduce,
    Softmax,
    View,
)


@dataclass(frozen=True)
class _Level:
    """What moving takes, in nanoseconds, where a tensor lies."""

    byte: float
    """Of a run."""
    element: float
    """One whose neighbours lie apart."""


_START = 3200.0
"""A kernel, with the barrier in front of it."""
_SECOND_LEVEL, _LAST_LEVEL, _MEMORY = _Level(1 / 200, 0.3), _Level(1 / 115, 1.5), _Level(1 / 40, 6.0)
NANOSECONDS_PER_BYTE = {"second level": _SECOND_LEVEL.byte, "last level": _LAST_LEVEL.byte, "memory": _MEMORY.byte}
"""Of one thread that reads or writes a run there."""
_LAST_LEVEL_BYTES = 16 << 20
"""Of a tensor in the last cache. What it has in all says little: its neighbours on the processor share it."""
_CHEAP = 0.015
"""An element of a function that has no price of its own."""
_GATHERED = 0.5
"""An element that is found by an index."""
_PACKED = 8 * _SECOND_LEVEL.byte
"""An element of a packed row, written and read again in the second-level cache."""
_MOST_ELEMENTS = 64
"""Elements that a loop's body may compute or read ..."""
_SPILLED = 400.0
"""... before each further one takes registers, text and compile time, counted (not measured) like this."""
_PASSES = 3
"""How often a normalisation reads what it cannot keep."""
_SHARED_ROWS = 2
"""How often the right side of a single product is packed: each of the threads does it, of which there are two at least."""


@dataclass
class MemoryTraffic:
    """What one kernel reads and computes."""

    reads: dict[Node, int] = field(default_factory=dict)
    """Stored tensors, inputs and constants, each with the number of elements that are asked for."""
    strided: dict[Node, int] = field(default_factory=dict)
    """Those of them whose neighbours are asked for one after another, but do not lie so."""
    computed: dict[Node, int] = field(default_factory=dict)
    """Element-wise functions and gathers, each with the number of elements that are computed, with repetitions."""
    packed: int = 0
    """Elements of rows that are packed because they are computed where a product reads them."""
    barriers: int = 1
    """Parts with a barrier in front of them."""
    body: int = 0
    """Distinct elements in the text."""
    pointwise_reads: set[Node] = field(default_factory=set)
    """Of what it reads: tensors of its own shape, read at the index of the result and at no other."""
    elementwise: bool = True
    """Whether all that it computes lies at the index of the result, so that another kernel can store it as a secondary output."""
    reaches_undecided: bool = False
    """Whether it reaches something that is not decided yet."""


Predicate = Callable[[Node], bool]
_Ask = tuple[Node, int, Hashable, bool]
"""A tensor, how many of its elements are asked for, by which way, and whether neighbours lie apart."""


def traffic(
    results: Sequence[Node], inside: Collection[Node], stored: Predicate, undecided: Predicate = lambda _: False
) -> MemoryTraffic:
    """What the kernel of `results`, all of one shape, reads and computes.

    `inside` are its root, and one before it; `stored` says what it can read; what is `undecided` costs nothing.
    """
    memory_traffic = MemoryTraffic(elementwise=not inside)
    elsewhere: set[Node] = set()
    images = any(isinstance(node, Conv) for node in inside)  # their channels lie last, and are read in runs
    seen: set[tuple[Node, Hashable]] = set()
    todo: list[_Ask] = [(node, node.elements, (), False) for node in results]
    while todo:
        node, count, where, strided = todo.pop()
        if (node, where) in seen:
            continue
        seen.add((node, where))
        if isinstance(node, (Input, Constant)) or stored(node):
            memory_traffic.reads[node] = memory_traffic.reads.get(node, 0) + count
            if strided and not images:
                memory_traffic.strided[node] = memory_traffic.strided.get(node, 0) + count
            (memory_traffic.pointwise_reads if where == () else elsewhere).add(node)
            continue
        if undecided(node):
            memory_traffic.reaches_undecided = True
            continue
        match node:
            case Pointwise():
                memory_traffic.computed[node] = memory_traffic.computed.get(node, 0) + count
                memory_traffic.elementwise &= where == ()
                for source in node.inputs:
                    alike = source.shape == node.shape
                    todo.append((source, count, where if alike else (where, source.shape), strided))
            case View():
                todo.append((node.source, count, (where, node), strided or node.strided))
            case Gather():
                memory_traffic.computed[node] = memory_traffic.computed.get(node, 0) + count
                memory_traffic.elementwise = False
                todo += [(source, count, (where, node), False) for source in node.sources]
            case Conv() | MatMul() if node in inside:
                todo += _operands(node, stored, undecided, memory_traffic)
            case Reduce() | Softmax() | Normalise() if node in inside:
                passes = _PASSES if isinstance(node, Normalise) and not node.in_rows else 1
                todo.append((node.source, passes * node.source.elements, node, False))
            case CacheNode() if node in inside:
                todo += [(source, source.elements, (node, at), False) for at, source in enumerate(node.sources)]
            case _:
                raise AssertionError(f"{type(node).__name__} has a kernel of its own")
    memory_traffic.body = len(seen)
    memory_traffic.pointwise_reads -= elsewhere
    return memory_traffic


def _operands(root: Conv | MatMul, stored: Predicate, undecided: Predicate, found: MemoryTraffic) -> list[_Ask]:
    """What a product reads. Rows that are computed where it reads them are packed; where threads share columns, they all wait
    for that."""
    left, right = root.sources
    if isinstance(root, Conv):
        batch, rows, columns = 1, root.shape[0] * math.prod(root.shape[2:]), root.shape[1]
        depth = root.groups * math.prod(root.weight.shape[1:])
    else:
        *leading, rows, columns = root.shape
        batch, depth = math.prod(leading), left.shape[-1]
    count = batch * rows * depth
    source = left
    while isinstance(source, View) and source.inverse is not None:
        source = source.source
    if isinstance(source, (Pointwise, Gather)) and not stored(source) and not undecided(source):
        found.packed += count
        found.barriers += batch == 1 and isinstance(right, Constant) and columns > rows
    recomputed = 1 if isinstance(right, Constant) or batch > 1 else _SHARED_ROWS
    return [(left, count, (root, 0), False), (right, recomputed * batch * depth * columns, (root, 1), False)]


@dataclass(frozen=True)
class PlanCost:
    """A whole plan."""

    kernels: int
    bytes: int
    """Read and written, each tensor once for each kernel that touches it, and no more of it than the kernel asks for."""
    recomputed: int
    """Elements that are computed although they have been computed before."""
    nanoseconds: float


@dataclass(frozen=True)
class KernelCosts:
    """What kernels cost on a processor whose cores have a second-level cache of `l2_bytes`. All times are nanoseconds."""

    l2_bytes: int

    def kernel(self, found: MemoryTraffic, stores: Sequence[Node], size: Callable[[Node], int]) -> float:
        """What a kernel takes; `stores` is what it stores, and `size` says how many bytes an element takes where a tensor lies."""
        total = self.start(found) + found.packed * _PACKED + max(0, found.body - _MOST_ELEMENTS) * _SPILLED
        for node, count in found.reads.items():
            strided = min(node.elements, found.strided.get(node, 0))
            if node.elements > 1:
                total += self.move(node, count, size(node)) + strided * self._level(node, size(node)).element
        for node in stores:
            total += self.move(node, node.elements, size(node))
        for node, count in found.computed.items():
            each = _GATHERED if isinstance(node, Gather) else NANOSECONDS.get(node.function, _CHEAP)  # type: ignore[attr-defined]
            total += count * each
        return total

    def start(self, found: MemoryTraffic) -> float:
        """The part of it that no element takes."""
        return found.barriers * _START

    def move(self, node: Node, count: int, size: int) -> float:
        """Reading or writing elements of a tensor, each of it at most once: then it is in a nearer cache."""
        return min(count, node.elements) * size * self._level(node, size).byte

    def plan(self, plan: FusionPlan) -> PlanCost:
        """What the kernels of a plan cost together."""
        total, moves = 0.0, 0
        computed: Counter[Node] = Counter()
        for kernel in plan.kernels:
            kernel_traffic, stores = _of(kernel, plan)
            total += self.kernel(kernel_traffic, stores, lambda node: _size(node, plan))
            moves += sum(min(count, node.elements) * _size(node, plan) for node, count in kernel_traffic.reads.items())
            moves += sum(node.elements * _size(node, plan) for node in stores)
            computed.update(kernel_traffic.computed)
        recomputed = sum(max(0, count - node.elements) for node, count in computed.items())
        return PlanCost(len(plan.kernels), moves, recomputed, total)

    def _level(self, node: Node, size: int) -> _Level:
        """Where a tensor lies: half of a second-level cache holds what the next kernel reads."""
        size_bytes = node.elements * size
        if size_bytes <= self.l2_bytes // 2:
            return _SECOND_LEVEL
        return _LAST_LEVEL if size_bytes <= _LAST_LEVEL_BYTES else _MEMORY


def _of(kernel: PlannedKernel, plan: FusionPlan) -> tuple[MemoryTraffic, list[Node]]:
    targets = kernel.targets
    inside = {node for node in (kernel.root, *(kernel.fused_producer or ())) if node is not None}
    stores = [node for node, _ in kernel.stores]

    def is_stored(node: Node) -> bool:
        return node in plan.buffers and plan.buffers[node] not in targets

    return traffic(stores, inside, is_stored), stores


def _size(node: Node, plan: FusionPlan) -> int:
    buffer = plan.buffers.get(node)
    return STORED_BYTES[node.dtype if buffer is None else buffer.dtype]
