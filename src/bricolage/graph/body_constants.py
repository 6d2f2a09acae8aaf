"""Small constants that bodies of control flow read lie in the bodies themselves.

Inference of onnx passes on the shapes of what a body captures, and not the elements, of which shapes inside may be made. Worse, its
data propagation (1.23) then takes the constant for another one in operators of the main graph, too, and finds a wrong rank.
"""

from __future__ import annotations

import onnx_ir as ir

from bricolage.graph.constant_folding import constant_value

_SHAPING = frozenset([ir.DataType.INT64, ir.DataType.INT32, ir.DataType.FLOAT, ir.DataType.BOOL])
"""Types of what shapes and conditions are made of."""
_SMALL = 64
"""Elements up to which a constant may say what a shape is."""


def bring_inside(model: ir.Model) -> bool:
    """Gives each body copies of the small constants from around it that it reads, in place. True if there were any."""
    changed = False
    used = {value.name for graph in model.graphs() for value in graph.initializers.values()}
    for body in list(model.graph.subgraphs()):
        copies: dict[ir.Value, ir.Value] = {}
        for node in body:
            for place, value in enumerate(node.inputs):
                if value is not None and _is_small(value) and body.initializers.get(value.name or "") is not value:
                    if value not in copies:
                        copies[value] = _copy_constant(value, used)
                        body.register_initializer(copies[value])
                    node.replace_input_with(place, copies[value])
                    changed = True
    return changed


def _is_small(value: ir.Value) -> bool:
    tensor = value.const_value
    if tensor is None or value.producer() is not None or value.is_graph_input():
        return False
    return tensor.dtype in _SHAPING and tensor.size <= _SMALL


def _copy_constant(value: ir.Value, used: set[str | None]) -> ir.Value:
    """Under a name that no other constant has, with a tensor of its own, since tensors have names, too."""
    number = 1
    while (name := f"{value.name}.inside.{number}") in used:
        number += 1
    used.add(name)
    assert value.const_value is not None
    return constant_value(name, value.const_value.numpy())
