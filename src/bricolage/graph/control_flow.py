"""Control flow that is decided before anything runs: an If of a known condition is the branch that it takes."""

from __future__ import annotations

import onnx_ir as ir

from bricolage.graph.constant_folding import constant_elements
from bricolage.graph.graph import bodies

_BRANCHES = ("else_branch", "then_branch")
"""By the truth of the condition."""


def inline_decided(model: ir.Model) -> bool:
    """Puts the operators of the branch taken in the place of each If whose condition is a constant, in place, in bodies of control
    flow, too. Each output of the If becomes that of an Identity, so that it keeps its name. True if there were any."""
    changed = False
    todo = list(model.graphs())
    while todo:
        graph = todo.pop()
        for node in list(graph):
            taken = _choose_branch(node)
            if taken is not None:
                _inline(model, graph, node, taken)
                todo.append(graph)  # what it held stands there now
                changed = True
    return changed


def _choose_branch(node: ir.Node) -> str | None:
    """Name of the branch that an If takes; None where that is not known, and for other operators."""
    condition = (
        constant_elements(node.inputs[0]) if node.op_type == "If" and not node.domain and node.inputs[0] else None
    )
    return None if condition is None or condition.size != 1 else _BRANCHES[bool(condition.reshape(-1)[0])]


def _inline(model: ir.Model, graph: ir.Graph, node: ir.Node, taken: str) -> None:
    """Moves the operators and constants of the branch `taken` out of its If, which goes."""
    branch = node.attributes[taken].as_graph()
    results = list(branch.outputs)
    branch.outputs.clear()
    for constant in list(branch.initializers.values()):
        del branch.initializers[constant.name or ""]
        model.graph.register_initializer(constant)
    operators = list(branch)
    branch.remove(operators)
    graph.insert_before(node, operators)
    for value, result in zip(list(node.outputs), results, strict=True):
        identity = ir.node("Identity", [result], name=f"{node.name}.{value.name}")
        (passed,) = identity.outputs
        passed.type = result.type or value.type
        passed.shape = result.shape if result.shape is not None else value.shape
        graph.insert_before(node, identity)
        ir.convenience.replace_all_uses_with(value, passed, replace_graph_outputs=True)
        passed.name, value.name = value.name, f"{value.name}.decided"
    _release(node)
    graph.remove(node, safe=True)


def _release(node: ir.Node) -> None:
    """Ends what the bodies of an operator that goes use of values around it: these would seem to be read."""
    for body in bodies(node):
        body.outputs.clear()
        for inner in body.all_nodes():
            for place in range(len(inner.inputs)):
                inner.replace_input_with(place, None)
        for deeper in body.subgraphs():
            deeper.outputs.clear()
