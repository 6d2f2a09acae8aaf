"""DNNFusion's fusion plan as the paper describes it: a baseline to count against.

Niu et al., "DNNFusion: Accelerating Deep Neural Networks Execution with Advanced Operator Fusion" (PLDI 2021), section 3.1 (mapping
types, table 2), section 3.2 (what may be fused, table 3) and section 4.2 (the plan that grows from seeds, listing 1). Where the
listing leaves a choice open, it is made here as follows. The table is asked with the type of the whole block. A block stays such
that kernels can be put in an order (the listing has no test for cycles). Cases that the paper decides by measuring are all taken,
or none; there is no limit for registers. Seeds of one size are taken in the order of the graph.
"""

from __future__ import annotations

from typing import Literal

from bricolage.graph.graph import Graph, Operator, describe

Mapping = Literal["one-to-one", "reorganize", "shuffle", "one-to-many", "many-to-many"]

_ONE_TO_ONE = frozenset(
    [
        "Abs",
        "Add",
        "And",
        "Asin",
        "Atan",
        "BatchNormalization",
        "Cast",
        "Ceil",
        "Celu",
        "Clip",
        "Concat",
        "Cos",
        "Div",
        "Dropout",
        "Elu",
        "Equal",
        "Erf",
        "Exp",
        "Floor",
        "Gelu",
        "Greater",
        "GreaterOrEqual",
        "HardSigmoid",
        "HardSwish",
        "Identity",
        "LeakyRelu",
        "Less",
        "LessOrEqual",
        "Log",
        "Max",
        "Min",
        "Mish",
        "Mod",
        "Mul",
        "Neg",
        "Not",
        "Or",
        "PRelu",
        "Pow",
        "Reciprocal",
        "Relu",
        "Round",
        "Selu",
        "Sigmoid",
        "Sign",
        "Sin",
        "Slice",
        "Softplus",
        "Softsign",
        "Split",
        "Sqrt",
        "Sub",
        "Sum",
        "Swish",
        "Tanh",
        "Where",
        "Xor",
        "Pad",
    ]
)
_ONE_TO_MANY = frozenset(["Expand", "Gather", "Resize", "Tile", "Upsample"])
_MANY_TO_MANY = frozenset(
    [
        "Attention",
        "AveragePool",
        "Conv",
        "ConvTranspose",
        "CumSum",
        "Einsum",
        "Gemm",
        "GlobalAveragePool",
        "GlobalMaxPool",
        "GroupNormalization",
        "InstanceNormalization",
        "LRN",
        "LayerNormalization",
        "LogSoftmax",
        "MatMul",
        "MaxPool",
        "RMSNormalization",
        "ReduceL1",
        "ReduceL2",
        "ReduceMax",
        "ReduceMean",
        "ReduceMin",
        "ReduceProd",
        "ReduceSum",
        "ReduceSumSquare",
        "Softmax",
    ]
)
_REORGANIZE = frozenset(["Flatten", "Reshape", "Squeeze", "Unsqueeze"])
_SHUFFLE = frozenset(["DepthToSpace", "SpaceToDepth", "Transpose"])

_FUSED: dict[tuple[Mapping, Mapping], tuple[bool, Mapping]] = {}
"""What a pair becomes, and whether that is certain (green) or would be measured (yellow). Other pairs are never fused."""


def _row(first: Mapping, cells: dict[Mapping, tuple[bool, Mapping]]) -> None:
    _FUSED.update({(first, second): cell for second, cell in cells.items()})


_row(
    "one-to-one",
    {
        "one-to-one": (True, "one-to-one"),
        "one-to-many": (True, "one-to-many"),
        "many-to-many": (True, "many-to-many"),
        "reorganize": (True, "reorganize"),
        "shuffle": (True, "shuffle"),
    },
)
_row(
    "one-to-many",
    {
        "one-to-one": (True, "one-to-many"),
        "one-to-many": (False, "one-to-many"),
        "reorganize": (False, "one-to-many"),
        "shuffle": (False, "one-to-many"),
    },
)
_row(
    "many-to-many",
    {
        "one-to-one": (True, "many-to-many"),
        "one-to-many": (False, "many-to-many"),
        "reorganize": (False, "many-to-many"),
        "shuffle": (False, "many-to-many"),
    },
)
_row(
    "reorganize",
    {
        "one-to-one": (True, "reorganize"),
        "one-to-many": (False, "one-to-many"),
        "many-to-many": (False, "many-to-many"),
        "reorganize": (True, "reorganize"),
        "shuffle": (True, "reorganize"),
    },
)
_row(
    "shuffle",
    {
        "one-to-one": (True, "shuffle"),
        "one-to-many": (False, "one-to-many"),
        "many-to-many": (False, "many-to-many"),
        "reorganize": (True, "reorganize"),
        "shuffle": (True, "shuffle"),
    },
)


def mapping(operator: Operator) -> Mapping | None:
    """The type of an operator; None for those outside the paper's table, which are not fused. An element-wise operator whose
    inputs broadcast is One-to-Many (footnote 1: the most complex of its pairs counts); single numbers are taken for parameters."""
    kind = operator.op_type
    if operator.domain or kind not in _ONE_TO_ONE:
        for found, kinds in (
            ("one-to-many", _ONE_TO_MANY),
            ("many-to-many", _MANY_TO_MANY),
            ("reorganize", _REORGANIZE),
            ("shuffle", _SHUFFLE),
        ):
            if not operator.domain and kind in kinds:
                return found  # type: ignore[return-value]
        return None
    if kind in ("Concat", "Slice", "Split", "Pad"):
        return "one-to-one"
    size = max(describe(value).elements for value in operator.outputs)
    tensors = [describe(value).elements for value in operator.inputs]
    return "one-to-many" if kind != "BatchNormalization" and any(1 < n < size for n in tensors) else "one-to-one"


def verdict(first: Mapping | None, second: Mapping | None) -> Literal["fuse", "measure", "never"]:
    """What the paper's table says of a pair; of what is outside of it, nothing is fused."""
    found = None if first is None or second is None else _FUSED.get((first, second))
    return "never" if found is None else "fuse" if found[0] else "measure"


class _Plan:
    def __init__(self, graph: Graph, yellow: bool) -> None:
        self.graph, self.yellow = graph, yellow
        self.types = [mapping(operator) for operator in graph.operators]
        self.group = list(range(len(graph)))
        """Of every operator: the number of the one that its block began with."""
        self.after = [
            sorted({reader for value in operator.outputs for reader in graph.readers(value)})
            for operator in graph.operators
        ]
        self.before: list[list[int]] = [[] for _ in graph.operators]
        for number, readers in enumerate(self.after):
            for reader in readers:
                self.before[reader].append(number)

    def run(self) -> list[int]:
        pool = set(range(len(self.graph)))

        def size(number: int) -> int:
            return sum(describe(value).bytes for value in self.graph.operators[number].outputs)

        for seed in sorted((n for n in pool if self.types[n] == "one-to-one"), key=lambda n: (size(n), n)):
            if seed not in pool:
                continue
            block, kind = {seed}, self.types[seed]
            assert kind is not None
            for down in (True, False):
                todo = list(self.after[seed] if down else self.before[seed])
                while todo:
                    other = todo.pop(0)
                    if other not in pool or other in block:
                        continue
                    fused = self._fused(kind, self.types[other], down)
                    if fused is None or not self._orderly(block, other):
                        continue
                    block.add(other)
                    self.group[other] = seed
                    kind = fused
                    todo += self.after[other] if down else self.before[other]
            pool -= block
        return self.group

    def _fused(self, block: Mapping, other: Mapping | None, down: bool) -> Mapping | None:
        if other is None:
            return None
        certain, kind = _FUSED.get((block, other) if down else (other, block), (False, None))
        return kind if certain or self.yellow else None

    def _orderly(self, block: set[int], other: int) -> bool:
        """Whether no path leads from the block out of it and back, through other blocks, once `other` belongs to it."""
        inside = block | {other}
        members: dict[int, list[int]] = {}
        for number, group in enumerate(self.group):
            members.setdefault(group, []).append(number)
        todo = [reader for number in inside for reader in self.after[number] if reader not in inside]
        seen: set[int] = set()
        while todo:
            number = todo.pop()
            group = self.group[number]
            if group in seen:
                continue
            seen.add(group)
            for member in members[group]:
                if member in inside:
                    continue
                for reader in self.after[member]:
                    if reader in inside:
                        return False
                    todo.append(reader)
        return True


def partition(graph: Graph, *, yellow: bool) -> list[int]:
    """The block of every operator, by number. With `yellow`, what the paper decides by measuring is fused."""
    return _Plan(graph, yellow).run()


def blocks(graph: Graph, *, yellow: bool) -> int:
    """How many fused layers the plan leaves of a graph."""
    return len(set(partition(graph, yellow=yellow)))
