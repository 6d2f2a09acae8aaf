"""Which tensors are computed together: the plan of fused kernels.

Every kernel is built around one *root*: a contraction, a reduction, a row operation, or nothing but element-wise work. Views,
gathers and element-wise functions in front of a root are computed where it reads (its prologue). Behind it, element-wise
functions are absorbed as long as no other kernel needs what lies in between (its epilogue): a chain, or a diamond that comes
together again. Of two roots, those are joined whose rows come from rows: the two products of an attention with the softmax
between them, and a grouped convolution with a pointwise (1×1) one behind it.

Not fused are element-wise functions and gathers in front of a convolution of more than one tap or of a grouped one, and of a
concatenation. A convolution reads each element once for each tap, so it is computed once and stored (a ReLU in front of a 3×3
convolution makes two kernels, unless it stands behind another root, in whose epilogue it goes). Of the pairs that DNNFusion always
fuses (PLDI'21, table 3) this leaves out One-to-One before such a Many-to-Many.

A kernel also stores what element-wise functions make of its result where both are needed in memory (a residual stream, and its
ReLU for the convolution that follows): no pass of its own reads the result again.

A concatenation is no kernel: its parts are stored where they belong in its buffer.

Whether an element-wise result is stored, or computed where it is read, is a choice wherever both can be run. It is made by rules
of thumb, or by a search that begins with what they say (`search`), or by a partition that is given from outside.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal

from bricolage.native.fuse.buffer_layout import Memory, arena
from bricolage.native.fuse.channels_last import Layout
from bricolage.native.fuse.function_cost import EXPENSIVE
from bricolage.native.fuse.fusion_target import Target
from bricolage.native.fuse.joined_roots import (
    Epilogues,
    RegionTensors,
    attentions,
    is_pointwise,
    separable_convolutions,
)
from bricolage.native.fuse.kernel_plan import (
    Buffer,
    FusedProducer,
    FusionPlan,
    PlannedKernel,
    StorageDtypePolicy,
    kernel_nodes,
)
from bricolage.native.fuse.memory_cost import KernelCosts
from bricolage.native.fuse.recomputation import SearchSpace, search_plan
from bricolage.native.fuse.secondary_outputs import attach_secondary_outputs
from bricolage.native.ir.cache_nodes import ReplacedRows
from bricolage.native.ir.index_expressions import Var, row_major, variable
from bricolage.native.ir.node_order import order_nodes
from bricolage.native.ir.tensors import (
    STORED_BYTES,
    ConcatBuffer,
    Constant,
    Conv,
    Gather,
    Input,
    MatMul,
    Node,
    Pointwise,
    View,
)

_LARGEST_DIAMOND = 16
_CHEAP_ELEMENTS = 2048
"""Tensors up to this size are computed again rather than stored, if nothing in them is expensive."""


@dataclass(frozen=True)
class Blocks:
    """A partition of tensors: kernels do not reach across its borders. What it does not name lies in no block."""

    of: Mapping[Node, int]


Strategy = Literal["rules", "searched"] | Blocks
"""How it is decided what is stored: by rules of thumb, by search, or by where blocks end."""


def plan(
    inputs: Sequence[Node],
    outputs: Sequence[Node],
    target: Target,
    policy: StorageDtypePolicy = "nothing",
    strategy: Strategy = "searched",
    layout: Layout = "channels last",
) -> FusionPlan:
    """The fused kernels that compute `outputs`, and where their results lie, within the limits of `target`. `policy` says what is
    stored in bfloat16, `layout` which images lie with their channels last."""
    planner = _Planner(inputs, outputs, target, policy, strategy, layout)
    searched_plan = planner.plan()
    if not planner.differs:
        return searched_plan
    # The search takes the last source, not the last kernel that is done, for where a result can be a secondary output.
    usual = _Planner(inputs, outputs, target, policy, "rules", layout).plan()
    model = KernelCosts(target.l2_bytes)
    return min(searched_plan, usual, key=lambda each: model.plan(each).nanoseconds)


def operators_apart(found: FusionPlan, origins: Mapping[Node, str], fused: Sequence[int]) -> Blocks:
    """The partition in which each operator is a block of its own, but for what the `fused` kernels of a plan compute, by number.
    `origins` are the operators that tensors come from."""
    operators = {name: number for number, name in enumerate(dict.fromkeys(origins.values()))}
    of = {node: operators[name] for node, name in origins.items()}
    for number in fused:
        inside, _ = kernel_nodes(found.kernels[number], found)
        of.update({node: len(operators) + number for node in inside if node in origins})
    return Blocks(of)


class _Planner:
    def __init__(
        self,
        inputs: Sequence[Node],
        outputs: Sequence[Node],
        target: Target,
        policy: StorageDtypePolicy,
        strategy: Strategy,
        layout: Layout = "channels last",
    ) -> None:
        self.target = target
        self.result = FusionPlan(inputs, outputs)
        self.nodes = order_nodes(outputs)
        self.users: dict[Node, list[Node]] = defaultdict(list)
        for node in self.nodes:
            for source in dict.fromkeys(node.sources):
                self.users[source].append(node)
        self.number = {node: i for i, node in enumerate(self.nodes)}
        self.memory = Memory(self.result, self.nodes, self.users, policy, layout)
        self.strategy = strategy
        self.differs = False
        """Whether the search has found something else than the rules."""
        self.blocks = strategy.of if isinstance(strategy, Blocks) else None

    def plan(self) -> FusionPlan:
        absorbed, epilogues = self._epilogues()
        stored, optional = self._fixed_and_optional(absorbed, epilogues)
        region = RegionTensors(self.nodes, self.users, self.result.outputs, self._is_separated)
        fused_producers = attentions(region, epilogues, stored, self.target)
        stored -= {inner for _, softmax in fused_producers.values() for inner in (softmax, *softmax.sources)}
        stored |= self._choose(stored, absorbed, optional, epilogues, fused_producers)
        self.memory.allocate(stored)
        separable = separable_convolutions(region, epilogues, self.result, self.target)
        for _, between in separable.values():
            del self.result.buffers[between]
        fused_producers |= separable
        for node in self.nodes:
            if node in self.result.buffers and node in stored and not isinstance(node, ConcatBuffer):
                root, path = epilogues.get(node, (None, ()))
                producer = fused_producers.get(root) if root is not None else None
                self.result.kernels.append(
                    PlannedKernel(node, self.result.buffers[node], root, path, fused_producer=producer)
                )
            if isinstance(node, ConcatBuffer) and node in stored:
                self._copies(node)
        self._outputs()
        attach_secondary_outputs(self.result, self._is_separated)
        arena(self.result)
        return self.result

    # --- what is computed together

    def _epilogues(self) -> tuple[set[Node], dict[Node, tuple[Node, tuple[View, ...]]]]:
        """Nodes that live inside a kernel only, and for each kernel's result its root and the views in between."""
        absorbed: set[Node] = set()
        epilogues: dict[Node, tuple[Node, tuple[View, ...]]] = {}
        for node in reversed(self.nodes):  # where two roots meet, the later one takes over
            if not node.starts_kernel:
                continue
            end, path, inside = self._grow(node, absorbed | epilogues.keys())
            absorbed |= inside
            epilogues[end] = (node, path)
        return absorbed, epilogues

    def _grow(self, root: Node, taken: Set[Node]) -> tuple[Node, tuple[View, ...], set[Node]]:
        end, path, inside = root, [], set[Node]()
        if isinstance(root, ReplacedRows):  # whose kernel does not touch most of what it results in
            return root, (), inside
        while end not in self.result.outputs:
            users = self.users[end]
            only = users[0] if len(users) == 1 else None
            if only in taken or (only is not None and self._is_separated(end, only)):
                break
            if isinstance(only, View) and only.inverse is not None and only.guard is None and self._leads_on(only):
                inside.add(end)
                path.append(only)
                end = only
                continue
            diamond = self._diamond(end, taken)
            if diamond is None:
                break
            inside |= diamond[1]
            end = diamond[0]
        bytes_ = end.sources[0] if isinstance(end, Pointwise) and end.function == "dequantise" else None
        if bytes_ in inside and end not in self.result.outputs and len(self.users[bytes_]) == 1:
            inside.discard(bytes_)  # a quarter of the traffic, and readers make numbers of them
            end = bytes_
        return end, tuple(path), inside

    def _leads_on(self, view: View) -> bool:
        """Whether absorbing a view lets something behind it in: a stored result, or element-wise work."""
        users = self.users[view]
        return view in self.result.outputs or any(
            isinstance(u, (Pointwise, ConcatBuffer, MatMul, Conv)) or (isinstance(u, View) and self._leads_on(u))
            for u in users
        )

    def _diamond(self, start: Node, taken: Set[Node]) -> tuple[Node, set[Node]] | None:
        """The nearest element-wise node at which everything computed from `start` comes together, and what lies before it."""
        inside: dict[Node, None] = {start: None}
        while len(inside) <= _LARGEST_DIAMOND:
            open_users = [u for n in inside for u in self.users[n] if u not in inside]
            if not open_users:
                return None
            following = min(open_users, key=lambda n: self.number[n])
            if not isinstance(following, Pointwise) or following.shape != start.shape or following in taken:
                return None
            if self._is_separated(start, following):
                return None
            inside[following] = None
            if any(n in self.result.outputs for n in inside if n is not following):
                return None
            if all(u in inside for n in inside if n is not following for u in self.users[n]):
                return following, {n for n in inside if n is not following}
        return None

    def _fixed_and_optional(self, absorbed: Set[Node], epilogues: Epilogues) -> tuple[set[Node], list[Node]]:
        """What every plan stores, and what it may store or not."""
        stored: set[Node] = set()
        optional: list[Node] = []
        for node in reversed(self.nodes):
            if isinstance(node, (Input, Constant)):
                continue
            if node in epilogues or (isinstance(node, ConcatBuffer) and node not in absorbed):
                stored.add(node)
            elif node in absorbed or node.starts_kernel:
                continue
            elif node in self.result.outputs or (isinstance(node, View) and self._scatters_channels(node, epilogues)):
                stored.add(node)
            elif isinstance(node, (Pointwise, Gather)):
                if self._must_lie(node):
                    stored.add(node)
                else:
                    optional.append(node)
        return stored, optional

    def _must_lie(self, node: Node) -> bool:
        """Whether something reads the node that only reads memory: a concatenation, or a window that moves over images."""
        for user in self.users[node]:
            if isinstance(user, ConcatBuffer) or (isinstance(user, Conv) and not is_pointwise(user)):
                return True
            if isinstance(user, View) and self._read_by_window(user):
                return True
        return False

    def _read_by_window(self, view: View) -> bool:
        return any(
            (isinstance(user, Conv) and not is_pointwise(user))
            or (isinstance(user, View) and self._read_by_window(user))
            for user in self.users[view]
        )

    def _scatters_channels(self, view: View, epilogues: Epilogues) -> bool:
        """Whether a convolution in groups reads a view in which neighbours of a channel or a position lie anywhere: it would divide
        for each of its products, which takes longer than to copy the elements once."""
        if not any(isinstance(user, Conv) and user.groups > 1 and not is_pointwise(user) for user in self.users[view]):
            return False
        coords = tuple(variable(f"x{axis}", extent) for axis, extent in enumerate(view.shape))
        source: Node = view
        while isinstance(source, View) and source not in epilogues:
            coords, source = source.locate(coords), source.source
        return any(not isinstance(atom, Var) for index in coords for atom, _ in index.terms)

    def _choose(
        self,
        fixed: Set[Node],
        absorbed: Set[Node],
        optional: Sequence[Node],
        epilogues: Epilogues,
        fused_producers: Mapping[Node, FusedProducer],
    ) -> set[Node]:
        """What is stored in addition to what every plan stores."""
        if self.blocks is not None:
            return self._at_borders(fixed | absorbed)
        usual = {node for node in optional if self._worth_storing(node)}
        if self.strategy == "rules":
            return usual
        kernels: dict[Node, frozenset[Node]] = {}
        for node in self.nodes:
            if node in epilogues:
                root, _ = epilogues[node]
                kernels[node] = frozenset((root, *fused_producers.get(root, ())))
            elif isinstance(node, ConcatBuffer):
                kernels.update(
                    (part, frozenset()) for part in node.parts if isinstance(part, View) and part not in epilogues
                )
            elif node in fixed:
                kernels[node] = frozenset()
        kernels = {node: inside for node, inside in kernels.items() if node in fixed or isinstance(node, View)}
        boundary = {*self.result.inputs, *self.result.outputs}
        space = SearchSpace(
            fixed,
            frozenset(optional),
            kernels,
            self.number,
            lambda node: STORED_BYTES[node.dtype if node in boundary else self.memory.dtype(node)],
            lambda node: node in boundary and self.memory.channels_last(node),
            KernelCosts(self.target.l2_bytes),
        )
        stored = search_plan(space, usual, self.users).stored
        self.differs = stored != usual
        return set(stored)

    def _at_borders(self, decided: Set[Node]) -> set[Node]:
        """What is read in another block, views too, and what rules would not compute twice."""
        at_borders: set[Node] = set()
        for node in self.nodes:
            if node in decided or node.starts_kernel or isinstance(node, (Input, Constant, ConcatBuffer)):
                continue
            again = isinstance(node, (Pointwise, Gather)) and len(self.users[node]) > 1 and not self._cheap(node)
            if again or any(self._is_separated(node, user) for user in self.users[node]):
                at_borders.add(node)
        return at_borders

    def _worth_storing(self, node: Node) -> bool:
        """The rule of thumb."""
        users = self.users[node]
        wanted = any(isinstance(u, (Conv, MatMul, ConcatBuffer)) for u in users) or self._behind_view(node)
        return wanted or (len(users) > 1 and not self._cheap(node))

    def _behind_view(self, node: Node) -> bool:
        """Whether a contraction or a window reads the node through views: it would compute each element many times."""
        todo = [u for u in self.users[node] if isinstance(u, View)]
        while todo:
            view = todo.pop()
            if view.elements > view.source.elements:
                return True
            for user in self.users[view]:
                if isinstance(user, (Conv, MatMul, ConcatBuffer)):
                    return True
                if isinstance(user, View):
                    todo.append(user)
        return False

    def _cheap(self, node: Node) -> bool:
        todo, seen = [node], 0
        while todo:
            current = todo.pop()
            seen += 1
            if seen > 4 or current.elements > _CHEAP_ELEMENTS:
                return False
            if isinstance(current, Pointwise) and current.function in EXPENSIVE:
                return False
            if current.starts_kernel or isinstance(current, ConcatBuffer):
                continue
            todo.extend(current.sources)
        return True

    def _is_separated(self, one: Node, other: Node) -> bool:
        """Whether a border lies between two nodes."""
        return self.blocks is not None and self.blocks.get(one) != self.blocks.get(other)

    # --- kernels that only copy

    def _copies(self, node: ConcatBuffer) -> None:
        """Kernels for the parts that lie elsewhere."""
        for part, target in self.memory.parts(node):
            buffer = self.result.buffers.get(part)
            if buffer is None or (buffer.storage, buffer.offset, buffer.strides) != (
                target.storage,
                target.offset,
                target.strides,
            ):
                self.result.kernels.append(PlannedKernel(part, target, None))

    def _outputs(self) -> None:
        """Outputs that are inputs, constants, views, or repeat. Of those without elements nothing is stored."""
        seen: set[Node] = set()
        for position, node in enumerate(self.result.outputs):
            buffer = self.result.buffers.get(node)
            if not node.elements:
                continue
            if node in seen or buffer is None or buffer.storage != ("output", position):
                target = Buffer(("output", position), node.shape, node.dtype, row_major(node.shape))
                self.result.kernels.append(PlannedKernel(node, target, None))
            seen.add(node)
