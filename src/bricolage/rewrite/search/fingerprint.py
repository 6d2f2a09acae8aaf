"""Fingerprints of graphs, to recognise one that was met before by another order of rewrites.

A value's number is made from the operator, its attributes and the numbers of what it reads; a graph's is the sum over its
operators and its outputs (TASO's hash, section 5 of its code's `Graph::hash`, with structure in the place of pointers). Names do
not count, nor does the order of independent operators. Two graphs with one number have the same operators on the same terms.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from bricolage.graph.constant_folding import is_known
from bricolage.graph.graph import Operator, find_captured
from bricolage.graph.identity import by_value, contents, label
from bricolage.rewrite.engine.proposal import RewriteProposal

CONSTANT = "bricolage.constant"
"""Under which a value's meta data keep the number of a constant that is an expression."""
_LABEL = "bricolage.label"
_MASK = (1 << 64) - 1


def hash_text(text: str | bytes) -> int:
    """64 bits that depend on a text alone."""
    raw = text.encode() if isinstance(text, str) else text
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "little")


def constant_key(value: ir.Value) -> int:
    """Equal for constants that are equal: those that count by value by it, others by name or by the expression they are."""
    key = value.meta.get(CONSTANT)
    if not isinstance(key, int):
        tensor = value.const_value
        if tensor is not None and tensor.dtype != ir.DataType.STRING and by_value(tensor):
            key = contents_key(tensor)
        else:
            key = hash_text(f"constant {value.name}")
        value.meta[CONSTANT] = key
    return key


def contents_key(tensor: ir.TensorProtocol) -> int:
    """Equal for tensors of equal type, shape and contents."""
    return hash((hash_text(f"{tensor.dtype}{tensor.shape}"), hash_text(contents(tensor))))


def node_key(node: ir.Node, sources: Sequence[int], opsets: Mapping[str, int]) -> int:
    """The number of an operator on inputs with numbers; what its bodies capture follows the inputs."""
    label_key = node.meta.get(_LABEL)
    if not isinstance(label_key, int):
        outputs = "".join("!" if value.name else "-" for value in node.outputs)
        label_key = hash_text(label(Operator(0, node, opsets.get(node.domain, 1))) + outputs)
        node.meta[_LABEL] = label_key
    return hash((label_key, *sources))


class Fingerprint:
    """The number of a graph in topological order, and cheaply those of its neighbours."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._values: dict[ir.Value, int] = {value: hash_text(f"input {value.name}") for value in graph.inputs}
        self._nodes: dict[ir.Node, int] = {}
        self._place: dict[ir.Node, int] = {}
        for place, node in enumerate(graph):
            self._place[node] = place
            self._nodes[node] = self._add(node, self._values)
        self.number = (sum(self._nodes.values()) + self._outputs({})) & _MASK

    def after(self, proposal: RewriteProposal) -> int:
        """The number of the graph that a proposal would make: only what lies behind the replaced values is hashed again."""
        values: dict[ir.Value, int] = {}
        total = self.number - self._outputs({})
        for node in proposal.new:
            total += self._add(node, values)
        waiting: list[tuple[int, ir.Node]] = []
        queued = set(proposal.gone)
        total -= sum(self._nodes[node] for node in proposal.gone)

        def change(value: ir.Value, found: int) -> None:
            values[value] = found
            for usage in value.uses():
                if usage.node in self._place and usage.node not in queued:
                    queued.add(usage.node)
                    heapq.heappush(waiting, (self._place[usage.node], usage.node))

        for old, new in proposal.pairs:
            change(old, self._of(new, values))
        while waiting:
            _, node = heapq.heappop(waiting)
            key = node_key(node, self._sources(node, values), self._graph.opset_imports)
            total += key - self._nodes[node]
            for index, value in enumerate(node.outputs):
                change(value, hash((key, index)))
        return (total + self._outputs(values)) & _MASK

    def _add(self, node: ir.Node, values: dict[ir.Value, int]) -> int:
        key = node_key(node, self._sources(node, values), self._graph.opset_imports)
        for index, value in enumerate(node.outputs):
            values[value] = hash((key, index))
        return key

    def _sources(self, node: ir.Node, values: Mapping[ir.Value, int]) -> list[int]:
        return [0 if value is None else self._of(value, values) for value in (*node.inputs, *find_captured(node))]

    def _of(self, value: ir.Value, values: Mapping[ir.Value, int]) -> int:
        number = values.get(value)
        if number is None:
            number = self._values.get(value)
        return constant_key(value) if number is None and is_known(value) else number or 0

    def _outputs(self, values: Mapping[ir.Value, int]) -> int:
        return sum(hash((index, self._of(value, values))) for index, value in enumerate(self._graph.outputs))
