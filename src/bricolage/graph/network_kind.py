"""The kind of a network, by the operators that do most of its work: networks of a kind are alike in who runs them fast."""

from __future__ import annotations

from typing import Literal, TypeAlias

from bricolage.graph.graph import Graph
from bricolage.graph.operator_kinds import CONVOLUTIONS, PRODUCTS, RECURRENT
from bricolage.graph.work import flops

NetworkKind: TypeAlias = Literal["convolutional", "matrix", "recurrent", "other"]

_REPEATED = RECURRENT | {"Loop", "Scan"}
_MOST = 0.5
"""Share of the floating-point operations that makes the kind."""


def network_kind(graph: Graph) -> NetworkKind:
    """ "recurrent" where anything is repeated step by step, since each step waits for the one before; else by the operators that do
    more than half of the floating-point operations."""
    kinds = {operator.op_type for operator in graph.operators}
    if kinds & _REPEATED:
        return "recurrent"
    work = {True: 0, False: 0}
    total = 0
    for operator in graph.operators:
        flop_count = flops(operator)
        total += flop_count
        if operator.op_type in CONVOLUTIONS | PRODUCTS:
            work[operator.op_type in CONVOLUTIONS] += flop_count
    if work[True] > _MOST * total:
        return "convolutional"
    return "matrix" if work[False] > _MOST * total else "other"
