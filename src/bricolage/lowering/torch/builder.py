"""From an ONNX graph to a torch.fx graph: constants folded, sizes kept as integers, one call an operator."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import torch

from bricolage.errors import UnsupportedOperator
from bricolage.lowering.common import (
    PORTABLE,
    Operator,
    attributes_of,
    constant_node_value,
    opset_for,
    subgraphs_of,
    to_host,
)
from bricolage.lowering.torch import sizes
from bricolage.lowering.torch.arrays import DTYPES, TorchArrays, from_numpy, to_numpy
from bricolage.lowering.torch.values import MISSING, Const, Device, Known, Missing, Sizes

FOLD_LIMIT = 1 << 24
"""Results with more elements than this stay computed at run time, so that folding never bloats a module."""


def host_value(x: Any) -> Any:
    """A tensor's value as number or nested tuples: the slow path of a shape that depends on data."""
    return to_host(to_numpy(x))


def size_tensor(value: Any) -> Any:
    """Sizes as an int64 tensor."""
    return torch.tensor(value, dtype=torch.int64)


def bound(entry: Operator, xp: TorchArrays, attributes: dict[str, Any]) -> Callable[..., Any]:
    """The operator as a function of its inputs alone, with a name that generated code can show."""
    function = functools.partial(entry.function, xp, **attributes)

    def run(*inputs: Any) -> Any:
        return function(*inputs)

    run.__name__ = entry.name.lower()
    return run


class Builder:
    """Writes one ONNX graph into one torch.fx graph. `outer` are the values that a subgraph may use."""

    def __init__(
        self, imports: dict[str, int], xp: TorchArrays, root: Any, *, outer: dict[ir.Value, Known] | None = None
    ) -> None:
        self.imports = imports
        self.xp = xp
        self.root = root
        self.graph = torch.fx.Graph()
        self.env: dict[ir.Value, Known] = dict(outer or {})
        self._attributes: dict[int, Any] = {}
        self._size_nodes: dict[tuple[Any, int], Any] = {}

    # --- writing

    def call(self, function: Callable[..., Any], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None) -> Any:
        return self.graph.call_function(function, tuple(args), kwargs or {})

    def method(self, name: str, *args: Any) -> Any:
        return self.graph.call_method(name, args)

    def size(self, node: Any, axis: int) -> Any:
        key = (node, axis)
        if key not in self._size_nodes:
            self._size_nodes[key] = self.method("size", node, axis)
        return self._size_nodes[key]

    def attribute(self, tensor: Any) -> Any:
        """A node that reads a constant; each constant is stored once."""
        if id(tensor) not in self._attributes:
            name = f"c{len(self._attributes)}"
            self.root.register_buffer(name, tensor)
            self._attributes[id(tensor)] = self.graph.get_attr(name)
        return self._attributes[id(tensor)]

    def stored(self, node: Any) -> Any:
        """The constant that such a node reads."""
        return self.root.get_buffer(node.target)

    def finish(self) -> Any:
        """The module: calls and constants that nothing reads are dropped."""
        self.graph.eliminate_dead_code()
        read = {node.target for node in self.graph.nodes if node.op == "get_attr"}
        for name in [n for n, _ in self.root.named_buffers(recurse=False) if n not in read]:
            delattr(self.root, name)
        return torch.fx.GraphModule(self.root, self.graph)

    def tensor(self, known: Known) -> Any:
        """The value as a tensor argument."""
        if isinstance(known, Missing):
            return None
        if isinstance(known, Const):
            return self.attribute(known.tensor)
        if isinstance(known, Sizes):
            return self.call(size_tensor, (known.literal,))
        return known.node

    def host(self, known: Known) -> Any:
        """The value as a number or a tuple of numbers."""
        if isinstance(known, Missing):
            return None
        if isinstance(known, Const):
            return to_host(to_numpy(known.tensor))
        if isinstance(known, Sizes):
            return known.literal
        return self.call(host_value, (known.node,))

    # --- reading

    def known(self, value: ir.Value | None) -> Known:
        """What is known of a value; initializers are read when they are first used."""
        if value is None:
            return MISSING
        if value not in self.env:
            if value.const_value is None:
                raise UnsupportedOperator(
                    library="PyTorch", op_type="(value)", opset="any", reason=f"'{value.name}' has no producer"
                )
            self.env[value] = self.constant(value.const_value.numpy())
        return self.env[value]

    def constant(self, array: Any) -> Const:
        tensor = from_numpy(array)
        return Const(tensor.to(self.xp.widened(tensor.dtype)))

    # --- lowering

    def node(self, node: ir.Node) -> None:
        """Lower one node; its outputs become known."""
        from bricolage.lowering.torch.fused import EMITTERS, View

        inputs = [self.known(v) for v in node.inputs]
        attributes = attributes_of(node)
        if node.op_type == "Constant" and not node.domain:
            value = constant_node_value(node)
            if value is None:
                raise self.refuse(node, "the constant is no dense tensor")
            self.env[node.outputs[0]] = self.constant(value)
            return
        if subgraphs_of(node):
            from bricolage.lowering.torch.control import lower_control

            self.bind(node, lower_control(self, node, inputs, attributes))
            return
        opset = opset_for(node, self.imports)
        entry = PORTABLE.find("" if node.domain == "ai.onnx" else node.domain, node.op_type, opset)
        if entry is None:
            raise self.refuse(node, "it is not known")
        result = self.sizes(node, inputs, attributes)
        if result is None:
            result = self.folded(entry, node, inputs, attributes)
        if result is None:
            emit = EMITTERS.get(node.op_type) if not node.domain else None
            emitted = emit(View(self, node, inputs, attributes, opset)) if emit else None
            result = self.generic(entry, node, inputs, attributes) if emitted is None else emitted
        self.bind(node, result)

    def refuse(self, node: ir.Node, reason: str) -> UnsupportedOperator:
        return UnsupportedOperator(
            library="PyTorch", op_type=node.op_type, opset=opset_for(node, self.imports), reason=reason
        )

    def bind(self, node: ir.Node, result: Any) -> None:
        """Name the results. A tuple is one entry for each output; a bare node is the first output."""
        results = result if isinstance(result, (tuple, list)) else (result,)
        for value, item in zip(node.outputs, results, strict=False):
            self.env[value] = item if isinstance(item, (Const, Sizes, Device)) else Device(item)

    def sizes(self, node: ir.Node, inputs: list[Known], attributes: dict[str, Any]) -> Known | None:
        if node.domain:
            return None
        if node.op_type in ("Shape", "Size"):
            return self.shape(node, inputs[0], attributes)
        if not any(isinstance(i, Sizes) for i in inputs):
            return None
        given = [sizes.as_sizes(i) for i in inputs if not isinstance(i, Missing)]
        complete = [s for s in given if s is not None]
        if len(complete) < len(given):
            return None
        return sizes.evaluate(self.call, node.op_type, complete, attributes)

    def shape(self, node: ir.Node, x: Known, attributes: dict[str, Any]) -> Known | None:
        """Shape and Size: numbers where the model knows them, size calls where it does not."""
        if isinstance(x, Const):
            dims: list[Any] = list(x.tensor.shape)
        elif isinstance(x, Sizes):
            dims = [len(x.elements)] * x.rank
        else:
            value = node.inputs[0]
            if value is None or value.shape is None or isinstance(x, Missing):
                return None
            dims = [int(d) if isinstance(d, int) else self.size(x.node, i) for i, d in enumerate(value.shape)]
        if node.op_type == "Size":
            return sizes.evaluate(self.call, "ReduceProd", [Sizes(tuple(dims), 0)], {})
        chosen = tuple(dims[attributes.get("start", 0) : attributes.get("end")])
        if all(isinstance(d, int) for d in chosen):
            return Const(torch.tensor(chosen, dtype=torch.int64))
        return Sizes(chosen, 1)

    def folded(self, entry: Operator, node: ir.Node, inputs: list[Known], attributes: dict[str, Any]) -> Any:
        """The result when every input is constant, computed now by the operator itself."""
        if not all(isinstance(i, (Const, Missing)) for i in inputs) or entry.data_dependent:
            return None
        arguments = [
            None if isinstance(known, Missing) else self.host(known) if entry.is_host(i) else known.tensor
            for i, known in enumerate(inputs)
            if not isinstance(known, (Sizes, Device))
        ]
        with torch.no_grad():
            result = entry.function(self.xp, *arguments, **self.keywords(entry, node, attributes))
        results = result if isinstance(result, (tuple, list)) else (result,)
        if sum(r.numel() for r in results) > FOLD_LIMIT:
            return None
        return tuple(Const(r.contiguous()) for r in results)

    def keywords(self, entry: Operator, node: ir.Node, attributes: dict[str, Any]) -> dict[str, Any]:
        words = dict(attributes)
        if "_outputs" in entry.internal:
            words["_outputs"] = len(node.outputs)
        if "_types" in entry.internal:
            words["_types"] = tuple(int(v.dtype) if v is not None and v.dtype else None for v in node.inputs)
        return words

    def generic(self, entry: Operator, node: ir.Node, inputs: list[Known], attributes: dict[str, Any]) -> Any:
        """The operator as one call of its portable definition."""
        arguments = [self.host(k) if entry.is_host(i) else self.tensor(k) for i, k in enumerate(inputs)]
        result = self.call(bound(entry, self.xp, self.keywords(entry, node, attributes)), arguments)
        return self.unpacked(result, node) if self.is_tuple(entry, node) else result

    def is_tuple(self, entry: Operator, node: ir.Node) -> bool:
        return len(node.outputs) > 1 or entry.name in _ALWAYS_TUPLES

    def unpacked(self, result: Any, node: ir.Node) -> tuple[Any, ...]:
        return tuple(self.call(operator.getitem, (result, i)) for i in range(len(node.outputs)))

    def output(self, values: Sequence[ir.Value], finish: Callable[[Any], Any] | None = None) -> None:
        nodes = [self.tensor(self.known(v)) for v in values]
        self.graph.output(tuple(self.call(finish, (n,)) if finish else n for n in nodes))


_ALWAYS_TUPLES = frozenset(
    {
        "CausalConvWithState",
        "DynamicQuantizeLinear",
        "GRU",
        "LSTM",
        "LinearAttention",
        "RNN",
        "Split",
        "TopK",
    }
)
"""Operators whose function returns a tuple even when one output is asked for."""


def input_dtype(value: ir.Value, xp: TorchArrays) -> Any:
    """The type in which a graph input is computed, None when the model does not say."""
    if value.dtype is None or int(value.dtype) not in DTYPES:
        return None
    return xp.dtype(int(value.dtype))
