"""`Region`: a set of operators of a graph, held as a bit-set over their numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import onnx_ir as ir

from bricolage.work import bits as bitset
from bricolage.work.regions import components, is_convex

if TYPE_CHECKING:
    from bricolage.graph.graph import Graph, Operator


@dataclass(frozen=True)
class Region:
    """Operators of `graph` whose numbers are set in `bits`. Two regions of one graph are equal when their bits are."""

    graph: Graph = field(repr=False)
    bits: int

    def __len__(self) -> int:
        return self.bits.bit_count()

    def __contains__(self, number: int) -> bool:
        return bool(self.bits >> number & 1)

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """Numbers of its operators, ascending."""
        return tuple(bitset.members(self.bits))

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """The operators in topological order."""
        return tuple(self.graph.operators[number] for number in self.numbers)

    @cached_property
    def inputs(self) -> tuple[ir.Value, ...]:
        """Values read from outside, without constants, in order of first use."""
        seen: dict[ir.Value, None] = {}
        for operator in self.operators:
            for value in operator.inputs:
                producer = self.graph.producer(value)
                if (producer is None or producer not in self) and not self.graph.is_constant(value):
                    seen.setdefault(value)
        return tuple(seen)

    @cached_property
    def constants(self) -> tuple[ir.Value, ...]:
        """Initializers read, in order of first use."""
        seen: dict[ir.Value, None] = {}
        for operator in self.operators:
            for value in operator.inputs:
                if self.graph.is_constant(value):
                    seen.setdefault(value)
        return tuple(seen)

    @cached_property
    def outputs(self) -> tuple[ir.Value, ...]:
        """Values computed here that are read outside or leave the graph, by operator number."""
        return tuple(
            value
            for operator in self.operators
            for value in operator.outputs
            if self.graph.is_output(value) or any(reader not in self for reader in self.graph.readers(value))
        )

    @cached_property
    def convex(self) -> bool:
        """Whether no path leaves the region and comes back. Linear in the operators between its lowest and highest."""
        return is_convex(self.graph.predecessors, self.bits)

    @cached_property
    def connected(self) -> bool:
        """Whether the operators hang together, seen without direction; an empty region does not."""
        return len(components(self.graph.predecessors, self.graph.successors, self.bits)) == 1

    def __or__(self, other: Region) -> Region:
        return Region(self.graph, self.bits | other.bits)

    def __str__(self) -> str:
        kinds = [operator.op_type for operator in self.operators]
        shown = "+".join(kinds[:4]) + (f"+{len(kinds) - 4} more" if len(kinds) > 4 else "")
        return f"{{{shown}}}"
