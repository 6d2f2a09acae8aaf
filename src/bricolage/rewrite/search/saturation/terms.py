"""ONNX operators as e-nodes.

An operator with its attributes, and which of its inputs and outputs are present, is a key; its children are the classes of the
inputs that are present. An operator of several outputs makes a class that holds no tensor, from which `OutputProjection` nodes
project one each. Inputs of the part and constants are leaves. A class knows type and shape of its tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import onnx_ir as ir

from bricolage.device.tensor_form import Dimension
from bricolage.egraph.egraph import EGraph, ENode
from bricolage.graph.constant_folding import is_known
from bricolage.graph.graph import Operator, TensorInfo, describe
from bricolage.graph.identity import label
from bricolage.graph.operator_kinds import RANDOM
from bricolage.rewrite.search.fingerprint import constant_key


@dataclass(frozen=True)
class Operation:
    """What an operator is, without what it reads. `text` has type, version and attributes, and for an operator that is left alone
    its name, so that it equals no other."""

    text: str
    inputs: tuple[bool, ...]
    outputs: tuple[bool, ...]
    node: ir.Node = field(compare=False, repr=False)
    """One such operator, for its attributes."""

    @property
    def op_type(self) -> str:
        """Type in the default domain; empty for operators of others, which no rule knows."""
        return "" if self.node.domain else self.node.op_type


@dataclass(frozen=True)
class InputLeaf:
    """A value that the part is given."""

    name: str


@dataclass(frozen=True)
class ConstantLeaf:
    """A weight or another value that is known."""

    key: int


@dataclass(frozen=True)
class OutputProjection:
    """One output of an operator of several."""

    index: int


Data: TypeAlias = TensorInfo | None
"""Of a class; None for operators of several outputs. The name in it is empty."""
Terms: TypeAlias = EGraph[Data]

UNKNOWN = TensorInfo("", None, None)


class ShapeAnalysis:
    """The lattice of what is known of a tensor. Data are given before a node is added, since inference is not the e-graph's."""

    def __init__(self) -> None:
        self.given: Data = UNKNOWN

    def make(self, _egraph: Terms, _node: ENode, /) -> Data:
        """The type and shape that were given for the node that is being added; see `Analysis`."""
        given_type, self.given = self.given, UNKNOWN
        return given_type

    def join(self, left: Data, right: Data, /) -> Data:
        """What both classes say, the more precise of each dimension; see `Analysis`."""
        if left is None or right is None:
            return None
        return TensorInfo("", left.dtype if left.dtype is not None else right.dtype, _shape(left.shape, right.shape))


def _shape(left: tuple[Dimension, ...] | None, right: tuple[Dimension, ...] | None) -> tuple[Dimension, ...] | None:
    if left is None or right is None or len(left) != len(right):
        return left if right is None else right if left is None else min(left, right, key=len)
    return tuple(_dimension(a, b) for a, b in zip(left, right, strict=True))


def _dimension(left: Dimension, right: Dimension) -> Dimension:
    """A size before a name before nothing."""
    return min(left, right, key=lambda each: (isinstance(each, str), each == "?", each))


class Encoder:
    """An e-graph of ONNX operators, and the constants in it."""

    def __init__(self, opsets: Mapping[str, int]) -> None:
        self.opsets = dict(opsets)
        self._shapes = ShapeAnalysis()
        self.egraph: Terms = EGraph(self._shapes)
        self.constants: dict[ConstantLeaf, ir.Value] = {}

    def leaf(self, value: ir.Value) -> int:
        """The class of an input or a constant."""
        if not is_known(value):
            return self._add(InputLeaf(value.name or ""), (), _info(value))
        key = ConstantLeaf(constant_key(value))
        self.constants.setdefault(key, value)
        return self._add(key, (), _info(value))

    def nodes(self, nodes: Sequence[ir.Node], classes: dict[ir.Value, int]) -> None:
        """Adds operators in topological order; `classes` has what they read, or learns it as leaves, and what they compute."""
        for node in nodes:
            sources = [value for value in node.inputs if value is not None]
            for value in sources:
                if value not in classes:
                    classes[value] = self.leaf(value)
            self._operator(node, tuple(classes[value] for value in sources), classes)

    def _operator(self, node: ir.Node, children: tuple[int, ...], classes: dict[ir.Value, int]) -> None:
        operation = self.operation(node)
        if len(node.outputs) == 1:
            (value,) = node.outputs
            classes[value] = self._add(operation, children, _info(value))
            return
        whole = self._add(operation, children, None)
        for index, value in enumerate(node.outputs):
            if value.name:
                classes[value] = self._add(OutputProjection(index), (whole,), _info(value))

    def operation(self, node: ir.Node) -> Operation:
        """The key of an operator."""
        text = label(Operator(0, node, self.opsets.get(node.domain, 1)))
        if node.domain or node.op_type in RANDOM:
            text = f"{text} {node.name}"
        present = tuple(value is not None for value in node.inputs)
        return Operation(text, present, tuple(bool(value.name) for value in node.outputs), node)

    def _add(
        self, operator: Operation | InputLeaf | ConstantLeaf | OutputProjection, children: tuple[int, ...], data: Data
    ) -> int:
        self._shapes.given = data
        eclass = self.egraph.add(operator, children)
        self._shapes.given = UNKNOWN
        return eclass


def _info(value: ir.Value) -> TensorInfo:
    info = describe(value)
    return TensorInfo("", info.dtype, info.shape)


def fits(left: Data, right: Data) -> bool:
    """Whether two tensors may be one: equal types, and no two sizes that differ."""
    if left is None or right is None or left.dtype != right.dtype:
        return False
    if left.shape is None or right.shape is None:
        return True
    return len(left.shape) == len(right.shape) and all(
        a == b or isinstance(a, str) or isinstance(b, str) for a, b in zip(left.shape, right.shape, strict=True)
    )
