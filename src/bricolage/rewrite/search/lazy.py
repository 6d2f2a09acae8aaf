"""Right sides whose constants are computed when somebody asks for their values: a search looks at thousands of weights that
it throws away."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from bricolage.graph.folding import constant_value, evaluate, is_known
from bricolage.graph.graph import describe
from bricolage.rewrite.builder import Builder, Names, detach
from bricolage.rewrite.search.fingerprint import CONSTANT, constant_key, node_key

_SMALL = 1024  # bytes; shapes, axes and scalars, which conditions look at, are computed at once
_LARGE = 64 << 20  # bytes; more is not folded


class LazyBuilder(Builder):
    """A builder whose large constants are expressions: equal ones are known to be equal, and computed only where needed. Whether
    they overflow shows when the rewrite is repeated by a `Builder`."""

    def __init__(self, opsets: Mapping[str, int], names: Names) -> None:
        super().__init__(opsets, names, fold=True)

    def _folded(self, node: ir.Node) -> tuple[ir.Value, ...] | None:
        infos = [describe(value) for value in node.outputs]
        if not all(info.static for info in infos) or all(info.bytes <= _SMALL for info in infos):
            return super()._folded(node)
        if any(info.bytes > _LARGE for info in infos):
            return None
        key = node_key(node, [0 if value is None else constant_key(value) for value in node.inputs], self._opsets)
        copy, opsets = _detached(node), dict(self._opsets)
        detach(node)
        values = []
        for index, info in enumerate(infos):
            assert info.dtype is not None
            tensor = ir.LazyTensor(
                _later(copy, opsets, index), dtype=info.dtype, shape=ir.Shape(info.sizes), cache=True
            )
            value = ir.Value(
                name=self.names.fresh("constant"),
                shape=ir.Shape(info.sizes),
                type=ir.TensorType(info.dtype),
                const_value=tensor,
            )
            value.meta[CONSTANT] = hash((key, index))
            self.constants.append(value)
            values.append(value)
        return tuple(values)


def _detached(node: ir.Node) -> ir.Node:
    """The operator on copies of its constants, so that these do not count it as a reader."""
    inputs = [
        None if value is None else ir.Value(name=value.name, type=value.type, const_value=value.const_value)
        for value in node.inputs
    ]
    copy = ir.Node(
        node.domain, node.op_type, inputs, list(node.attributes.values()), num_outputs=len(node.outputs), name=node.name
    )
    for own, value in zip(copy.outputs, node.outputs, strict=True):
        own.name = value.name
    return copy


class _later:
    """Computes one output of an operator on constants when it is called."""

    def __init__(self, node: ir.Node, opsets: Mapping[str, int], index: int) -> None:
        self._node, self._opsets, self._index = node, opsets, index

    def __call__(self) -> ir.TensorProtocol:
        assert all(value is None or is_known(value) for value in self._node.inputs)
        results = evaluate(self._node, self._opsets)
        if results is None:
            raise ValueError(f"{self._node.op_type} of constants cannot be computed")
        tensor = constant_value("", np.asarray(results[self._index])).const_value
        assert tensor is not None
        return tensor
