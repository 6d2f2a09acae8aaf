"""The paper's plan on graphs small enough to follow by hand."""

from __future__ import annotations

import numpy as np

from benchmarks.fusion.dnnfusion import _FUSED, blocks, mapping
from bricolage.graph.graph import Graph
from bricolage.graph.prepare import simplify
from tests.graph.models import parse


def graph(inputs: str, outputs: str, body: str, **weights: np.ndarray) -> Graph:
    text = f'<ir_version: 8, opset_import: ["" : 18]> g ({inputs}) => ({outputs}) {{ {body} }}'
    return simplify(parse(text, **weights))


W = np.ones((8, 8), np.float32)


def test_the_table_has_as_many_cells_of_each_colour_as_the_paper_says() -> None:
    assert sum(certain for certain, _ in _FUSED.values()) == 13
    assert len(_FUSED) == 23


def test_types() -> None:
    found = graph(
        "float[4,8] x",
        "float[8,4] y",
        "a = Relu(x) b = Add(a, c) d = MatMul(b, w) e = Transpose(d) y = Softmax(e)",
        c=np.ones(8, np.float32),
        w=W,
    )
    assert [mapping(operator) for operator in found.operators] == [
        "one-to-one",
        "one-to-many",
        "many-to-many",
        "shuffle",
        "many-to-many",
    ]


def test_a_block_holds_one_many_to_many_at_most() -> None:
    chain = "a = MatMul(x, w) b = Relu(a) c = MatMul(b, w) y = Relu(c)"
    assert blocks(graph("float[8,8] x", "float[8,8] y", chain, w=W), yellow=True) == 2


def test_what_would_be_measured_is_taken_or_not() -> None:
    chain = "a = Relu(x) b = MatMul(a, w) y = Transpose(b)"
    built = graph("float[8,8] x", "float[8,8] y", chain, w=W)
    assert (blocks(built, yellow=False), blocks(built, yellow=True)) == (2, 1)


def test_a_residual_connection_makes_no_cycle() -> None:
    """The sum may not join the first function while the product between them stays outside."""
    body = "a = Relu(x) b = MatMul(a, w) c = MatMul(b, w) y = Add(a, c)"
    assert blocks(graph("float[8,8] x", "float[8,8] y", body, w=W), yellow=True) == 2


def test_operators_outside_the_table_stay_alone() -> None:
    body = "a = Relu(x) b = IsNaN(a) c = Not(b) y = Cast<to=1>(c)"
    assert blocks(graph("float[8,8] x", "float[8,8] y", body), yellow=True) == 3
