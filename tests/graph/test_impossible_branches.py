"""Branches that cannot be computed at the bound sizes, and what is inferred in branches."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from bricolage.frontends import to_model
from bricolage.graph.graph import describe
from bricolage.graph.impossible_branches import Branch, impossible_branches
from bricolage.graph.prepare import prepare, simplify
from bricolage.rewrite.catalogue import rules
from bricolage.rewrite.engine.apply import rewrite
from bricolage.testing import validity
from tests.graph.models import parse as parsed

HEAD = '<ir_version: 8, opset_import: ["" : 18]>'
TWO_SIZES = f"""{HEAD} t (float[n,m] x, bool c) => (float[n,m] y) {{
    y = If (c) <then_branch = four () => (float[n,m] u) {{ u = Add (x, w) }},
                else_branch = six () => (float[n,m] v) {{ v = Mul (x, z) }}> }}"""
WEIGHTS: dict[str, Any] = {"w": np.ones(4, np.float32), "z": np.full(6, 2, np.float32)}

BY_RANK = f"""{HEAD} t (float[n,m] x, bool c) => (y) {{
    y = If (c) <then_branch = rows () => (u) {{
        s = Shape <start = 1> (x)
        one = Equal (s, unit)
        flat = If (one) <then_branch = a () => (a1) {{ a1 = Squeeze (x, unit) }},
                         else_branch = b () => (b1) {{ b1 = Identity (x) }}>
        r = Shape (flat)
        k = Size (r)
        vector = Equal (k, rank)
        cube = If (vector) <then_branch = d () => (d1) {{ d1 = Unsqueeze (flat, ends) }},
                            else_branch = e () => (e1) {{ e1 = Unsqueeze (flat, ends) }}>
        u, uh, uc = LSTM <hidden_size = 2> (cube, w, r0) }},
      else_branch = other () => (v) {{ v = Relu (x) }}> }}"""
"""An LSTM reads a tensor of rank 3 where x is a column, and of rank 4 where it is not."""
RECURRENT: dict[str, Any] = {
    "unit": np.array([1], np.int64),
    "rank": np.array(1, np.int64),
    "ends": np.array([0, 1], np.int64),
    "w": np.ones((1, 8, 3), np.float32),
    "r0": np.ones((1, 8, 2), np.float32),
}


def parse(text: str, **constants: np.ndarray) -> ir.Model:
    """A model as every frontend gives it: names are unique."""
    return to_model(ir.to_proto(parsed(text, **constants)))


def session(model: ir.Model) -> Any:
    """Of ONNX Runtime, of a model that is valid."""
    pytest.importorskip("onnxruntime")
    proto = ir.to_proto(model)
    assert not validity.find_faults(proto)
    return validity.make_session(proto)


@pytest.mark.parametrize(("size", "taken"), [(4, True), (6, False)])
def test_a_branch_for_another_size_neither_keeps_a_model_from_loading_nor_answers(size: int, taken: bool) -> None:
    graph = prepare(parse(TWO_SIZES, **WEIGHTS), {"n": 2, "m": size})
    made = session(graph.model)
    x = np.ones((2, size), np.float32)
    (found,) = made.run(None, {"x": x, "c": np.array(taken)})
    assert np.array_equal(found, x + 1 if taken else x * 2)
    with pytest.raises(Exception, match="Non-zero status code"):
        made.run(None, {"x": x, "c": np.array(not taken)})


def test_sizes_stay_known_in_branches_that_can_be_computed() -> None:
    graph = prepare(parse(TWO_SIZES, **WEIGHTS), {"n": 2, "m": 6})
    (node,) = (operator.node for operator in graph.operators)
    then, other = (node.attributes[name].as_graph() for name in ("then_branch", "else_branch"))
    assert len(then) > 1 and len(other) == 1
    assert describe(other.outputs[0]).shape == (2, 6)


def test_where_both_branches_can_be_computed_nothing_is_added() -> None:
    weights: dict[str, Any] = {**WEIGHTS, "z": np.full(4, 2, np.float32)}
    graph = prepare(parse(TWO_SIZES, **weights), {"n": 2, "m": 4})
    assert sorted(node.op_type for node in graph.model.graph.all_nodes()) == ["Add", "If", "Mul"]
    assert graph.static


@pytest.mark.parametrize(("sizes", "kinds"), [({"n": 3, "m": 1}, 2), ({"n": 3, "m": 5}, 0)])
def test_ranks_that_inner_branches_decide(sizes: dict[str, int], kinds: int) -> None:
    """Where sizes decide what rank a recurrence reads, inner branches go, or the sizes stay open."""
    graph = prepare(parse(BY_RANK, **RECURRENT), sizes)
    session(graph.model)
    inner = [node for node in graph.model.graph.all_nodes() if node.op_type == "If"]
    assert (len(inner) == 1) == bool(kinds), "decided, unless it cannot be computed"
    assert not impossible_branches(graph.model)


def test_a_branch_is_opened_again_where_rewriting_left_only_the_constant() -> None:
    """The Resize of a branch reads numbers of which onnx says that there are none, however often it is opened."""
    model = parse(
        f"""{HEAD} t (float[d,1,2,4] x, int64[d] s, bool c) => (float[p,q,h,w] y) {{
        y = If (c) <then_branch = a () => (u) {{ u = Resize <mode = "nearest"> (x, , , s) }},
                    else_branch = b () => (v) {{ v = Resize <mode = "nearest"> (x, , , s) }}> }}"""
    )
    simplify(model)
    rewrite(model, rules())
    simplify(model)


def test_what_is_impossible_is_named_and_does_not_stay_so() -> None:
    text = TWO_SIZES.replace("[n,m]", "[2,6]")
    model = parsed(text, **WEIGHTS)
    model.graph.node(0).name = "choice"
    ((branch, reason),) = impossible_branches(model).items()
    assert branch == Branch("choice", "then_branch") and "ncompatible dimensions" in reason
    clean = parse(text, **WEIGHTS)
    assert not impossible_branches(clean)
    session(clean)


def test_a_body_states_nothing_about_what_a_loop_carries() -> None:
    """A table that grows by a row in each round, which the body calls one row long."""
    model = parse(
        f"""{HEAD} t (float[n,4] x) => (float[k,4] y) {{
        y = Loop (rounds, , x) <body = grow (int64 i, bool go, float[1,4] before) => (bool on, float[1,4] after) {{
            on = Identity (go)
            after = Concat <axis = 0> (before, x) }}> }}""",
        rounds=np.array(3, np.int64),
    )
    graph = prepare(model, {"n": 1})
    (found,) = session(graph.model).run(None, {"x": np.ones((1, 4), np.float32)})
    assert found.shape == (4, 4)
    assert describe(graph.model.graph.outputs[0]).shape == ("k", 4) or not graph.static
