"""Where the tensors of a plan lie: layouts, types, parts of a whole, and one arena for all that is in between.

Images of the ranks that convolutions have lie with their channels last. Where products round their operands to bfloat16, a tensor
that nothing but products read is stored so from the start. What sums and normalisations read stays float32, so that residual
streams lose nothing on their way through a network; or everything in between is stored in bfloat16, which halves the traffic of
networks that can bear it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from bricolage.native.fuse.channels_last import Layout, channels_last
from bricolage.native.fuse.kernel_plan import Buffer, FusionPlan, StorageDtypePolicy, kernel_reads
from bricolage.native.ir.cache_nodes import ReplacedRows
from bricolage.native.ir.index_expressions import row_major
from bricolage.native.ir.tensors import STORED_BYTES, ConcatBuffer, Conv, Input, MatMul, Node, View
from bricolage.work.arena import assign_offsets
from bricolage.work.liveness import Lifetime


class Memory:
    """Says where the tensors of one plan lie."""

    def __init__(
        self,
        plan: FusionPlan,
        nodes: Sequence[Node],
        users: Mapping[Node, Sequence[Node]],
        policy: StorageDtypePolicy,
        layout: Layout = "channels last",
    ) -> None:
        """`nodes` are all that the plan computes, sources first, with their users; `layout` says which images lie with their
        channels last."""
        self._plan = plan
        self._nodes = nodes
        self._users = users
        self._policy = policy
        self._channels_last = channels_last(nodes, users, layout)
        self._storages = 0

    def allocate(self, stored: Set[Node]) -> None:
        """Gives buffers to inputs and to what is stored: outputs in their own memory, parts in that of the whole."""
        buffers = self._plan.buffers
        for node in self._plan.inputs:
            assert isinstance(node, Input)
            buffers[node] = Buffer(("input", node.position), node.shape, node.dtype, row_major(node.shape))
        for position, node in enumerate(self._plan.outputs):
            if node in stored and node not in buffers:
                buffers[node] = Buffer(("output", position), node.shape, node.dtype, row_major(node.shape))
        for node in reversed(self._nodes):
            if node not in stored:
                continue
            if node not in buffers:
                buffers[node] = self._new(node)
            if isinstance(node, ConcatBuffer):
                for part, target in self.parts(node):
                    if part in stored:
                        buffers.setdefault(part, target)

    def parts(self, node: ConcatBuffer) -> Iterator[tuple[Node, Buffer]]:
        """Parts with the buffers that they are in that of the whole."""
        whole = self._plan.buffers[node]
        strides = tuple(stride * step for stride, step in zip(whole.strides, node.steps, strict=True))
        for part, start in zip(node.parts, node.starts, strict=True):
            offset = whole.offset + sum(i * stride for i, stride in zip(start, whole.strides, strict=True))
            yield part, Buffer(whole.storage, part.shape, whole.dtype, strides, offset)

    def dtype(self, node: Node) -> str:
        """The type in which a tensor in between is stored."""
        wanted = self._policy == "everything" or (self._policy == "operands" and self._only_multiplied(node))
        wanted &= not isinstance(node, ReplacedRows)  # rows are copied as they lie
        return "bfloat16" if wanted and node.dtype == "float32" else node.dtype

    def channels_last(self, node: Node) -> bool:
        """Whether a tensor in between lies with its channels last."""
        return node in self._channels_last

    def _new(self, node: Node) -> Buffer:
        self._storages += 1
        dtype = self.dtype(node)
        if dtype != node.dtype and not self._plan.stores_more_than_operands:
            self._plan.stores_more_than_operands = not self._only_multiplied(node)
        return Buffer(("arena", self._storages - 1), node.shape, dtype, self._strides(node))

    def _only_multiplied(self, node: Node) -> bool:
        """Whether nothing but products read the node, what shares a buffer with it (the parts of a concatenation, and the whole),
        and views of these. Concatenations may share parts."""
        todo, seen = [node], {node}
        while todo:
            alias = todo.pop()
            if alias in self._plan.outputs:
                return False
            around = list(alias.parts) if isinstance(alias, ConcatBuffer) else []
            for user in self._users[alias]:
                if isinstance(user, (View, ConcatBuffer)):
                    around.append(user)
                elif not isinstance(user, MatMul) and not (isinstance(user, Conv) and user.groups == 1):
                    return False
            todo += [other for other in around if other not in seen]
            seen.update(around)
        return True

    def _strides(self, node: Node) -> tuple[int, ...]:
        """Channels last for images of the ranks that convolutions have here, otherwise row-major."""
        shape = node.shape
        if not self.channels_last(node):
            return row_major(shape)
        order = (0, *range(2, len(shape)), 1)
        inner = row_major(tuple(shape[axis] for axis in order))
        strides = [0] * len(shape)
        for axis, stride in zip(order, inner, strict=True):
            strides[axis] = stride
        return tuple(strides)


def arena(plan: FusionPlan) -> None:
    """Gives the buffers in between their offsets in the arena, for as long as kernels use them, or waves of them. What only one
    strand of a wave uses lies in a block of that strand, which uses its memory again and again."""
    sizes: dict[int, int] = {}
    for buffer in plan.buffers.values():
        storage, number = buffer.storage
        if storage == "arena" and buffer.offset == 0:
            size = sum((e - 1) * s for e, s in zip(buffer.shape, buffer.strides, strict=True)) + 1
            sizes[number] = max(sizes.get(number, 0), size * STORED_BYTES[buffer.dtype])
    touched = [_in_arena((*kernel.targets, *kernel_reads(kernel, plan))) for kernel in plan.kernels]
    spans = _spans([set().union(*(touched[index] for index in section)) for section in plan.sections])
    lifetimes = {str(n): Lifetime(sizes[n] + 64, *span) for n, span in spans.items()}
    inside: dict[str, dict[str, int]] = {}
    for step, rows in plan.strands.items():
        places = [_spans([touched[index] for index in row]) for row in rows]
        for strand, strand_spans in enumerate(places):
            others = set().union(*(place for place in places if place is not strand_spans))
            mine = {n: span for n, span in strand_spans.items() if spans[n] == (step, step + 1) and n not in others}
            if mine:
                local = {str(n): lifetimes.pop(str(n)) for n in mine}
                offsets, total = assign_offsets(
                    {name: Lifetime(life.bytes, *mine[int(name)]) for name, life in local.items()}
                )
                inside[f"{step}/{strand}"] = offsets
                lifetimes[f"{step}/{strand}"] = Lifetime(total + 64, step, step + 1)
    offsets, total = assign_offsets(lifetimes)
    for block, own_offsets in inside.items():
        start = offsets.pop(block)
        offsets.update({name: start + offset for name, offset in own_offsets.items()})
    plan.arena_offsets = {int(name): offset for name, offset in offsets.items()}
    plan.arena_bytes = total
    plan.arena_sizes = sizes


def _in_arena(buffers: Iterable[Buffer]) -> set[int]:
    return {buffer.storage[1] for buffer in buffers if buffer.storage[0] == "arena"}


def _spans(steps: Sequence[Set[int]]) -> dict[int, tuple[int, int]]:
    """The first step at which each number is there, and the one after the last."""
    spans: dict[int, tuple[int, int]] = {}
    for step, numbers in enumerate(steps):
        for number in numbers:
            spans[number] = spans.get(number, (step, step))[0], step + 1
    return spans
