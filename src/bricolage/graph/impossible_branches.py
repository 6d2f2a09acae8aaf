"""Branches that cannot be computed at the sizes that a model is bound to: there their sizes stay open, as in the model.

A voice detector takes 512 samples at 16 kHz and 256 at 8. Bound to 512, its branch for 8 kHz has a tensor of a wrong rank. Runtimes
that infer shapes in branches refuse the whole model, although it is never taken. So each tensor that such a branch captures
gets to it through a Reshape whose target hangs on the condition: it is the tensor's own shape, and no inference can know that.
Where the branch is taken all the same, it fails at run time, as in the model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from bricolage.graph.constant_folding import constant_value, is_known
from bricolage.graph.graph import captured_by
from bricolage.graph.shape_checks import faults

_THEN = "then_branch"


@dataclass(frozen=True)
class Branch:
    """A branch of an If, by names that survive copying and folding."""

    operator: str
    attribute: str


def has_branches(model: ir.Model) -> bool:
    """Whether anything is computed under a condition."""
    return any(node.op_type == "If" and not node.domain for node in model.graph.all_nodes())


def impossible_branches(model: ir.Model) -> dict[Branch, str]:
    """Branches in which an operator cannot be computed as it stands, the innermost ones, each with what is wrong. Shapes of the
    model must have been inferred, and Ifs that are decided must be gone."""
    reasons: dict[Branch, str] = {}
    _visit(model, model.graph, reasons)
    return reasons


def _visit(model: ir.Model, graph: ir.Graph, found: dict[Branch, str]) -> bool:
    """Looks at all branches below a graph; whether one of them is impossible."""
    any_inside = False
    for node in graph:
        for name, attribute in node.attributes.items():
            if attribute.type != ir.AttributeType.GRAPH:
                continue
            body = attribute.as_graph()
            inside = _visit(model, body, found)
            if not inside and node.op_type == "If" and not node.domain and node.name:
                reason = next(iter(faults(_alone(model, body))), None)
                if reason is not None:
                    found[Branch(node.name, name)] = reason
                    inside = True
            any_inside = any_inside or inside
    return any_inside


def _alone(model: ir.Model, body: ir.Graph) -> ir.Model:
    """A body as a model of its own, whose inputs are what it captures."""
    outside = dict.fromkeys(captured_by(body))
    constants = [value for value in outside if is_known(value)]
    view = ir.GraphView(
        [*body.inputs, *(value for value in outside if not is_known(value))],
        body.outputs,
        nodes=list(body),
        initializers=[*body.initializers.values(), *constants],
        opset_imports=dict(model.graph.opset_imports),
        name="body",
    )
    return ir.Model(view.clone(), ir_version=model.ir_version)


def open_sizes(model: ir.Model, branch: Branch) -> None:
    """Hides from inference, in place, the shapes and values of what a branch captures."""
    node = next(candidate for candidate in model.graph.all_nodes() if candidate.name == branch.operator)
    body = node.attributes[branch.attribute].as_graph()
    condition = node.inputs[0]
    hidden = [
        value
        for value in dict.fromkeys(captured_by(body))
        if not is_known(value) and isinstance(value.type, ir.TensorType)
    ]
    if condition is None or not hidden:
        return
    prefix = _fresh_prefix(model, f"{branch.operator}.{branch.attribute}")
    unit_shape = constant_value(f"{prefix}.one", np.array([1], np.int64))
    body.register_initializer(unit_shape)
    flat = ir.node("Reshape", [condition, unit_shape], name=f"{prefix}.condition")
    number = ir.node("Cast", [flat.outputs[0]], {"to": int(ir.DataType.INT64)}, name=f"{prefix}.number")
    added = [flat, number]
    neutral = "Mul" if branch.attribute == _THEN else "Add"  # by 1 where the branch is taken, or of 0
    for value in hidden:
        name = f"{prefix}.{value.name}"
        shape = ir.node("Shape", [value], name=f"{name}.shape")
        target = ir.node(neutral, [shape.outputs[0], number.outputs[0]], name=f"{name}.target")
        opened = ir.node("Reshape", [value, target.outputs[0]], {"allowzero": 1}, name=f"{name}.open")
        opened.outputs[0].type = value.type
        _replace_inside(body, value, opened.outputs[0])
        added += [shape, target, opened]
    for new in added:
        new.outputs[0].name = f"{new.name}.result"
    for inner in body.all_nodes():  # what was inferred of them rests on these sizes
        for result in inner.outputs:
            result.shape = None
    for graph in body.subgraphs():
        for value in graph.inputs:
            value.shape = None if value.shape is None else ir.Shape([None] * len(value.shape))
    body.insert_before(body[0], added)


def _fresh_prefix(model: ir.Model, wanted: str) -> str:
    """With which no name begins: a branch may be opened again after rewriting, which may have left only the constant."""
    names = {node.name for node in model.graph.all_nodes()}
    names |= {name for graph in model.graphs() for name in graph.initializers}
    prefix, number = wanted, 1
    while names & {f"{prefix}.condition", f"{prefix}.number", f"{prefix}.one"}:
        number += 1
        prefix = f"{wanted}.{number}"
    return prefix


def _replace_inside(body: ir.Graph, value: ir.Value, other: ir.Value) -> None:
    for inner in body.all_nodes():
        for place, given in enumerate(inner.inputs):
            if given is value:
                inner.replace_input_with(place, other)
    for graph in (body, *body.subgraphs()):
        for place, result in enumerate(graph.outputs):
            if result is value:
                graph.outputs[place] = other
