"""Indices that inputs put outside of a tensor are found before anything runs, and no others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.errors import IndexBeyond
from bricolage.graph.inference import infer
from bricolage.verify.index_guard import IndexGuard
from tests.graph.models import parse

TABLE = np.arange(15, dtype=np.float32).reshape(5, 3)
WAYS: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    "as it is": ("j = Identity (i)", lambda i: i),
    "shifted": ("j = Sub (i, two)", lambda i: i - 2),
    "from a mask": ("c = Less (i, zero) j = Where (c, zero, i)", lambda i: np.where(i < 0, 0, i)),
    "positions": (
        "c = Greater (i, zero) b = Cast <to = 7> (c) o = CumSum (b, zeros) j = Mul (o, b)",
        lambda i: np.cumsum(i > 0) * (i > 0),
    ),
    "cast": ("f = Cast <to = 1> (i) j = Cast <to = 7> (f)", lambda i: i),
    "a part": ("j = Slice (i, first, last, zeros)", lambda i: i[1:3]),
    "with itself": ("j = Concat <axis = 0> (i, i)", lambda i: i),
    "clipped": ("j = Clip (i, zero, two)", lambda i: np.clip(i, 0, 2)),
}
"""How the indices come from the input: as a model, and as numpy has it."""
READERS = {
    "Gather": "y = Gather (t, j)",
    "GatherND": "k = Unsqueeze (j, last1) y = GatherND (t, k)",
    "GatherElements": "k = Unsqueeze (j, last1) y = GatherElements <axis = 0> (t, k)",
    "ScatterND": "k = Unsqueeze (j, last1) u = Gather (t, nothing) s = Shape <end = 1> (k) w = Concat <axis = 0> (s, three)"
    " n = Expand (u, w) y = ScatterND (t, k, n)",
}


def network(way: str, reader: str) -> ir.Model:
    made = parse(
        f'<ir_version: 8, opset_import: ["" : 18]> test (int64[4] i) => (float[p,q] y) {{ {WAYS[way][0]} {READERS[reader]} }}',
        t=TABLE,
        zero=np.array(0),
        two=np.array(2),
        first=np.array([1]),
        last=np.array([3]),
        last1=np.array([-1]),
        nothing=np.array(0),
        zeros=np.array([0]),
        three=np.array([3]),
    )
    infer(made)
    return made


@given(
    st.sampled_from(sorted(WAYS)),
    st.sampled_from(sorted(READERS)),
    st.lists(st.integers(-8, 8), min_size=4, max_size=4),
)
@settings(max_examples=120, deadline=None)
def test_it_raises_where_an_index_lies_outside(way: str, reader: str, numbers: list[int]) -> None:
    made, i = network(way, reader), np.array(numbers)
    guard, j = IndexGuard(made), WAYS[way][1](i)
    right = bool(((j >= -5) & (j <= 4)).all())
    if not guard.empty:
        for _ in range(2):  # what was shown right once is remembered
            try:
                guard.check({"i": i})
                assert right
            except IndexBeyond as error:
                assert not right and error.exit_code == 2 and "'i'" in str(error)
    else:
        assert right and not guard.unchecked


def test_what_was_shown_is_surely_right() -> None:
    guard = IndexGuard(network("as it is", "Gather"))
    assert guard.shown == {} and guard.leaves == ("i",)
    guard.check({"i": np.array([1, 2, 3, 1])})
    assert guard.shown == {"i": (0.0, 4.0)}
    guard.check({"i": np.array([-5, 2, 3, 1])})
    assert guard.shown == {"i": (-5.0, 4.0)}
    with pytest.raises(IndexBeyond, match="-6 lies outside"):
        guard.check({"i": np.array([1, -6, 3, 1])})


def test_what_no_input_shows_is_told() -> None:
    made = parse(
        '<ir_version: 8, opset_import: ["" : 18]> test (float[4] x) => (float[p,q] y)'
        " { e = Exp (x) j = Cast <to = 7> (e) y = Gather (t, j) }",
        t=TABLE,
    )
    infer(made)
    guard = IndexGuard(made)
    assert guard.empty and [use.node.op_type for use in guard.unchecked] == ["Gather"]
