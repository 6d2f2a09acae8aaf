"""`Graph`: an `onnx_ir` model whose operators are numbered once, depth-first. `Region`: a set of them, held as a bit-set over their
numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import onnx_ir as ir

from bricolage.device.tensor_form import Dimension, Shape
from bricolage.errors import InvalidGraph
from bricolage.work import bits as bitset
from bricolage.work.region_algebra import connected_parts, is_convex


@dataclass(frozen=True)
class TensorInfo:
    """Name, element type and shape of a tensor. A dimension is a size, or a name where it is symbolic.

    `shape` is None when even the rank is unknown; `dtype` is None for sequences, optionals and maps.
    """

    name: str
    dtype: ir.DataType | None
    shape: Shape

    @property
    def static(self) -> bool:
        """Whether a buffer can be allocated before running."""
        return (
            self.dtype is not None
            and self.dtype != ir.DataType.STRING
            and self.shape is not None
            and all(isinstance(dimension, int) for dimension in self.shape)
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape of a static tensor."""
        if not self.static or self.shape is None:
            raise InvalidGraph(reason=f"tensor '{self.name}' has no static shape")
        return tuple(int(dimension) for dimension in self.shape)

    @property
    def elements(self) -> int:
        """Number of elements; the shape must be static."""
        return math.prod(self.sizes)

    @property
    def bytes(self) -> int:
        """Size of a static tensor; 0 when unknown."""
        if not self.static or self.dtype is None:
            return 0
        return math.ceil(self.elements * self.dtype.bitwidth / 8)

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The numpy type of the elements (ml_dtypes for bfloat16 and the 8-bit floats)."""
        if self.dtype is None:
            raise InvalidGraph(reason=f"'{self.name}' is not a tensor")
        return np.dtype(self.dtype.numpy())

    def __str__(self) -> str:
        shape = "?" if self.shape is None else "×".join(map(str, self.shape)) or "scalar"
        return f"{self.name}: {self.dtype.name.lower() if self.dtype else 'non-tensor'} {shape}"


def describe(value: ir.Value) -> TensorInfo:
    """What is known of an `onnx_ir` value."""
    dtype = value.dtype if isinstance(value.type, ir.TensorType) or value.type is None else None
    shape: tuple[Dimension, ...] | None = None
    if value.shape is not None:
        shape = tuple([dim if isinstance(dim, int) else str(dim.value or "?") for dim in value.shape.dims])
    elif value.const_value is not None:
        shape = tuple(int(dimension) for dimension in value.const_value.shape.numpy())
    if dtype is None and value.type is None and value.const_value is not None:
        dtype = value.const_value.dtype
    return TensorInfo(value.name or "", dtype, shape)


@dataclass(frozen=True, eq=False)
class Operator:
    """One node of the graph with its number. Names of values are unique in a graph, so they identify tensors."""

    number: int
    node: ir.Node = field(repr=False)
    version: int
    """Opset version of the operator's domain in this model."""

    @property
    def name(self) -> str:
        """The name in the model, or one made of type and number."""
        return self.node.name or f"{self.node.op_type}_{self.number}"

    @property
    def op_type(self) -> str:
        """Name of the operator's type."""
        return self.node.op_type

    @property
    def domain(self) -> str:
        """Domain of the operator's type; "" is ONNX's own."""
        return self.node.domain

    @cached_property
    def inputs(self) -> tuple[ir.Value, ...]:
        """Values read: the node's inputs, then what its sub-graphs capture, each once."""
        seen: dict[ir.Value, None] = {value: None for value in self.node.inputs if value is not None}
        for value in find_captured(self.node):
            seen.setdefault(value)
        return tuple(seen)

    @property
    def outputs(self) -> tuple[ir.Value, ...]:
        """Values that it computes, without optional ones that the model leaves out."""
        return tuple(value for value in self.node.outputs if value.name)

    def attribute(self, name: str, default: object = None) -> object:
        """Value of an attribute, or `default` where it is absent."""
        attribute = self.node.attributes.get(name)
        return default if attribute is None else attribute.value

    def integers(self, name: str) -> tuple[int, ...]:
        """Of an attribute that is a list of them; none where it is absent."""
        attribute = self.node.attributes.get(name)
        return () if attribute is None else tuple(attribute.as_ints())


def bodies(node: ir.Node) -> list[ir.Graph]:
    """The sub-graphs of a node (If, Loop, Scan)."""
    graphs: list[ir.Graph] = []
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            graphs.append(attribute.as_graph())
        elif attribute.type == ir.AttributeType.GRAPHS:
            graphs.extend(attribute.as_graphs())
    return graphs


def with_bodies(node: ir.Node) -> Iterator[ir.Node]:
    """A node, and all those in its sub-graphs."""
    yield node
    for body in bodies(node):
        for inner in body:
            yield from with_bodies(inner)


def find_captured(node: ir.Node) -> Iterator[ir.Value]:
    """Values of enclosing scopes that the sub-graphs of a node read."""
    for body in bodies(node):
        yield from captured_by(body)


def captured_by(body: ir.Graph) -> Iterator[ir.Value]:
    """Values of enclosing scopes that a sub-graph reads."""
    inner_values: set[ir.Value] = set(body.inputs) | set(body.initializers.values())
    for inner in body:
        for value in (*inner.inputs, *find_captured(inner)):
            if value is not None and value not in inner_values:
                yield value
        inner_values.update(inner.outputs)
    for value in body.outputs:
        if value not in inner_values:
            yield value


class Graph:
    """An operator graph. Operators are numbered depth-first from the outputs, so every edge goes from a lower to a
    higher number and each chain gets consecutive numbers (which keeps the exact placement linear in parallel chains).

    Operators from which no output can be reached are left out. The model is taken as it is: see
    `bricolage.graph.prepare` for binding shapes, inferring types and folding constants first.
    """

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        graph = model.graph
        self.opsets: Mapping[str, int] = dict(graph.opset_imports)
        order = _depth_first(graph)
        self.operators = tuple(Operator(i, node, self.opsets.get(node.domain, 1)) for i, node in enumerate(order))
        number = {node: i for i, node in enumerate(order)}
        self.constants: Mapping[str, ir.Value] = dict(graph.initializers)
        constants = set(self.constants.values())
        self.inputs = tuple(describe(value) for value in graph.inputs if value not in constants)
        self.outputs = tuple(describe(value) for value in graph.outputs)
        self._output_values = set(graph.outputs)
        self._producer = {
            value: operator.number for operator in self.operators for value in operator.node.outputs if value.name
        }
        predecessors: list[list[int]] = []
        successors: list[list[int]] = [[] for _ in order]
        readers: dict[ir.Value, list[int]] = {}
        for operator in self.operators:
            before = sorted({self._producer[v] for v in operator.inputs if v in self._producer})
            predecessors.append(before)
            for earlier in before:
                successors[earlier].append(operator.number)
            for value in operator.inputs:
                readers.setdefault(value, []).append(operator.number)
        self.predecessors = tuple(map(tuple, predecessors))
        self.successors = tuple(map(tuple, successors))
        self._readers = {value: tuple(numbers) for value, numbers in readers.items()}
        self._number = number

    def __len__(self) -> int:
        return len(self.operators)

    @property
    def everything(self) -> Region:
        """The region of all operators."""
        return Region(self, (1 << len(self.operators)) - 1)

    def region(self, bits: int) -> Region:
        """The operators of a bit-set."""
        return Region(self, bits)

    def producer(self, value: ir.Value) -> int | None:
        """Number of the operator that computes a value; None for inputs and constants."""
        return self._producer.get(value)

    def readers(self, value: ir.Value) -> tuple[int, ...]:
        """Numbers of the operators that read a value, ascending."""
        return self._readers.get(value, ())

    def is_output(self, value: ir.Value) -> bool:
        """Whether the graph returns the value."""
        return value in self._output_values

    def is_constant(self, value: ir.Value) -> bool:
        """Whether the value is a weight."""
        return value.name in self.constants

    @cached_property
    def static(self) -> bool:
        """Whether every tensor has a shape and type known before running, so that regions can be bound to buffers."""
        return all(info.static for info in self.inputs) and all(
            describe(value).static for operator in self.operators for value in operator.outputs
        )


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
        return len(connected_parts(self.graph.predecessors, self.graph.successors, self.bits)) == 1

    def __or__(self, other: Region) -> Region:
        return Region(self.graph, self.bits | other.bits)

    def __str__(self) -> str:
        kinds = [operator.op_type for operator in self.operators]
        shown = "+".join(kinds[:4]) + (f"+{len(kinds) - 4} more" if len(kinds) > 4 else "")
        return f"{{{shown}}}"


def _depth_first(graph: ir.Graph) -> list[ir.Node]:
    """Nodes in post-order of a depth-first walk from the outputs (iterative: graphs are deeper than Python's stack).

    Raises:
        InvalidGraph: the graph has a cycle, or an output that nothing computes.
    """
    order: list[ir.Node] = []
    state: dict[ir.Node, int] = {}  # 1 while its inputs are being visited, 2 when numbered
    for output in graph.outputs:
        root = output.producer()
        if root is None:
            continue
        stack: list[tuple[ir.Node, Iterator[ir.Node]]] = []
        if root not in state:
            state[root] = 1
            stack.append((root, _feeding(root)))
        while stack:
            node, feeding = stack[-1]
            for before in feeding:
                if before not in state:
                    state[before] = 1
                    stack.append((before, _feeding(before)))
                    break
                if state[before] == 1:
                    raise InvalidGraph(reason=f"operator '{node.name}' depends on itself")
            else:
                state[node] = 2
                order.append(node)
                stack.pop()
    return order


def _feeding(node: ir.Node) -> Iterator[ir.Node]:
    for value in (*node.inputs, *find_captured(node)):
        if value is not None:
            producer = value.producer()
            if producer is not None and producer.graph is node.graph:
                yield producer
