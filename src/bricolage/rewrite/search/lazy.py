"""Right sides whose constants are computed when their values are asked for: a search looks at thousands of weights that
it throws away."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from bricolage.graph.constant_folding import constant_value, evaluate_constant
from bricolage.graph.graph import describe
from bricolage.graph.identity import by_value
from bricolage.rewrite.builder import GraphBuilder, Names, detach
from bricolage.rewrite.rule import MatchFailure
from bricolage.rewrite.search.fingerprint import CONSTANT, constant_key, contents_key, node_key

_LARGE = 64 << 20  # bytes; more is not folded
_EXPRESSION = "bricolage.expression"


@dataclass(eq=False)
class Expression:
    """One output of an operator on constants. The operator lies in no graph and reads copies of its constants."""

    node: ir.Node
    output: int
    opsets: Mapping[str, int]
    _value: ir.TensorProtocol | None = None
    _leaves: list[ir.LazyTensor] | None = None

    def __call__(self) -> ir.TensorProtocol:
        """Its value. Watchers of its constants (see `Watch`) are told every time.

        Raises:
            MatchFailure: the reference lacks the operator.
        """
        if self._value is None:
            results = evaluate_constant(self.node, self.opsets)
            if results is None:
                raise MatchFailure(f"{self.node.op_type} of constants cannot be computed")
            self._value = constant_value("", np.asarray(results[self.output])).const_value
            assert self._value is not None
        else:
            for tensor in self._given():
                tensor.numpy()
        return self._value

    def _given(self) -> list[ir.LazyTensor]:
        """Constants of the graph that it is computed from, through however many expressions, each once."""
        if self._leaves is None:
            leaves: dict[int, ir.LazyTensor] = {}
            waiting, seen = [self.node], {self.node}
            while waiting:
                for value in waiting.pop().inputs:
                    tensor = value.const_value if value is not None else None
                    if not isinstance(tensor, ir.LazyTensor):
                        continue
                    if not isinstance(tensor.raw, Expression):
                        leaves[id(tensor)] = tensor
                    elif tensor.raw.node not in seen:
                        seen.add(tensor.raw.node)
                        waiting.append(tensor.raw.node)
            self._leaves = list(leaves.values())
        return self._leaves


class Watch:
    """Remembers whether the numbers of a weight were read."""

    def __init__(self) -> None:
        self.looked = False

    def over(self, value: ir.Value) -> None:
        """Watches a constant, unless it counts by value in the identity of the graph anyway."""
        tensor = value.const_value
        if tensor is None or tensor.dtype == ir.DataType.STRING or by_value(tensor):
            return
        value.meta[CONSTANT] = constant_key(value)

        def look() -> ir.TensorProtocol:
            self.looked = True
            return tensor

        shape = ir.Shape(tensor.shape.numpy())
        value.const_value = ir.LazyTensor(look, dtype=tensor.dtype, shape=shape, cache=False, name=tensor.name)


def expression(value: ir.Value) -> Expression | None:
    """How a constant is computed from others; None where it is given."""
    cached = value.meta.get(_EXPRESSION)
    return cached if isinstance(cached, Expression) else None


class LazyBuilder(GraphBuilder):
    """A builder whose constants are expressions, so that equal ones are known to be equal, and none is computed before it is looked
    at. Whether they overflow shows when the rewrite is replayed by a `GraphBuilder`. Only what is made from shapes, axes and
    scalars is computed at once."""

    def __init__(self, opsets: Mapping[str, int], names: Names) -> None:
        super().__init__(opsets, names, fold=True)

    def _folded(self, node: ir.Node) -> tuple[ir.Value, ...] | None:
        tensors = [value.const_value for value in node.inputs if value is not None]
        infos = [describe(value) for value in node.outputs]
        if not all(info.static for info in infos) or all(t is not None and by_value(t) for t in tensors):
            return super()._folded(node)
        if any(info.bytes > _LARGE for info in infos):
            return None
        key = node_key(node, [0 if value is None else constant_key(value) for value in node.inputs], self._opsets)
        copy, opsets = _copy_detached_node(node), dict(self._opsets)
        detach(node)
        values = [self._lazy(Expression(copy, index, opsets), hash((key, index))) for index in range(len(infos))]
        self.constants += values
        return tuple(values)

    def _constant(self, array: np.ndarray) -> ir.Value:
        """A constant that is computed at once counts by its contents: its name is given again once this builder is discarded."""
        value = super()._constant(array)
        assert value.const_value is not None
        value.meta[CONSTANT] = contents_key(value.const_value)
        return value

    def _lazy(self, computed: Expression, key: int) -> ir.Value:
        info = describe(computed.node.outputs[computed.output])
        assert info.dtype is not None
        value = ir.Value(
            name=self.names.fresh("constant"),
            shape=ir.Shape(info.sizes),
            type=ir.TensorType(info.dtype),
            const_value=ir.LazyTensor(computed, dtype=info.dtype, shape=ir.Shape(info.sizes), cache=False),
        )
        value.meta[CONSTANT], value.meta[_EXPRESSION] = key, computed
        return value


def _copy_detached_node(node: ir.Node) -> ir.Node:
    """The operator on copies of its constants, so that these do not count it as a reader, under names that are surely different."""
    inputs: list[ir.Value | None] = []
    for index, value in enumerate(node.inputs):
        copy = None
        if value is not None:
            copy = ir.Value(name=f"input{index}", type=value.type, shape=value.shape, const_value=value.const_value)
            copy.meta.update(value.meta)
        inputs.append(copy)
    node_copy = ir.Node(
        node.domain, node.op_type, inputs, list(node.attributes.values()), num_outputs=len(node.outputs), name=node.name
    )
    for output, value in zip(node_copy.outputs, node.outputs, strict=True):
        output.name, output.type, output.shape = value.name, value.type, value.shape
    return node_copy
