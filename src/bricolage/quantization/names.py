"""Operators keep the names that the user knows, though rules put others in their place."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

_FARTHEST = 4
"""Operators behind one that a rule made, among which a value of the user's is looked for."""


def names_by_result(model: ir.Model) -> dict[str, str]:
    """Names of operators by what they compute, where an operator has none its result's; and of constants by themselves."""
    results = {value.name: node.name or value.name for node in model.graph for value in node.outputs if value.name}
    return {**{name: name for name in model.graph.initializers}, **results}


def give_names(model: ir.Model, known: Mapping[str, str]) -> None:
    """Names operators that rules made, in place, by what the user knows: their own result, one behind operators that alone read it,
    or else a constant that they read. No two have the same name."""
    kept, used = set(known.values()), {node.name for node in model.graph}
    for node in model.graph:
        new_name = None if node.name in kept else _known_behind(node, known)
        if new_name in used:
            new_name = f"{new_name}/{node.op_type}"
        if new_name is not None and new_name not in used:
            used.add(new_name)
            node.name = new_name


def _known_behind(node: ir.Node, known: Mapping[str, str]) -> str | None:
    constants = [value.name or "" for value in node.inputs if value is not None and value.const_value is not None]
    for _ in range(_FARTHEST):
        (value, *_) = node.outputs
        if value.name in known:
            return known[value.name or ""]
        readers = [usage.node for usage in value.uses()]
        if len(readers) != 1:
            break
        (node,) = readers
    return next((known[name] for name in reversed(constants) if name in known), None)
