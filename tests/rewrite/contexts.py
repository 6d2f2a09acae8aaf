"""Models around a model: the same operators where something else reads them, with open dimensions, in a sub-graph."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from bricolage.graph.prepare import infer


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
    wrapped = ir.from_proto(proto)
    infer(wrapped)
    return wrapped


def _branch(
    nodes: list[onnx.NodeProto], outputs: list[onnx.ValueInfoProto], weights: list[onnx.TensorProto], name: str
) -> onnx.GraphProto:
    made = {output for node in nodes for output in node.output if output} | {weight.name for weight in weights}
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
        copy.input[:] = [f"{name}.{value}" if value in made else value for value in node.input]
        copy.output[:] = [f"{name}.{value}" if value else "" for value in node.output]
        copies.append(copy)
    ends = []
    for value in outputs:
        end = onnx.ValueInfoProto()
        end.CopyFrom(value)
        end.name = f"{name}.{value.name}"
        ends.append(end)
    return onnx.helper.make_graph(copies, name, [], ends, initializer=constants)
