"""Canonical identity of regions: two equal regions, in one model or two, get the same key and share one measurement.

Equal means: the same operators, attributes, wiring, types, shapes and outputs. Large constants count by type and shape
only, since their values do not change the time; scalars and small integers (shapes, axes) count by value, since they
do.
"""

from __future__ import annotations

import hashlib
import heapq

import onnx_ir as ir

from bricolage.graph.graph import Graph, Operator, Region, describe

_BY_VALUE_BYTES = 1024


def _digest(*parts: object) -> str:
    return hashlib.sha256("\x1f".join(map(str, parts)).encode()).hexdigest()[:24]


class Identities:
    """Keys of regions of one graph; the labels of operators are computed once."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._labels: dict[int, str] = {}
        self._constants: dict[ir.Value, str] = {}

    def key(self, region: Region) -> str:
        """Hash of the region's canonical text: 32 hexadecimal digits."""
        return hashlib.sha256(self.text(region).encode()).hexdigest()[:32]

    def text(self, region: Region) -> str:
        """The region written down in canonical order, one operator a line. Equal texts mean isomorphic regions."""
        order = self.order(region)
        graph = self._graph
        names: dict[ir.Value, str] = {}
        outputs = set(region.outputs)
        lines: list[str] = []
        for number in order:
            operator = graph.operators[number]
            reads: list[str] = []
            for value in (*operator.node.inputs, *operator.inputs[_own(operator) :]):
                if value is None:
                    reads.append("-")
                elif graph.is_constant(value):
                    reads.append(self._constant(value))
                else:
                    if value not in names:
                        names[value] = f"%{len(names)}"
                        reads.append(f"{names[value]}={_type(value)}")  # an input of the region, seen first
                        continue
                    reads.append(names[value])
            writes: list[str] = []
            for value in operator.node.outputs:
                names[value] = f"%{len(names)}"
                mark = "!" if value in outputs else ""
                writes.append(f"{names[value]}{mark}={_type(value)}" if value.name else "-")
            lines.append(f"{self._label(operator)}({', '.join(reads)}) -> {', '.join(writes)}")
        return "\n".join(lines)

    def order(self, region: Region) -> list[int]:
        """A topological order that depends on structure alone, so that regions of one key correspond number by number:
        Kahn's algorithm, ties broken by structural hashes of everything before and after an operator, then by where its
        producers stand."""
        graph = self._graph
        before: dict[int, str] = {}
        for number in region.numbers:
            operator = graph.operators[number]
            parts: list[str] = [self._label(operator)]
            for value in operator.inputs:
                producer = graph.producer(value)
                if producer is not None and producer in before:
                    parts.append(f"{before[producer]}.{value.index()}")
                else:
                    parts.append(self._constant(value) if graph.is_constant(value) else _type(value))
            before[number] = _digest(*parts)
        outputs = set(region.outputs)
        after: dict[int, str] = {}
        for number in reversed(region.numbers):
            operator = graph.operators[number]
            uses = sorted(
                f"{value.index()}>{after[reader]}@{graph.operators[reader].inputs.index(value)}"
                for value in operator.outputs
                for reader in graph.readers(value)
                if reader in after
            )
            leaving = [str(value.index()) for value in operator.outputs if value in outputs]
            after[number] = _digest(before[number], "out", *leaving, "uses", *uses)
        waiting = {n: sum(p in region for p in graph.predecessors[n]) for n in region.numbers}
        ready: list[tuple[str, list[int], int]] = [(after[n], [], n) for n, count in waiting.items() if count == 0]
        heapq.heapify(ready)
        order: list[int] = []
        place: dict[int, int] = {}
        while ready:
            _, _, number = heapq.heappop(ready)
            place[number] = len(order)
            order.append(number)
            for later in graph.successors[number]:
                if later in waiting:
                    waiting[later] -= 1
                    if waiting[later] == 0:
                        sources = [place[p] for p in graph.predecessors[later] if p in place]
                        heapq.heappush(ready, (after[later], sorted(sources), later))
        return order

    def _label(self, operator: Operator) -> str:
        operator_label = self._labels.get(operator.number)
        if operator_label is None:
            operator_label = label(operator)
            self._labels[operator.number] = operator_label
        return operator_label

    def _constant(self, value: ir.Value) -> str:
        text = self._constants.get(value)
        if text is None:
            text = self._constants[value] = _constant(value)
        return text


def operator_key(operator: Operator) -> str:
    """Identity of a single operator, wherever it lies: type, version, attributes, types and shapes of what it reads
    and writes, and the small constants among them by value. Equal keys take equal time."""
    reads = ["-" if v is None else _type(v) if v.const_value is None else _constant(v) for v in operator.node.inputs]
    writes = [_type(value) if value.name else "-" for value in operator.node.outputs]
    return f"{label(operator)}({', '.join(reads)}) -> {', '.join(writes)}"


def _constant(value: ir.Value) -> str:
    tensor = value.const_value
    if tensor is None or not by_value(tensor):
        return f"const {_type(value)}"
    return f"const {_type(value)} {hashlib.sha256(contents(tensor)).hexdigest()[:16]}"


def contents(tensor: ir.TensorProtocol) -> bytes:
    """The elements of a tensor as bytes, those of strings included: equal for equal elements of one type and shape."""
    if tensor.dtype == ir.DataType.STRING:
        return repr(tensor.numpy().tolist()).encode()
    return tensor.tobytes()


def label(operator: Operator) -> str:
    """Type, version and attributes of an operator."""
    attributes = ",".join(
        f"{name}={_attribute(attribute)}" for name, attribute in sorted(operator.node.attributes.items())
    )
    return f"{operator.domain}:{operator.op_type}:{operator.version}[{attributes}]"


def by_value(tensor: ir.TensorProtocol) -> bool:
    """Whether a constant counts by its value: scalars, and small ones that hold no floats."""
    return tensor.nbytes <= _BY_VALUE_BYTES and (tensor.size == 1 or not tensor.dtype.is_floating_point())


def _own(operator: Operator) -> int:
    """How many of `operator.inputs` are the node's own (the rest are captured by its sub-graphs)."""
    return len({value for value in operator.node.inputs if value is not None})


def _type(value: ir.Value) -> str:
    info = describe(value)
    dtype = info.dtype.name if info.dtype is not None else str(value.type)
    return f"{dtype}{list(info.shape) if info.shape is not None else '?'}"


def _attribute(attribute: ir.Attr) -> str:
    if attribute.type in (ir.AttributeType.TENSOR, ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
        return hashlib.sha256(ir.to_proto(attribute).SerializeToString(deterministic=True)).hexdigest()[:16]
    return str(attribute.value)
