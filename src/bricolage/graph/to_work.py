"""From operators to the work graph that searches see."""

from __future__ import annotations

from bricolage.graph.graph import Graph, Region, describe
from bricolage.graph.work import workload
from bricolage.work.work_graph import GRAPH_INPUT, WorkGraph, WorkOperator, WorkTensor


def to_work(graph: Graph) -> WorkGraph:
    """What the searches see of a graph: numbered work and bytes, nothing of `onnx_ir`."""
    operators = []
    for operator in graph.operators:
        amount = workload(Region(graph, 1 << operator.number))
        operators.append(WorkOperator(operator.name, amount.flops, amount.bytes, operator.op_type))
    tensors = [
        WorkTensor(
            value.name or "", operator.number, graph.readers(value), describe(value).bytes, graph.is_output(value)
        )
        for operator in graph.operators
        for value in operator.outputs
    ]
    entering = {
        value: None for operator in graph.operators for value in operator.inputs if graph.producer(value) is None
    }
    tensors.extend(
        WorkTensor(value.name or "", GRAPH_INPUT, graph.readers(value), describe(value).bytes)
        for value in entering
        if not graph.is_constant(value)
    )
    return WorkGraph(tuple(operators), tuple(tensors))
