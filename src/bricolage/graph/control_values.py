"""What decides control flow: values that end in conditions of If, and in nothing else."""

from __future__ import annotations

import onnx_ir as ir

from bricolage.graph.graph import bodies


def deciding_inputs(model: ir.Model) -> dict[str, int]:
    """Inputs of a model that decide which branches are taken, and nothing else: all that is computed of them ends in conditions
    of If. By name, with the number of these."""
    counts = {value.name or "": decides(value) for value in model.graph.inputs}
    return {name: count for name, count in counts.items() if count}


def decides(value: ir.Value) -> int:
    """Conditions of If that rest on a value; 0 where something else does."""
    decided, todo, seen = set[ir.Node](), [value], {value}
    while todo:
        current = todo.pop()
        if current.is_graph_output():
            return 0
        for use in current.uses():
            if use.node.op_type == "If" and not use.node.domain:
                decided.add(use.node)
                continue
            if bodies(use.node):
                return 0
            fresh = [result for result in use.node.outputs if result not in seen]
            seen.update(fresh)
            todo += fresh
    return len(decided)
