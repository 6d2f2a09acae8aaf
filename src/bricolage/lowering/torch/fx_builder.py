"""A torch.fx graph under construction, with what is known of each ONNX value: a constant, sizes, or a node."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir
import torch
from torch import fx
from torch.fx.node import Argument

from bricolage.errors import UnsupportedOperator
from bricolage.lowering.common import HostValue, opset_for, to_host, widen_constant
from bricolage.lowering.torch.arrays import DTYPES, TorchArrays, from_numpy, to_numpy
from bricolage.lowering.torch.known_values import MISSING, AbsentInput, Const, DeviceTensor, Emitted, Known, Sizes


def host_value(x: torch.Tensor) -> HostValue:
    """A tensor's value as number or nested tuples: the slow path of a shape that depends on data."""
    return to_host(to_numpy(x))


def size_tensor(value: int | tuple[int, ...]) -> torch.Tensor:
    """Sizes as an int64 tensor."""
    return torch.tensor(value, dtype=torch.int64)


class Builder:
    """Writes one ONNX graph into one torch.fx graph. `outer` are the values that a subgraph may use."""

    def __init__(
        self,
        imports: dict[str, int],
        xp: TorchArrays,
        root: torch.nn.Module,
        *,
        outer: dict[ir.Value, Known] | None = None,
    ) -> None:
        self.imports = imports
        self.xp = xp
        self.root = root
        self.graph = torch.fx.Graph()
        self.env: dict[ir.Value, Known] = dict(outer or {})
        self._attributes: dict[int, fx.Node] = {}
        self._size_nodes: dict[tuple[fx.Node, int], fx.Node] = {}

    # --- writing

    def call(
        self, function: Callable[..., object], args: Sequence[Argument] = (), kwargs: dict[str, Argument] | None = None
    ) -> fx.Node:
        """Writes the call of a function; the node of its result."""
        return self.graph.call_function(function, tuple(args), kwargs or {})

    def method(self, name: str, *args: Argument) -> fx.Node:
        """Writes the call of a tensor's method."""
        return self.graph.call_method(name, args)

    def size(self, node: fx.Node, axis: int) -> fx.Node:
        """A node with the size of an axis; the same one each time."""
        key = (node, axis)
        if key not in self._size_nodes:
            self._size_nodes[key] = self.method("size", node, axis)
        return self._size_nodes[key]

    def attribute(self, tensor: torch.Tensor) -> fx.Node:
        """A node that reads a constant; each constant is stored once."""
        if id(tensor) not in self._attributes:
            name = f"c{len(self._attributes)}"
            self.root.register_buffer(name, tensor)
            self._attributes[id(tensor)] = self.graph.get_attr(name)
        return self._attributes[id(tensor)]

    def stored(self, node: fx.Node) -> torch.Tensor:
        """The constant that such a node reads."""
        return self.root.get_buffer(str(node.target))

    def finish(self) -> fx.GraphModule:
        """The module: calls and constants that nothing reads are dropped."""
        self.graph.eliminate_dead_code()
        read = {node.target for node in self.graph.nodes if node.op == "get_attr"}
        for name in [n for n, _ in self.root.named_buffers(recurse=False) if n not in read]:
            delattr(self.root, name)
        return torch.fx.GraphModule(self.root, self.graph)

    def tensor(self, known: Known) -> fx.Node | None:
        """The value as a tensor argument."""
        if isinstance(known, AbsentInput):
            return None
        if isinstance(known, Const):
            return self.attribute(known.tensor)
        if isinstance(known, Sizes):
            return self.call(size_tensor, (known.literal,))
        return known.node

    def host(self, known: Known) -> HostValue:
        """The value as a number or a tuple of numbers."""
        if isinstance(known, AbsentInput):
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

    def constant(self, array: np.ndarray) -> Const:
        """A numpy array as a known value, in the type in which it is computed."""
        tensor = from_numpy(widen_constant(array))
        return Const(tensor.to(self.xp.widened(tensor.dtype)))

    def refuse(self, node: ir.Node, reason: str) -> UnsupportedOperator:
        """The error for a node that cannot be lowered, with the reason."""
        return UnsupportedOperator(
            library="PyTorch", op_type=node.op_type, opset=opset_for(node, self.imports), reason=reason
        )

    def bind(self, node: ir.Node, result: Emitted) -> None:
        """Name the results. A tuple is one entry for each output; a bare node is the first output."""
        results = result if isinstance(result, (tuple, list)) else (result,)
        for value, item in zip(node.outputs, results, strict=False):
            self.env[value] = DeviceTensor(item) if isinstance(item, fx.Node) else item

    def unpacked(self, result: fx.Node, node: ir.Node) -> tuple[fx.Node, ...]:
        """A node for each output of a call that returns a tuple."""
        return tuple(self.call(operator.getitem, (result, i)) for i in range(len(node.outputs)))

    def output(self, values: Sequence[ir.Value], finish: Callable[[torch.Tensor], torch.Tensor] | None = None) -> None:
        """Writes the module's results, each after `finish` where that is given."""
        nodes = [self.tensor(self.known(v)) for v in values]
        self.graph.output(tuple(self.call(finish, (n,)) if finish else n for n in nodes))


def input_dtype(value: ir.Value, xp: TorchArrays) -> torch.dtype | None:
    """The type in which a graph input is computed, None when the model does not say."""
    if value.dtype is None or int(value.dtype) not in DTYPES:
        return None
    return xp.dtype(int(value.dtype))
