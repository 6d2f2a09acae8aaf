"""Models around a model: the same operators where something else reads them, with open dimensions, in a sub-graph."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir

from bricolage.graph.inference import infer


def inner_outputs(model: ir.Model) -> ir.Model:
    """Every intermediate value is a graph output too."""
    for node in model.graph:
        for value in node.outputs:
            if value.name and not value.is_graph_output() and value.dtype is not None:
                model.graph.outputs.append(value)
    return model


def second_users(model: ir.Model) -> ir.Model:
    """Every intermediate value is read once more, by an operator that leads to an output."""
    for node in list(model.graph):
        for value in list(node.outputs):
            if value.name and value.dtype is not None:
                reader = ir.node("Size", [value], name=f"size of {value.name}")
                reader.outputs[0].name = f"{value.name}.size"
                model.graph.append(reader)
                model.graph.outputs.append(reader.outputs[0])
    infer(model)
    return model


def symbolic(model: ir.Model) -> ir.Model:
    """The first dimension of every input has a name instead of a size; equal sizes have equal names."""
    for value in model.graph.inputs:
        if value.shape is not None and len(value.shape):
            first, *rest = value.shape
            value.shape = ir.Shape([f"d{first}" if isinstance(first, int) else first, *rest])
    for node in model.graph:
        for value in node.outputs:
            value.shape = None
    infer(model)
    return model


def sizes(model: ir.Model) -> dict[str, int]:
    """The sizes that `symbolic` hid, and some for other dimensions."""
    names = {d.value for v in model.graph.inputs if v.shape is not None for d in v.shape if not isinstance(d, int)}
    return {str(name): int(str(name)[1:]) if str(name)[1:].isdigit() else 3 for name in sorted(map(str, names))}


def in_branches(model: ir.Model, captured: bool = False) -> ir.Model:
    """The operators twice, as the branches of an If, which capture the inputs (and, on demand, the weights)."""
    proto = ir.to_proto(model)
    nodes, outputs = list(proto.graph.node), list(proto.graph.output)
    weights = [] if captured else list(proto.graph.initializer)
    del proto.graph.node[:]
    if not captured:
        del proto.graph.initializer[:]
    branches = [_branch(nodes, outputs, weights, name) for name in ("then", "else")]
    proto.graph.input.append(onnx.helper.make_tensor_value_info("condition", onnx.TensorProto.BOOL, []))
    names = [value.name for value in outputs]
    proto.graph.node.append(
        onnx.helper.make_node("If", ["condition"], names, "if", then_branch=branches[0], else_branch=branches[1])
    )
    del proto.graph.value_info[:]
    wrapped: ir.Model = ir.from_proto(proto)
    infer(wrapped)
    return wrapped


def in_loop(model: ir.Model) -> ir.Model:
    """The operators as the body of a Loop of two rounds, which captures the inputs and stacks the outputs."""
    proto = ir.to_proto(model)
    body = _branch(list(proto.graph.node), list(proto.graph.output), list(proto.graph.initializer), "body")
    body.input.append(onnx.helper.make_tensor_value_info("body.round", onnx.TensorProto.INT64, []))
    body.input.append(onnx.helper.make_tensor_value_info("body.go", onnx.TensorProto.BOOL, []))
    body.node.append(onnx.helper.make_node("Identity", ["body.go"], ["body.going"], "body.identity"))
    results = list(body.output)
    del body.output[:]
    body.output.append(onnx.helper.make_tensor_value_info("body.going", onnx.TensorProto.BOOL, []))
    body.output.extend(results)
    start = [onnx.numpy_helper.from_array(np.asarray(v), n) for n, v in (("rounds", np.int64(2)), ("go", np.True_))]
    outputs = [value.name for value in proto.graph.output]
    return _around(proto, onnx.helper.make_node("Loop", ["rounds", "go"], outputs, "loop", body=body), start)


def in_scan(model: ir.Model) -> ir.Model:
    """The operators as the body of a Scan, over the first axis of inputs that hold two of the model's, one after another."""
    proto = ir.to_proto(model)
    inputs = list(proto.graph.input)
    body = _branch(list(proto.graph.node), list(proto.graph.output), list(proto.graph.initializer), "body", inputs)
    outputs = [value.name for value in proto.graph.output]
    names = [value.name for value in inputs]
    scan = onnx.helper.make_node("Scan", names, outputs, "scan", body=body, num_scan_inputs=len(names))
    for value in inputs:
        shape_proto = value.type.tensor_type.shape
        sizes = [d.dim_param or d.dim_value for d in shape_proto.dim]
        del shape_proto.dim[:]
        for size in (2, *sizes):
            added = shape_proto.dim.add()
            if isinstance(size, str):
                added.dim_param = size
            else:
                added.dim_value = size
    return _around(proto, scan, [])


def _around(proto: onnx.ModelProto, node: onnx.NodeProto, weights: list[onnx.TensorProto]) -> ir.Model:
    """A model of this one operator."""
    del proto.graph.node[:]
    del proto.graph.initializer[:]
    del proto.graph.value_info[:]
    proto.graph.node.append(node)
    proto.graph.initializer.extend(weights)
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")
    wrapped: ir.Model = ir.from_proto(proto)
    infer(wrapped)
    return wrapped


def _branch(
    nodes: list[onnx.NodeProto],
    outputs: list[onnx.ValueInfoProto],
    weights: list[onnx.TensorProto],
    name: str,
    inputs: list[onnx.ValueInfoProto] | None = None,
) -> onnx.GraphProto:
    """The operators under names of their own, as a graph with these inputs, or without."""
    local_names = {output for node in nodes for output in node.output if output} | {weight.name for weight in weights}
    local_names |= {value.name for value in inputs or ()}
    copies, constants = [], []
    for weight in weights:
        constant = onnx.TensorProto()
        constant.CopyFrom(weight)
        constant.name = f"{name}.{weight.name}"
        constants.append(constant)
    for node in nodes:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.name = f"{name}.{node.name}"
        copy.input[:] = [f"{name}.{value}" if value in local_names else value for value in node.input]
        copy.output[:] = [f"{name}.{value}" if value else "" for value in node.output]
        copies.append(copy)
    starts, ends = (
        [_copy_renamed(value, f"{name}.{value.name}") for value in values] for values in (inputs or (), outputs)
    )
    return onnx.helper.make_graph(copies, name, starts, ends, initializer=constants)


def _copy_renamed(value: onnx.ValueInfoProto, name: str) -> onnx.ValueInfoProto:
    copy = onnx.ValueInfoProto()
    copy.CopyFrom(value)
    copy.name = name
    return copy


BY_NAME: dict[str, Callable[[ir.Model], ir.Model]] = {
    "": lambda model: model,
    "inner outputs": inner_outputs,
    "second users": second_users,
    "symbolic": symbolic,
    "If": in_branches,
    "Loop": in_loop,
    "Scan": in_scan,
}
CONTEXTS = tuple(BY_NAME)
"""What a model is put into; the empty one leaves it as it is."""
