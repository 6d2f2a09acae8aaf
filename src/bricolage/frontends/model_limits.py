"""How large a model may be: checked first, since everything after it takes time and memory in proportion."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import onnx
import onnx_ir as ir

from bricolage.errors import InvalidGraph, TooLarge

MOST_OPERATORS = 200_000
"""Operators of a model, bodies of control flow included and functions inlined. Preparing takes some milliseconds for each."""


def check_operator_count(proto: onnx.ModelProto) -> None:
    """Whether this many operators can be worked with, counted before anything is made of them.

    Raises:
        TooLarge
    """
    count = 0
    for graph in graphs_of(proto):
        count += len(graph.node)
        if count > MOST_OPERATORS:
            _refuse(f"more than {MOST_OPERATORS}")


def check_inlined(model: ir.Model) -> None:
    """Whether the operators can be worked with once functions are inlined: each call is a copy.

    Raises:
        TooLarge
        InvalidGraph: functions call each other in a circle.
    """
    calls: dict[ir.OperatorIdentifier, Counter[ir.OperatorIdentifier]] = {}
    for identifier, function in model.functions.items():
        nodes = ir.traversal.RecursiveGraphIterator(function)
        calls[identifier] = Counter(node.op_identifier() for node in nodes)
    sizes: dict[ir.OperatorIdentifier, int] = {}
    waiting, visited = list(model.functions), set[ir.OperatorIdentifier]()
    while waiting:
        identifier = waiting[-1]
        called = [name for name in calls[identifier] if name in calls]
        missing = [name for name in called if name not in sizes]
        if not missing or identifier in sizes:
            call_counts = calls[identifier]
            sizes[identifier] = sum(number * sizes.get(name, 1) for name, number in call_counts.items())
            waiting.pop()
        elif identifier in visited:
            raise InvalidGraph(reason=f"its functions form a cycle, from '{missing[0]}' on")
        else:
            visited.add(identifier)
            waiting += missing
    count = sum(sizes.get(node.op_identifier(), 1) for node in ir.traversal.RecursiveGraphIterator(model.graph))
    if count > MOST_OPERATORS:
        _refuse(f"{count:.3g}" if count >= 1e9 else str(count))


def graphs_of(proto: onnx.ModelProto) -> Iterator[onnx.GraphProto | onnx.FunctionProto]:
    """The main graph, all functions, and all bodies of control flow."""
    todo: list[onnx.GraphProto | onnx.FunctionProto] = [proto.graph, *proto.functions]
    while todo:
        graph = todo.pop()
        yield graph
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.GRAPH:
                    todo.append(attribute.g)
                elif attribute.type == onnx.AttributeProto.GRAPHS:
                    todo += attribute.graphs


def _refuse(count: str) -> None:
    advice = f"Models of up to {MOST_OPERATORS} operators are taken; divide it"
    raise TooLarge(what="the model", reason=f"it has {count} operators", advice=advice)
