"""The work graph: numbered operators with their work, and the tensors between them.

It is all that the searches see, whatever front end it comes from.

Its builder numbers the operators in a depth-first topological order (a chain is
finished before its sibling begins): the searches are exact under any topological numbering, but only depth-first
numbering keeps their state spaces linear in parallel chains.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from bricolage.work.bits import members
from bricolage.work.region_algebra import connected_parts, is_convex

GRAPH_INPUT = -1
"""Producer of a tensor that comes from outside the graph."""


@dataclass(frozen=True)
class WorkOperator:
    """One operator: its `flops`, the `bytes` it reads and writes; `op_type` only serves messages."""

    name: str
    flops: float = 0.0
    bytes: int = 0
    op_type: str = ""


@dataclass(frozen=True)
class WorkTensor:
    """One tensor of `bytes` bytes. `producer` is an operator's number, or `GRAPH_INPUT`."""

    name: str
    producer: int
    consumers: tuple[int, ...]
    bytes: int = 0
    is_output: bool = False


@dataclass(frozen=True)
class WorkGraph:
    """Operators 0..n-1 in topological order and the tensors between them.

    Raises ValueError when an edge does not lead from a lower to a higher number, or names no operator.
    """

    operators: tuple[WorkOperator, ...]
    tensors: tuple[WorkTensor, ...]

    def __post_init__(self) -> None:
        for tensor in self.tensors:
            if tensor.producer < GRAPH_INPUT or any(
                not tensor.producer < consumer < len(self.operators) for consumer in tensor.consumers
            ):
                raise ValueError(f"tensor '{tensor.name}' does not lead from a lower to a higher operator number")

    def __len__(self) -> int:
        return len(self.operators)

    @cached_property
    def everything(self) -> int:
        """The region of all operators."""
        return (1 << len(self.operators)) - 1

    @cached_property
    def reads(self) -> tuple[tuple[int, ...], ...]:
        """Per operator the indices of the tensors that it reads, each once, ascending."""
        read_indices: list[set[int]] = [set() for _ in self.operators]
        for index, tensor in enumerate(self.tensors):
            for consumer in tensor.consumers:
                read_indices[consumer].add(index)
        return tuple(tuple(sorted(indices)) for indices in read_indices)

    @cached_property
    def writes(self) -> tuple[tuple[int, ...], ...]:
        """Per operator the indices of the tensors that it produces."""
        written_indices: list[list[int]] = [[] for _ in self.operators]
        for index, tensor in enumerate(self.tensors):
            if tensor.producer != GRAPH_INPUT:
                written_indices[tensor.producer].append(index)
        return tuple(tuple(indices) for indices in written_indices)

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """Per operator the operators that it reads from, each once, ascending."""
        return tuple(
            tuple(sorted({self.tensors[t].producer for t in tensors} - {GRAPH_INPUT})) for tensors in self.reads
        )

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """Per operator the operators that read from it, each once, ascending."""
        readers: list[list[int]] = [[] for _ in self.operators]
        for number, producers in enumerate(self.predecessors):
            for producer in producers:
                readers[producer].append(number)
        return tuple(tuple(numbers) for numbers in readers)

    def inputs_of(self, region: int) -> tuple[int, ...]:
        """Indices of the tensors that `region` reads and does not produce, graph inputs included, ascending."""
        inside = set(members(region))
        return tuple(sorted({t for number in inside for t in self.reads[number] if self._producer(t) not in inside}))

    def is_convex(self, region: int) -> bool:
        """Whether no path leaves `region` and comes back."""
        return is_convex(self.predecessors, region)

    def is_connected(self, region: int) -> bool:
        """Whether `region` hangs together through tensors that it produces itself, directions ignored."""
        return len(self.components(region)) <= 1

    def components(self, region: int) -> tuple[int, ...]:
        """`region` split into its connected parts, by their lowest operators."""
        return connected_parts(self.predecessors, self.successors, region)

    def _producer(self, tensor: int) -> int:
        return self.tensors[tensor].producer
