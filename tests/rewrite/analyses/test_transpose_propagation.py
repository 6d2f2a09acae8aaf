"""Operators on stored values: every operator under every permutation either refuses or computes the same."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import onnx_ir as ir
import pytest

from bricolage.rewrite.analyses.transpose_propagation import (
    Permutation,
    compose,
    inverse,
    is_identity,
    transpose_operator,
)
from bricolage.rewrite.engine.apply import apply_once
from bricolage.rewrite.predicates import rank
from bricolage.rewrite.rule import Example, GraphRule, MatchFailure, Operators, Replacement
from tests.rewrite.checking import check_equal

_X, _ABC = "float[2,3,4] x", {"a": [1], "b": [3], "c": [-1]}


class Stored(GraphRule):
    """f(x) = Transpose(f'(Transpose⁻¹(x)))"""

    family = "test"

    def __init__(self, perm: Permutation) -> None:
        self._perm = perm

    def find_sites(self, graph: ir.Graph) -> Iterator[tuple[ir.Node, Replacement]]:
        yield graph[0], lambda op: self._write(op, graph[0])

    def _write(self, op: Operators, node: ir.Node) -> Mapping[ir.Value, ir.Value]:
        found = transpose_operator(node, self._perm)
        given = []
        for value, perm in zip(node.inputs, found.inputs, strict=True):
            if value is not None and perm is not None:
                missing = len(perm) - rank(value)
                wide = op.Unsqueeze(value, op.integers(range(missing))) if missing else value
                given.append(op.Transpose(wide, perm=inverse(perm)))
            else:
                given.append(value)
        results = found.build(op, given)
        pairs = zip(node.outputs, results, found.outputs, strict=True)
        return {old: op.Transpose(new, perm=perm) for old, new, perm in pairs}


WHOLE = {
    "Tanh": Example(_X, "y = Tanh(x)"),
    "Sub": Example(f"{_X}, float[4] z", "y = Sub(x, z)"),
    "Where": Example(f"bool[3,1] c, {_X}, float[2,1,1] z", "y = Where(c, x, z)"),
    "Sum": Example(f"{_X}, float[3,4] z, float[1] u", "y = Sum(x, z, u)"),
    "PRelu": Example(_X, "y = PRelu(x, s)", {"s": (3, 1)}),
    "Clip": Example(_X, "y = Clip(x, l, h)", {"l": -0.5, "h": 0.5}),
    "CastLike": Example(f"{_X}, float[7] z", "y = CastLike(x, z)"),
    "Softmax": Example(_X, "y = Softmax<axis=1>(x)"),
    "Concat": Example(f"{_X}, float[2,5,4] z", "y = Concat<axis=-2>(x, z)"),
    "Split": Example("float[2,4,3] x", "y, z = Split<axis=1, num_outputs=2>(x)", outputs="y, z"),
    "Slice": Example(_X, "y = Slice(x, a, b, c)", _ABC),
    "Slice of the first axes": Example(_X, "y = Slice(x, a, b)", {"a": [0, 1], "b": [2, 3]}),
    "Slice backwards": Example(_X, "y = Slice(x, a, b, c, d)", {"a": [3], "b": [0], "c": [2], "d": [-2]}),
    "Pad": Example(_X, "y = Pad(x, p)", {"p": [0, 1, 2, 1, 0, 0]}),
    "Pad of some axes": Example(_X, 'y = Pad<mode="edge">(x, p, , a)', {"p": [1, 0, 0, 2], "a": [2, 0]}),
    "ReduceMean": Example(_X, "y = ReduceMean(x, a)", {"a": [1]}),
    "ReduceMax without": Example(_X, "y = ReduceMax<keepdims=0>(x, a)", {"a": [-2]}),
    "ReduceSum of all": Example(_X, "y = ReduceSum<keepdims=0>(x)"),
    "ArgMax": Example(_X, "y = ArgMax<axis=1>(x)"),
    "ArgMin without": Example(_X, "y = ArgMin<axis=-1, keepdims=0>(x)"),
    "Resize by scales": Example(_X, 'y = Resize<mode="linear">(x, , s)', {"s": [1.0, 2.0, 0.5]}),
    "Resize to sizes": Example(_X, "y = Resize(x, , , s)", {"s": [2, 6, 4]}),
    "Resize of some axes": Example(_X, "y = Resize<axes=[2,1]>(x, , s)", {"s": [2.0, 3.0]}),
    "Squeeze": Example("float[2,1,4,1] x", "y = Squeeze(x, a)", {"a": [1, -1]}),
    "Unsqueeze": Example(_X, "y = Unsqueeze(x, a)", {"a": [1, -1]}),
    "Gather": Example(_X, "y = Gather<axis=1>(x, i)", {"i": [2, 0]}),
    "Gather of one": Example(_X, "y = Gather<axis=-2>(x, i)", {"i": 1}),
    "Tile": Example(_X, "y = Tile(x, r)", {"r": [1, 3, 2]}),
    "Expand": Example("float[2,1,4] x", "y = Expand(x, s)", {"s": [1, 5, 4]}),
}
"""Operators that commute with every permutation of their data."""

PART = {
    "MatMul": Example("float[2,3,4] x", "y = MatMul(x, w)", {"w": (4, 5)}),
    "MatMul of two": Example("float[2,3,3,4] x, float[2,3,4,5] z", "y = MatMul(x, z)"),
    "LayerNormalization": Example(_X, "y = LayerNormalization<axis=2>(x, s)", {"s": (4,)}),
    "BatchNormalization": Example(_X, "y = BatchNormalization(x, s, s, s, s)", {"s": (3,)}),
}
"""Operators that commute with some permutations."""

NEVER = {
    "Conv": (Example("float[2,3,4] x", "y = Conv(x, w)", {"w": (2, 3, 2)}), "does not commute"),
    "Resize by cubics": (Example(_X, 'y = Resize<mode="cubic">(x, , s)', {"s": [1.0, 2.0, 2.0]}), "mode"),
    "Resize cropped": (
        Example(
            _X,
            'y = Resize<coordinate_transformation_mode="tf_crop_and_resize">(x, r, s)',
            {"r": [0.0, 0.0, 0.0, 1.0, 1.0, 1.0], "s": [1.0, 2.0, 2.0]},
        ),
        "cropped",
    ),
    "Pad by what is computed": (Example(f"{_X}, int64[6] p", "y = Pad(x, p)"), "not a constant"),
    "Reduce of nothing": (Example(_X, "y = ReduceSum<noop_with_empty_axes=1>(x)"), "reduces nothing"),
    "Squeeze without axes": (Example("float[2,1,4] x", "y = Squeeze(x)"), "not named"),
    "Gather of a matrix": (Example(_X, "y = Gather(x, i)", {"i": [[0, 1]]}), "more than one axis"),
    "Expand to more axes": (Example(_X, "y = Expand(x, s)", {"s": [2, 2, 3, 4]}), "axes are added"),
    "Clip by many": (Example("float[1,1,3] x", "y = Clip(x, l)", {"l": (3,)}), "more than one element"),
    "LayerNormalization with a mean": (
        Example(_X, "y, m = LayerNormalization(x, s)", {"s": (4,)}, outputs="y, m"),
        "axis moves|another output",
    ),
    "LayerNormalization by rows": (
        Example(_X, "y = LayerNormalization<axis=0>(x, s)", {"s": (2, 3, 4)}),
        "axis moves",
    ),
}


def stays_equal(example: Example, perm: Permutation) -> bool:
    """Whether the operator commutes with the permutation; it is checked that the answer is the same then."""
    before, after = example.model(), example.model()
    if apply_once(after, Stored(perm)) is None:
        return False
    check_equal(before, after, attempts=1)
    return True


@pytest.mark.parametrize("name", WHOLE)
def test_operators_that_commute_with_every_permutation(name: str) -> None:
    example = WHOLE[name]
    perms = list(itertools.permutations(range(rank(example.model().graph[0].inputs[1 if name == "Where" else 0]))))
    for perm in perms if len(perms) < 10 else perms[::5]:
        assert stays_equal(example, perm), perm


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("MatMul", lambda p: p[-1] == 2),
        ("MatMul of two", lambda p: p[2:] == (2, 3)),
        ("LayerNormalization", lambda p: p[2] == 2),
        ("BatchNormalization", lambda p: p[1] == 1),
    ],
)
def test_operators_that_commute_with_some(name: str, allowed: object) -> None:
    assert callable(allowed)
    count = rank(PART[name].model().graph.inputs[0])
    for perm in itertools.permutations(range(count)):
        assert stays_equal(PART[name], perm) == allowed(perm), perm


@pytest.mark.parametrize("name", NEVER)
def test_operators_that_do_not_say_why(name: str) -> None:
    example, why = NEVER[name]
    node = example.model().graph[0]
    for perm in list(itertools.permutations(range(3)))[1:]:
        with pytest.raises(MatchFailure, match=why):
            transpose_operator(node, perm)


def test_composition_and_inverse() -> None:
    for first, second in itertools.product(itertools.permutations(range(3)), repeat=2):
        assert is_identity(compose(first, inverse(first))) and is_identity(compose(inverse(first), first))
        assert inverse(compose(first, second)) == compose(inverse(second), inverse(first))
