"""ONNX graphs as PyTorch modules.

    module = lower(model)                                # float32 as the model says
    exact = lower(model, float_dtype=torch.float64)      # the whole model in float64: the numerical reference

The module is a `torch.fx.GraphModule`: constants are buffers, everything static is decided when it is built, and dynamo
traces it in one graph unless an operator's shape depends on data (`untraceable` says so).
"""

from __future__ import annotations

import onnx_ir as ir
import torch
from torch import fx

from bricolage.errors import UnsupportedOperator
from bricolage.graph.inference import infer
from bricolage.lowering import operators
from bricolage.lowering.common import PORTABLE, is_static, opset_for, refusal, subgraphs_of
from bricolage.lowering.torch import convolution, elementwise, matmul, movement, normalization
from bricolage.lowering.torch.arrays import DTYPES, TorchArrays
from bricolage.lowering.torch.convolution import CONVOLUTIONS
from bricolage.lowering.torch.fx_builder import Builder, input_dtype
from bricolage.lowering.torch.interpreter import lower_node
from bricolage.lowering.torch.known_values import DeviceTensor
from bricolage.lowering.torch.support import type_refusal

__all__ = ["DTYPES", "lower", "supported", "untraceable"]

_REGISTERED = (operators, convolution, elementwise, matmul, movement, normalization)
_CONTROL = frozenset({"If", "Loop", "Scan"})


def find_refusal(node: ir.Node, opset: int) -> str | None:
    """Why the node cannot be lowered; None when it can. `opset` is that of the node's own domain."""
    bodies = subgraphs_of(node)
    if bodies:
        if node.op_type not in _CONTROL or node.domain:
            return f"{node.op_type} has no lowering"
        if node.op_type == "Scan" and opset < 9:
            return "Scan of opset 8 has no lowering"
        reasons = (find_refusal(inner, opset) for body in bodies.values() for inner in body)
        return next((reason for reason in reasons if reason), None)
    if node.op_type == "Constant" and not node.domain:
        from bricolage.lowering.common import constant_node_value

        return type_refusal(node) if constant_node_value(node) is not None else "the constant is no dense tensor"
    return refusal(PORTABLE, node, opset) or type_refusal(node)


def untraceable(node: ir.Node, opset: int) -> str | None:
    """Why dynamo would have to leave its graph at this node; None when it would not."""
    if subgraphs_of(node):
        return f"{node.op_type} decides at run time what is computed"
    entry = PORTABLE.find(node.domain, node.op_type, opset)
    if entry is None:
        return None
    if entry.data_dependent:
        return entry.data_dependent
    for i, value in enumerate(node.inputs):
        if entry.is_host(i) and not is_static(value):
            return f"input '{entry.input_name(i)}' depends on data"
    return None


def lower(model: ir.Model, *, float_dtype: torch.dtype | None = None, channels_last: bool = False) -> fx.GraphModule:
    """The model as a module whose `forward` takes the graph inputs in order and returns a tuple of outputs.

    With `float_dtype` (torch.float64 for the reference) every float of 16 or 32 bits, inputs and casts included, is
    widened to it. With `channels_last`, convolution weights and inputs of rank 4 and 5 are laid out channels-last and
    outputs are made contiguous again.

    Raises UnsupportedOperator at the first node that `supported` refuses.
    """
    model = _infer_types(model)
    imports = {str(k): int(v) for k, v in model.graph.opset_imports.items()}
    xp = TorchArrays(float_dtype)
    for node in model.graph:
        opset = opset_for(node, imports)
        reason = find_refusal(node, opset) or (_needs_storage_type(node) if float_dtype is not None else None)
        if reason:
            raise UnsupportedOperator(library="PyTorch", op_type=node.op_type, opset=opset, reason=reason)
    root = torch.nn.Module()
    builder = Builder(imports, xp, root)
    inputs = [v for v in model.graph.inputs if v.name not in model.graph.initializers]
    for i, value in enumerate(inputs):
        entry = builder.graph.placeholder(f"x{i}")
        builder.env[value] = DeviceTensor(_convert_input(builder, value, entry, channels_last))
    for node in model.graph:
        lower_node(builder, node)
    builder.output(model.graph.outputs, torch.Tensor.contiguous if channels_last else None)
    module = builder.finish()
    if channels_last:
        _lay_out(module)
    module.eval()
    return module.requires_grad_(False)


def _convert_input(builder: Builder, value: ir.Value, node: fx.Node, channels_last: bool) -> fx.Node:
    """A graph input after the conversions that the mode asks for."""
    if builder.xp.float_dtype is not None:
        wanted = input_dtype(value, builder.xp)
        node = builder.method("to", node, wanted) if wanted is not None else node
    rank = None if value.shape is None else len(value.shape)
    if channels_last and rank in (4, 5):
        layout = torch.channels_last if rank == 4 else torch.channels_last_3d
        node = builder.graph.call_method("contiguous", (node,), {"memory_format": layout})
    return node


def _lay_out(module: fx.GraphModule) -> None:
    """Store convolution weights channels-last, once."""
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target in CONVOLUTIONS and node.args[1].op == "get_attr":
            weight = module.get_buffer(node.args[1].target)
            if weight.ndim > 3:
                layout = torch.channels_last if weight.ndim == 4 else torch.channels_last_3d
                setattr(module, node.args[1].target, weight.contiguous(memory_format=layout))


def _infer_types(model: ir.Model) -> ir.Model:
    """The model with the types and shapes of intermediate values filled in, itself when it has them.

    Without them many operators would take their portable definition instead of one fused call.
    """
    if all(v.dtype is not None and v.shape is not None for node in model.graph for v in node.outputs):
        return model
    typed = model.clone()
    infer(typed)
    return typed


def _needs_storage_type(node: ir.Node) -> str | None:
    """Operators whose result depends on how a float is stored have no widened meaning."""
    if node.op_type != "BitCast":
        return None
    kinds = [v.dtype for v in (*node.inputs, *node.outputs) if v is not None and v.dtype is not None]
    return "the bits of a float change with its type" if any(k.is_floating_point() for k in kinds) else None
