# ruff: noqa: ARG005 -- both sides of an equation take all of its inputs, also what they ignore
"""Equations between operators, each with a neighbour that is false, over random shapes.

Derived from the algebra of the operators themselves: commutativity, associativity, distributivity, linearity, what commutes
with what, and what is a special case of what.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.rulemaking.proof.models import Build


@dataclass(frozen=True)
class Axiom:
    """`wrong` differs from `right` in one thing and is not equal to `left`."""

    shapes: dict[str, Any]
    left: Build
    right: Build
    wrong: Build
    options: dict[str, Any] = field(default_factory=dict)


AXIOMS: dict[str, Callable[[random.Random], Axiom]] = {}


def axiom(make: Callable[[random.Random], Axiom]) -> Callable[[random.Random], Axiom]:
    AXIOMS[make.__name__] = make
    return make


def sizes(r: random.Random, count: int, low: int = 2, high: int = 4) -> list[int]:
    return [r.randint(low, high) for _ in range(count)]


def shape(r: random.Random, rank: int | None = None) -> tuple[int, ...]:
    return tuple(sizes(r, r.randint(1, 3) if rank is None else rank))


def permutation(r: random.Random, rank: int) -> list[int]:
    """Never the identity."""
    while True:
        perm = r.sample(range(rank), rank)
        if perm != list(range(rank)):
            return perm


# --- element-wise arithmetic


@axiom
def add_commutes(r: random.Random) -> Axiom:
    s = shape(r)
    return Axiom(
        {"a": s, "b": s}, lambda t, a, b: t.Add(a, b), lambda t, a, b: t.Add(b, a), lambda t, a, b: t.Sub(b, a)
    )


@axiom
def add_associates(r: random.Random) -> Axiom:
    s = shape(r)
    return Axiom(
        {"a": s, "b": s, "c": s},
        lambda t, a, b, c: t.Add(t.Add(a, b), c),
        lambda t, a, b, c: t.Add(a, t.Add(b, c)),
        lambda t, a, b, c: t.Add(a, t.Add(b, b)),
    )


@axiom
def mul_commutes(r: random.Random) -> Axiom:
    s = shape(r)
    return Axiom(
        {"a": s, "b": s}, lambda t, a, b: t.Mul(a, b), lambda t, a, b: t.Mul(b, a), lambda t, a, b: t.Div(b, a)
    )


@axiom
def mul_associates(r: random.Random) -> Axiom:
    s = shape(r)
    return Axiom(
        {"a": s, "b": s, "c": s},
        lambda t, a, b, c: t.Mul(t.Mul(a, b), c),
        lambda t, a, b, c: t.Mul(a, t.Mul(b, c)),
        lambda t, a, b, c: t.Mul(a, t.Mul(c, c)),
    )


@axiom
def mul_distributes_over_add(r: random.Random) -> Axiom:
    s = shape(r)
    return Axiom(
        {"a": s, "b": s, "c": s},
        lambda t, a, b, c: t.Add(t.Mul(a, c), t.Mul(a, b)),
        lambda t, a, b, c: t.Mul(t.Add(b, c), a),
        lambda t, a, b, c: t.Mul(t.Add(a, b), c),  # the erratum of a published table
    )


@axiom
def add_to_its_own_product(r: random.Random) -> Axiom:
    s = shape(r)
    return Axiom(
        {"a": s, "b": s},
        lambda t, a, b: t.Add(a, t.Mul(a, b)),
        lambda t, a, b: t.Mul(a, t.Add(b, 1.0)),
        lambda t, a, b: t.Mul(a, t.Add(b, 1.001)),
    )


@axiom
def difference_of_square_and_product(r: random.Random) -> Axiom:
    s = shape(r)
    return Axiom(
        {"a": s, "b": s, "c": s},
        lambda t, a, b, c: t.Sub(t.Pow(t.Add(a, b), 2.0), t.Mul(t.Add(a, b), c)),
        lambda t, a, b, c: t.Mul(t.Add(a, b), t.Sub(t.Add(a, b), c)),
        lambda t, a, b, c: t.Mul(t.Add(a, b), t.Sub(t.Sub(a, b), c)),
    )


@axiom
def reciprocals_share_a_factor(r: random.Random) -> Axiom:
    s = shape(r)
    return Axiom(
        {"a": s, "b": s},
        lambda t, a, b: t.Mul(t.Reciprocal(a), t.Reciprocal(t.Mul(a, b))),
        lambda t, a, b: t.Mul(t.Pow(t.Reciprocal(a), 2.0), t.Reciprocal(b)),
        lambda t, a, b: t.Mul(t.Reciprocal(a), t.Reciprocal(b)),
    )


@axiom
def division_is_a_product(r: random.Random) -> Axiom:
    s = shape(r)
    return Axiom(
        {"a": s, "b": s, "c": s},
        lambda t, a, b, c: t.Div(t.Div(a, b), c),
        lambda t, a, b, c: t.Mul(a, t.Reciprocal(t.Mul(b, c))),
        lambda t, a, b, c: t.Mul(a, t.Div(c, b)),
    )


@axiom
def scaling_by_dyadic_numbers(r: random.Random) -> Axiom:
    s, k = shape(r), 2.0 ** r.randint(-40, 40)
    return Axiom(
        {"a": s},
        lambda t, a: t.Mul(t.Mul(a, float(k)), float(1 / k)),
        lambda t, a: a,
        lambda t, a: t.Mul(a, 1.0 + 2.0**-10),
    )


@axiom
def sum_and_mean_of_many(r: random.Random) -> Axiom:
    s = shape(r)
    return Axiom(
        {"a": s, "b": s, "c": s},
        lambda t, a, b, c: t.Mean(a, b, c),
        lambda t, a, b, c: t.Mul(t.Sum(c, a, b), 1 / 3),
        lambda t, a, b, c: t.Mul(t.Sum(c, a, b), 0.333),
    )


@axiom
def where_of_where(r: random.Random) -> Axiom:
    from onnx_ir import DataType

    s = shape(r)
    return Axiom(
        {"c": (s, DataType.BOOL), "a": s, "b": s, "k": s},
        lambda t, c, a, b, k: t.Where(c, t.Mul(a, k), t.Mul(b, k)),
        lambda t, c, a, b, k: t.Mul(t.Where(t.Not(c), b, a), k),
        lambda t, c, a, b, k: t.Mul(t.Where(c, b, a), k),
    )


@axiom
def de_morgan(r: random.Random) -> Axiom:
    from onnx_ir import DataType

    s = shape(r)
    return Axiom(
        {"a": (s, DataType.BOOL), "b": (s, DataType.BOOL)},
        lambda t, a, b: t.Not(t.And(a, b)),
        lambda t, a, b: t.Or(t.Not(b), t.Not(a)),
        lambda t, a, b: t.And(t.Not(b), t.Not(a)),
    )


# --- matrix products


@axiom
def matmul_associates(r: random.Random) -> Axiom:
    m, k, n, e = sizes(r, 4)
    return Axiom(
        {"a": (m, k), "b": (k, n), "c": (n, e)},
        lambda t, a, b, c: t.MatMul(t.MatMul(a, b), c),
        lambda t, a, b, c: t.MatMul(a, t.MatMul(b, c)),
        lambda t, a, b, c: t.MatMul(a, t.MatMul(t.Neg(b), c)),
    )


@axiom
def matmul_distributes(r: random.Random) -> Axiom:
    m, k, n = sizes(r, 3)
    return Axiom(
        {"a": (m, k), "b": (k, n), "c": (k, n)},
        lambda t, a, b, c: t.Add(t.MatMul(a, b), t.MatMul(a, c)),
        lambda t, a, b, c: t.MatMul(a, t.Add(b, c)),
        lambda t, a, b, c: t.MatMul(a, t.Sub(b, c)),
    )


@axiom
def transpose_of_matmul(r: random.Random) -> Axiom:
    m, k = sizes(r, 2)
    return Axiom(
        {"a": (m, k), "b": (k, m)},
        lambda t, a, b: t.Transpose(t.MatMul(a, b), perm=[1, 0]),
        lambda t, a, b: t.MatMul(t.Transpose(b, perm=[1, 0]), t.Transpose(a, perm=[1, 0])),
        lambda t, a, b: t.MatMul(a, b),
    )


@axiom
def scaled_matmul(r: random.Random) -> Axiom:
    m, k, n = sizes(r, 3)
    return Axiom(
        {"a": (m, k), "b": (k, n)},
        lambda t, a, b: t.Mul(t.MatMul(a, b), 0.3),
        lambda t, a, b: t.MatMul(a, t.Mul(b, 0.3)),
        lambda t, a, b: t.MatMul(t.Mul(a, 0.3), t.Mul(b, 0.3)),
    )


@axiom
def matmuls_that_share_an_input(r: random.Random) -> Axiom:
    m, k, n = sizes(r, 3)
    return Axiom(
        {"x": (m, k), "v": (k, n), "w": (k, n)},
        lambda t, x, v, w: (t.MatMul(x, v), t.MatMul(x, w)),
        lambda t, x, v, w: t.Split(t.MatMul(x, t.Concat(v, w, axis=1)), outputs=2, axis=1, num_outputs=2),
        lambda t, x, v, w: t.Split(t.MatMul(x, t.Concat(w, v, axis=1)), outputs=2, axis=1, num_outputs=2),
    )


@axiom
def matmul_of_concatenated_inner_axes(r: random.Random) -> Axiom:
    m, k, n = sizes(r, 3)
    return Axiom(
        {"a": (m, k), "b": (m, k), "c": (k, n), "d": (k, n)},
        lambda t, a, b, c, d: t.Add(t.MatMul(a, c), t.MatMul(b, d)),
        lambda t, a, b, c, d: t.MatMul(t.Concat(a, b, axis=1), t.Concat(c, d, axis=0)),
        lambda t, a, b, c, d: t.MatMul(t.Concat(a, b, axis=1), t.Concat(d, c, axis=0)),
    )


@axiom
def batched_matmul_of_one_weight(r: random.Random) -> Axiom:
    b, m, k, n = sizes(r, 4)
    return Axiom(
        {"x": (b, m, k), "w": (k, n)},
        lambda t, x, w: t.MatMul(x, w),
        lambda t, x, w: t.Reshape(t.MatMul(t.Reshape(x, t.ints(b * m, k)), w), t.ints(b, m, n)),
        lambda t, x, w: t.Reshape(
            t.MatMul(t.Reshape(t.Transpose(x, perm=[1, 0, 2]), t.ints(b * m, k)), w), t.ints(b, m, n)
        ),
    )


@axiom
def gemm_is_matmul_and_add(r: random.Random) -> Axiom:
    m, k, n = sizes(r, 3)
    return Axiom(
        {"a": (k, m), "b": (n, k), "c": (n,)},
        lambda t, a, b, c: t.Gemm(a, b, c, transA=1, transB=1, alpha=0.5, beta=2.0),
        lambda t, a, b, c: t.Add(
            t.Mul(t.MatMul(t.Transpose(a, perm=[1, 0]), t.Transpose(b, perm=[1, 0])), 0.5), t.Mul(c, 2.0)
        ),
        lambda t, a, b, c: t.Gemm(a, b, c, transA=1, transB=1, alpha=0.5, beta=0.5),
    )


@axiom
def einsum_is_a_transposed_matmul(r: random.Random) -> Axiom:
    b, h, m, k = sizes(r, 4)
    return Axiom(
        {"q": (b, m, h, k), "k": (b, m, h, k)},
        lambda t, q, k: t.Einsum(q, k, equation="bihd,bjhd->bhij"),
        lambda t, q, k: t.MatMul(t.Transpose(q, perm=[0, 2, 1, 3]), t.Transpose(k, perm=[0, 2, 3, 1])),
        lambda t, q, k: t.MatMul(t.Transpose(k, perm=[0, 2, 1, 3]), t.Transpose(q, perm=[0, 2, 3, 1])),
    )


# --- movement


@axiom
def transposes_compose(r: random.Random) -> Axiom:
    rank = r.randint(3, 4)
    s = tuple(sizes(r, rank, 2, 2))
    first, second = permutation(r, rank), permutation(r, rank)
    while [second[i] for i in first] == [first[i] for i in second]:
        first, second = permutation(r, rank), permutation(r, rank)
    return Axiom(
        {"x": s},
        lambda t, x: t.Transpose(t.Transpose(x, perm=first), perm=second),
        lambda t, x: t.Transpose(x, perm=[first[i] for i in second]),
        lambda t, x: t.Transpose(x, perm=[second[i] for i in first]),
    )


@axiom
def transpose_and_elementwise_commute(r: random.Random) -> Axiom:
    s = tuple(sizes(r, 1) * 3)
    perm = permutation(r, 3)
    return Axiom(
        {"a": s, "b": s},
        lambda t, a, b: t.Transpose(t.Mul(a, b), perm=perm),
        lambda t, a, b: t.Mul(t.Transpose(a, perm=perm), t.Transpose(b, perm=perm)),
        lambda t, a, b: t.Mul(t.Transpose(a, perm=perm), b),
    )


@axiom
def reshapes_collapse(r: random.Random) -> Axiom:
    a, b, c = sizes(r, 3)
    return Axiom(
        {"x": (a, b, c)},
        lambda t, x: t.Reshape(t.Reshape(x, t.ints(a * b, c)), t.ints(b, a * c)),
        lambda t, x: t.Reshape(x, t.ints(b, -1)),
        lambda t, x: t.Reshape(t.Transpose(x, perm=[1, 0, 2]), t.ints(b, a * c)),
    )


@axiom
def unsqueeze_is_a_reshape(r: random.Random) -> Axiom:
    a, b = sizes(r, 2)
    return Axiom(
        {"x": (a, b)},
        lambda t, x: t.Squeeze(t.Unsqueeze(x, t.ints(0, 2)), t.ints(0)),
        lambda t, x: t.Reshape(x, t.ints(a, 1, b)),
        lambda t, x: t.Reshape(x, t.ints(a, b, 1)),
    )


@axiom
def split_undoes_concat(r: random.Random) -> Axiom:
    s, axis = shape(r, 3), r.randint(0, 2)
    return Axiom(
        {"a": s, "b": s},
        lambda t, a, b: t.Split(t.Concat(a, b, axis=axis), outputs=2, axis=axis, num_outputs=2),
        lambda t, a, b: (a, b),
        lambda t, a, b: (b, a),
    )


@axiom
def concat_associates(r: random.Random) -> Axiom:
    s, axis = shape(r, 2), r.randint(0, 1)
    return Axiom(
        {"a": s, "b": s, "c": s},
        lambda t, a, b, c: t.Concat(t.Concat(a, b, axis=axis), c, axis=axis),
        lambda t, a, b, c: t.Concat(a, b, c, axis=axis),
        lambda t, a, b, c: t.Concat(a, b, c, axis=1 - axis),
    )


@axiom
def concats_of_two_axes_exchange(r: random.Random) -> Axiom:
    s = shape(r, 2)
    return Axiom(
        {"a": s, "b": s, "c": s, "d": s},
        lambda t, a, b, c, d: t.Concat(t.Concat(a, b, axis=1), t.Concat(c, d, axis=1), axis=0),
        lambda t, a, b, c, d: t.Concat(t.Concat(a, c, axis=0), t.Concat(b, d, axis=0), axis=1),
        lambda t, a, b, c, d: t.Concat(t.Concat(a, b, axis=0), t.Concat(c, d, axis=0), axis=1),
    )


@axiom
def transpose_and_concat_commute(r: random.Random) -> Axiom:
    s = tuple(sizes(r, 1) * 2)
    return Axiom(
        {"a": s, "b": s},
        lambda t, a, b: t.Transpose(t.Concat(a, b, axis=0), perm=[1, 0]),
        lambda t, a, b: t.Concat(t.Transpose(a, perm=[1, 0]), t.Transpose(b, perm=[1, 0]), axis=1),
        lambda t, a, b: t.Concat(a, b, axis=1),
    )


@axiom
def relu_and_concat_commute(r: random.Random) -> Axiom:
    s = shape(r, 2)
    return Axiom(
        {"a": s, "b": s},
        lambda t, a, b: t.Relu(t.Concat(a, b, axis=0)),
        lambda t, a, b: t.Concat(t.Relu(a), t.Relu(b), axis=0),
        lambda t, a, b: t.Concat(t.Relu(a), b, axis=0),
    )


@axiom
def slices_compose(r: random.Random) -> Axiom:
    n, k = r.randint(8, 12), r.randint(1, 3)
    return Axiom(
        {"x": (2, n)},
        lambda t, x: t.Slice(t.Slice(x, t.ints(k), t.ints(n), t.ints(1)), t.ints(1), t.ints(4), t.ints(1)),
        lambda t, x: t.Slice(x, t.ints(k + 1), t.ints(k + 4), t.ints(1)),
        lambda t, x: t.Slice(x, t.ints(k), t.ints(k + 3), t.ints(1)),
    )


@axiom
def gather_of_a_range_is_a_slice(r: random.Random) -> Axiom:
    n = r.randint(5, 7)
    return Axiom(
        {"x": (n, 3)},
        lambda t, x: t.Gather(x, t.ints(-1, -2, -3), axis=0),
        lambda t, x: t.Slice(x, t.ints(-1), t.ints(-4), t.ints(0), t.ints(-1)),
        lambda t, x: t.Slice(x, t.ints(-3), t.ints(n), t.ints(0)),
    )


@axiom
def slice_undoes_pad(r: random.Random) -> Axiom:
    h, w, k = *sizes(r, 2), r.randint(1, 2)
    return Axiom(
        {"x": (h, w)},
        lambda t, x: t.Slice(t.Pad(x, t.ints(0, k, 0, 2), 7.0), t.ints(k), t.ints(k + w), t.ints(1)),
        lambda t, x: x,
        lambda t, x: t.Slice(t.Pad(x, t.ints(0, 2 * k, 0, 2), 7.0), t.ints(k), t.ints(k + w), t.ints(1)),
    )


@axiom
def tile_is_a_concat(r: random.Random) -> Axiom:
    s = shape(r, 2)
    return Axiom(
        {"x": s},
        lambda t, x: t.Tile(x, t.ints(1, 2)),
        lambda t, x: t.Concat(x, x, axis=1),
        lambda t, x: t.Reshape(t.Concat(x, x, axis=0), t.ints(s[0], 2 * s[1])),
    )


@axiom
def depth_to_space_is_undone(r: random.Random) -> Axiom:
    n, c, h, w = sizes(r, 4, 1, 3)
    return Axiom(
        {"x": (n, 4 * c, h, w)},
        lambda t, x: t.SpaceToDepth(t.DepthToSpace(x, blocksize=2, mode="DCR"), blocksize=2),
        lambda t, x: x,
        lambda t, x: t.Neg(x),
    )


@axiom
def depth_to_space_is_a_transpose(r: random.Random) -> Axiom:
    n, c, h, w = sizes(r, 4, 2, 3)
    return Axiom(
        {"x": (n, 4 * c, h, w)},
        lambda t, x: t.DepthToSpace(x, blocksize=2, mode="CRD"),
        lambda t, x: t.Reshape(
            t.Transpose(t.Reshape(x, t.ints(n, c, 2, 2, h, w)), perm=[0, 1, 4, 2, 5, 3]), t.ints(n, c, 2 * h, 2 * w)
        ),
        lambda t, x: t.DepthToSpace(x, blocksize=2, mode="DCR"),
    )


# --- reductions


@axiom
def reduce_sum_is_linear(r: random.Random) -> Axiom:
    s, axis = shape(r, 3), r.randint(0, 2)
    return Axiom(
        {"a": s, "b": s},
        lambda t, a, b: t.ReduceSum(t.Add(a, t.Mul(b, 3.0)), t.ints(axis)),
        lambda t, a, b: t.Add(t.ReduceSum(a, t.ints(axis)), t.Mul(t.ReduceSum(b, t.ints(axis)), 3.0)),
        lambda t, a, b: t.Add(t.ReduceSum(a, t.ints(axis)), t.ReduceSum(b, t.ints(axis))),
    )


@axiom
def reductions_nest(r: random.Random) -> Axiom:
    a, b, c = sizes(r, 3)
    return Axiom(
        {"x": (a, b, c)},
        lambda t, x: t.ReduceMean(t.ReduceMean(x, t.ints(2), keepdims=0), t.ints(0), keepdims=0),
        lambda t, x: t.ReduceMean(x, t.ints(0, 2), keepdims=0),
        lambda t, x: t.ReduceSum(x, t.ints(0, 2), keepdims=0),
    )


@axiom
def reduce_sum_and_transpose_commute(r: random.Random) -> Axiom:
    s = tuple(sizes(r, 1) * 3)
    return Axiom(
        {"x": s},
        lambda t, x: t.ReduceSum(t.Transpose(x, perm=[2, 0, 1]), t.ints(0), keepdims=0),
        lambda t, x: t.ReduceSum(x, t.ints(2), keepdims=0),
        lambda t, x: t.ReduceSum(x, t.ints(0), keepdims=0),
    )


@axiom
def reduce_sum_is_a_matmul(r: random.Random) -> Axiom:
    m, k = sizes(r, 2)
    return Axiom(
        {"x": (m, k)},
        lambda t, x: t.ReduceSum(x, t.ints(1), keepdims=1),
        lambda t, x: t.MatMul(x, t.constant(np.ones((k, 1), np.float32))),
        lambda t, x: t.MatMul(x, t.constant(np.full((k, 1), 1 / k, np.float32))),
    )


@axiom
def product_of_exponentials(r: random.Random) -> Axiom:
    s = shape(r, 2)
    return Axiom(
        {"x": s},
        lambda t, x: t.ReduceProd(t.Exp(x), t.ints(1)),
        lambda t, x: t.Exp(t.ReduceSum(x, t.ints(1))),
        lambda t, x: t.Exp(t.ReduceMean(x, t.ints(1))),
    )


@axiom
def squares_are_summed(r: random.Random) -> Axiom:
    s = shape(r, 2)
    return Axiom(
        {"x": s},
        lambda t, x: t.ReduceSumSquare(x, t.ints(1)),
        lambda t, x: t.ReduceSum(t.Pow(x, 2.0), t.ints(1)),
        lambda t, x: t.ReduceSum(t.Pow(x, 3.0), t.ints(1)),
    )


@axiom
def variance_in_two_ways(r: random.Random) -> Axiom:
    s = shape(r, 2)

    def centred(t: Any, x: Any) -> Any:
        d = t.Sub(x, t.ReduceMean(x, t.ints(1)))
        return t.ReduceMean(t.Mul(d, d), t.ints(1))

    def moments(t: Any, x: Any) -> Any:
        mean = t.ReduceMean(x, t.ints(1))
        return t.Sub(t.ReduceMean(t.Mul(x, x), t.ints(1)), t.Mul(mean, mean))

    return Axiom({"x": s}, centred, moments, lambda t, x: t.Add(moments(t, x), 1e-5))


# --- convolution


def images(r: random.Random, groups: int = 1, kernel: int = 3) -> tuple[tuple[int, ...], tuple[int, ...]]:
    n, c, m = sizes(r, 3, 1, 3)
    h, w = sizes(r, 2, kernel, kernel + 2)
    return (n, c * groups, h, w), (m * groups, c, kernel, kernel)


@axiom
def conv_is_linear_in_its_input(r: random.Random) -> Axiom:
    x, w = images(r)
    return Axiom(
        {"x": x, "y": x, "w": w},
        lambda t, x, y, w: t.Add(t.Conv(x, w, pads=[1] * 4), t.Conv(y, w, pads=[1] * 4)),
        lambda t, x, y, w: t.Conv(t.Add(x, y), w, pads=[1] * 4),
        lambda t, x, y, w: t.Conv(t.Add(x, x), w, pads=[1] * 4),
    )


@axiom
def conv_is_linear_in_its_kernel(r: random.Random) -> Axiom:
    x, w = images(r)
    k = {"pads": [0, 1, 1, 2], "strides": [2, 1]}
    return Axiom(
        {"x": x, "v": w, "w": w},
        lambda t, x, v, w: t.Add(t.Conv(x, v, **k), t.Conv(x, w, **k)),
        lambda t, x, v, w: t.Conv(x, t.Add(v, w), **k),
        lambda t, x, v, w: t.Conv(x, t.Mul(v, w), **k),
    )


@axiom
def convs_that_share_an_input(r: random.Random) -> Axiom:
    x, w = images(r)
    return Axiom(
        {"x": x, "v": w, "w": w},
        lambda t, x, v, w: (t.Relu(t.Conv(x, v)), t.Relu(t.Conv(x, w))),
        lambda t, x, v, w: t.Split(t.Relu(t.Conv(x, t.Concat(v, w, axis=0))), outputs=2, axis=1, num_outputs=2),
        lambda t, x, v, w: t.Split(t.Relu(t.Conv(x, t.Concat(w, v, axis=0))), outputs=2, axis=1, num_outputs=2),
    )


@axiom
def convs_of_two_inputs_as_one(r: random.Random) -> Axiom:
    x, w = images(r)
    return Axiom(
        {"x": x, "y": x, "v": w, "w": w},
        lambda t, x, y, v, w: t.Add(t.Conv(x, v), t.Conv(y, w)),
        lambda t, x, y, v, w: t.Conv(t.Concat(x, y, axis=1), t.Concat(v, w, axis=1)),
        lambda t, x, y, v, w: t.Conv(t.Concat(y, x, axis=1), t.Concat(v, w, axis=1)),
    )


@axiom
def convs_of_two_inputs_grouped(r: random.Random) -> Axiom:
    x, w = images(r)
    return Axiom(
        {"x": x, "y": x, "v": w, "w": w},
        lambda t, x, y, v, w: t.Concat(t.Conv(x, v), t.Conv(y, w), axis=1),
        lambda t, x, y, v, w: t.Conv(t.Concat(x, y, axis=1), t.Concat(v, w, axis=0), group=2),
        lambda t, x, y, v, w: t.Conv(t.Concat(x, y, axis=1), t.Concat(w, v, axis=0), group=2),
    )


@axiom
def grouped_conv_is_split_convs(r: random.Random) -> Axiom:
    x, w = images(r, groups=2)

    def split(t: Any, x: Any, w: Any, swap: bool = False) -> Any:
        xs = t.Split(x, outputs=2, axis=1, num_outputs=2)
        ws = t.Split(w, outputs=2, axis=0, num_outputs=2)
        return t.Concat(t.Conv(xs[0], ws[swap]), t.Conv(xs[1], ws[not swap]), axis=1)

    return Axiom(
        {"x": x, "w": w},
        lambda t, x, w: t.Conv(x, w, group=2),
        split,
        lambda t, x, w: split(t, x, w, swap=True),
    )


@axiom
def pointwise_conv_is_a_matmul(r: random.Random) -> Axiom:
    n, c, m, h, w = sizes(r, 5, 2, 3)
    flat = lambda t, x, k: t.Reshape(  # noqa: E731
        t.MatMul(t.Reshape(k, t.ints(m, c)), t.Reshape(x, t.ints(n, c, h * w))), t.ints(n, m, h, w)
    )
    return Axiom(
        {"x": (n, c, h, w), "k": (m, c, 1, 1)},
        lambda t, x, k: t.Conv(x, k),
        flat,
        lambda t, x, k: flat(t, t.Mul(x, 2.0), k),
    )


@axiom
def pointwise_convs_compose(r: random.Random) -> Axiom:
    n, c, k, m = sizes(r, 4, 1, 3)
    return Axiom(
        {"x": (n, c, 4, 3), "v": (k, c, 3, 3), "w": (m, k, 1, 1)},
        lambda t, x, v, w: t.Conv(t.Conv(x, v), w),
        lambda t, x, v, w: t.Conv(
            x,
            t.Reshape(t.MatMul(t.Reshape(w, t.ints(m, k)), t.Reshape(v, t.ints(k, c * 9))), t.ints(m, c, 3, 3)),
        ),
        lambda t, x, v, w: t.Conv(t.Conv(x, w), v) if c == k == m > 1 else t.Conv(t.Conv(x, v), t.Neg(w)),
    )


@axiom
def kernels_are_enlarged(r: random.Random) -> Axiom:
    n, c, m, h, w = sizes(r, 5, 2, 3)
    return Axiom(
        {"x": (n, c, h, w), "k": (m, c, 1, 1)},
        lambda t, x, k: t.Conv(x, k),
        lambda t, x, k: t.Conv(x, t.Pad(k, t.ints(0, 0, 1, 1, 0, 0, 1, 1)), pads=[1] * 4),
        lambda t, x, k: t.Conv(x, t.Pad(k, t.ints(0, 0, 2, 1, 0, 0, 0, 1)), pads=[1] * 4),
    )


@axiom
def pad_moves_into_conv(r: random.Random) -> Axiom:
    x, w = images(r)
    return Axiom(
        {"x": x, "w": w},
        lambda t, x, w: t.Conv(t.Pad(x, t.ints(0, 0, 1, 0, 0, 0, 2, 1)), w, strides=[2, 1]),
        lambda t, x, w: t.Conv(x, w, strides=[2, 1], pads=[1, 0, 2, 1]),
        lambda t, x, w: t.Conv(x, w, strides=[2, 1], pads=[2, 1, 1, 0]),
    )


@axiom
def same_padding_written_out(r: random.Random) -> Axiom:
    n, c, m = sizes(r, 3, 1, 3)
    return Axiom(
        {"x": (n, c, 6), "w": (m, c, 3)},
        lambda t, x, w: t.Conv(x, w, auto_pad="SAME_UPPER", strides=[2]),
        lambda t, x, w: t.Conv(x, w, pads=[0, 1], strides=[2]),
        lambda t, x, w: t.Conv(x, w, auto_pad="SAME_LOWER", strides=[2]),
    )


@axiom
def scale_folds_into_conv(r: random.Random) -> Axiom:
    x, w = images(r)
    m = w[0]
    return Axiom(
        {"x": x, "w": w, "b": (m,), "s": (m,)},
        lambda t, x, w, b, s: t.Mul(t.Conv(x, w, b), t.Reshape(s, t.ints(1, -1, 1, 1))),
        lambda t, x, w, b, s: t.Conv(x, t.Mul(w, t.Reshape(s, t.ints(-1, 1, 1, 1))), t.Mul(b, s)),
        lambda t, x, w, b, s: t.Conv(x, t.Mul(w, t.Reshape(s, t.ints(-1, 1, 1, 1))), b),
    )


@axiom
def batch_norm_folds_into_conv(r: random.Random) -> Axiom:
    x, w = images(r)
    m = w[0]

    def folded(t: Any, x: Any, w: Any, s: Any, b: Any, mean: Any, var: Any, epsilon: float = 1e-5) -> Any:
        factor = t.Div(s, t.Sqrt(t.Add(var, epsilon)))
        return t.Conv(x, t.Mul(w, t.Reshape(factor, t.ints(-1, 1, 1, 1))), t.Sub(b, t.Mul(mean, factor)), pads=[1] * 4)

    return Axiom(
        {"x": x, "w": w, "s": (m,), "b": (m,), "mean": (m,), "var": (m,)},
        lambda t, x, w, s, b, mean, var: t.BatchNormalization(t.Conv(x, w, pads=[1] * 4), s, b, mean, var),
        folded,
        lambda t, *inputs: folded(t, *inputs, epsilon=1e-3),
        {"nonnegative": {"var"}},
    )


@axiom
def conv_of_a_grown_input_is_transposed_conv(r: random.Random) -> Axiom:
    n, c, m = sizes(r, 3, 1, 3)
    h, w = sizes(r, 2, 2, 3)

    def dense(t: Any, x: Any, k: Any, flipped: bool = True) -> Any:
        k = t.Transpose(k, perm=[1, 0, 2, 3])
        if flipped:
            k = t.Slice(k, t.ints(-1, -1), t.ints(-9, -9), t.ints(2, 3), t.ints(-1, -1))
        return t.Conv(x, k, pads=[2] * 4)

    return Axiom(
        {"x": (n, c, h, w), "k": (c, m, 3, 3)},
        lambda t, x, k: t.ConvTranspose(x, k),
        dense,
        lambda t, x, k: dense(t, x, k, flipped=False),
    )


# --- pooling


@axiom
def average_pool_is_a_conv(r: random.Random) -> Axiom:
    n, c = sizes(r, 2, 1, 3)
    h, w = sizes(r, 2, 3, 5)
    kernel = np.full((c, 1, 3, 3), 1 / 9, np.float32)
    return Axiom(
        {"x": (n, c, h, w)},
        lambda t, x: t.AveragePool(x, kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=1),
        lambda t, x: t.Conv(x, t.constant(kernel), pads=[1] * 4, group=c),
        lambda t, x: t.AveragePool(x, kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=0),
    )


@axiom
def global_pool_is_a_mean(r: random.Random) -> Axiom:
    s = (*sizes(r, 2), *sizes(r, 2, 2, 5))
    return Axiom(
        {"x": s},
        lambda t, x: t.GlobalAveragePool(x),
        lambda t, x: t.ReduceMean(x, t.ints(2, 3)),
        lambda t, x: t.ReduceMean(x, t.ints(1, 2, 3)) if s[1] > 1 else t.Neg(x),
    )


@axiom
def max_pools_compose(r: random.Random) -> Axiom:
    n, c = sizes(r, 2, 1, 2)
    h, w = sizes(r, 2, 3, 6)
    three = {"kernel_shape": [3, 3], "pads": [1] * 4}
    return Axiom(
        {"x": (n, c, h, w)},
        lambda t, x: t.MaxPool(t.MaxPool(x, **three), **three),
        lambda t, x: t.MaxPool(x, kernel_shape=[5, 5], pads=[2] * 4),
        lambda t, x: t.MaxPool(x, **three),
    )


@axiom
def max_pool_and_concat_commute(r: random.Random) -> Axiom:
    s = (*sizes(r, 2, 1, 2), *sizes(r, 2, 3, 4))
    pool = {"kernel_shape": [2, 2]}
    return Axiom(
        {"a": s, "b": s},
        lambda t, a, b: t.MaxPool(t.Concat(a, b, axis=1), **pool),
        lambda t, a, b: t.Concat(t.MaxPool(a, **pool), t.MaxPool(b, **pool), axis=1),
        lambda t, a, b: t.Concat(t.MaxPool(b, **pool), t.MaxPool(a, **pool), axis=1),
    )


@axiom
def max_pool_and_relu_commute(r: random.Random) -> Axiom:
    s = (*sizes(r, 2, 1, 2), *sizes(r, 2, 3, 4))
    return Axiom(
        {"x": s},
        lambda t, x: t.Relu(t.MaxPool(x, kernel_shape=[2, 3])),
        lambda t, x: t.MaxPool(t.Relu(x), kernel_shape=[2, 3]),
        lambda t, x: t.MaxPool(t.Relu(x), kernel_shape=[3, 2]) if s[2] == s[3] else t.MaxPool(x, kernel_shape=[2, 3]),
    )


@axiom
def bias_moves_through_max_pool(r: random.Random) -> Axiom:
    n, c = sizes(r, 2, 1, 3)
    pool = {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [0, 1, 1, 0]}
    return Axiom(
        {"x": (n, c, 5, 4), "b": (c, 1, 1), "k": (1, 1, 5, 4)},
        lambda t, x, b, k: t.MaxPool(t.Add(x, b), **pool),
        lambda t, x, b, k: t.Add(t.MaxPool(x, **pool), b),
        lambda t, x, b, k: t.Add(t.MaxPool(t.Add(x, k), **pool), b),
    )


@axiom
def reduce_max_nests(r: random.Random) -> Axiom:
    s = shape(r, 3)
    return Axiom(
        {"x": s},
        lambda t, x: t.ReduceMax(t.ReduceMax(x, t.ints(2)), t.ints(0)),
        lambda t, x: t.ReduceMax(x, t.ints(0, 2)),
        lambda t, x: t.ReduceMin(x, t.ints(0, 2)),
    )


# --- normalisation, softmax, activations


@axiom
def softmax_shifts(r: random.Random) -> Axiom:
    s = shape(r, 2)

    def written(t: Any, x: Any, axis: int = 1) -> Any:
        grown = t.Exp(t.Sub(x, t.ReduceMax(x, t.ints(1))))
        return t.Div(grown, t.ReduceSum(grown, t.ints(axis)))

    return Axiom({"x": s}, lambda t, x: t.Softmax(x, axis=-1), written, lambda t, x: written(t, x, axis=0))


@axiom
def layer_norm_written_out(r: random.Random) -> Axiom:
    m, n = sizes(r, 2)

    def written(t: Any, x: Any, s: Any, b: Any, epsilon: float = 1e-5) -> Any:
        d = t.Sub(x, t.ReduceMean(x, t.ints(-1)))
        deviation = t.Sqrt(t.Add(t.ReduceMean(t.Pow(d, 2.0), t.ints(-1)), epsilon))
        return t.Add(t.Mul(t.Div(d, deviation), s), b)

    return Axiom(
        {"x": (m, n), "s": (n,), "b": (n,)},
        lambda t, x, s, b: t.LayerNormalization(x, s, b, axis=-1),
        written,
        lambda t, x, s, b: written(t, x, s, b, 1e-4),
    )


@axiom
def rms_norm_written_out(r: random.Random) -> Axiom:
    m, n = sizes(r, 2)

    def written(t: Any, x: Any, s: Any, exponent: float = -0.5) -> Any:
        return t.Mul(t.Mul(x, t.Pow(t.Add(t.ReduceMean(t.Mul(x, x), t.ints(-1)), 1e-6), exponent)), s)

    return Axiom(
        {"x": (m, n), "s": (n,)},
        lambda t, x, s: t.RMSNormalization(x, s, axis=-1, epsilon=1e-6),
        written,
        lambda t, x, s: written(t, x, s, -1.5),
    )


@axiom
def group_norm_of_one_group_for_each_channel(r: random.Random) -> Axiom:
    n, c = sizes(r, 2, 2, 3)
    return Axiom(
        {"x": (n, c, 3, 2), "s": (c,), "b": (c,)},
        lambda t, x, s, b: t.GroupNormalization(x, s, b, num_groups=c),
        lambda t, x, s, b: t.InstanceNormalization(x, s, b),
        lambda t, x, s, b: t.GroupNormalization(x, s, b, num_groups=1),
    )


@axiom
def gelu_written_out(r: random.Random) -> Axiom:
    s = shape(r)

    def written(t: Any, x: Any, half: float = 0.5) -> Any:
        return t.Mul(t.Mul(x, t.Add(t.Erf(t.Div(x, 2**0.5)), 1.0)), half)

    return Axiom({"x": s}, lambda t, x: t.Gelu(x), written, lambda t, x: written(t, x, 0.51))


@axiom
def gelu_by_tanh_written_out(r: random.Random) -> Axiom:
    s = shape(r)

    def written(t: Any, x: Any, cubic: float = 0.044715) -> Any:
        inner = t.Mul(t.Add(x, t.Mul(t.Pow(x, 3.0), cubic)), (2 / np.pi) ** 0.5)
        return t.Mul(t.Mul(x, 0.5), t.Add(t.Tanh(inner), 1.0))

    return Axiom({"x": s}, lambda t, x: t.Gelu(x, approximate="tanh"), written, lambda t, x: written(t, x, 0.0447))


@axiom
def tanh_is_a_sigmoid(r: random.Random) -> Axiom:
    s = shape(r)
    return Axiom(
        {"x": s},
        lambda t, x: t.Tanh(x),
        lambda t, x: t.Sub(t.Mul(t.Sigmoid(t.Mul(x, 2.0)), 2.0), 1.0),
        lambda t, x: t.Sub(t.Mul(t.Sigmoid(x), 2.0), 1.0),
    )


@axiom
def hard_swish_written_out(r: random.Random) -> Axiom:
    s = shape(r)
    return Axiom(
        {"x": s},
        lambda t, x: t.HardSwish(x),
        lambda t, x: t.Mul(x, t.HardSigmoid(x, alpha=1 / 6, beta=0.5)),
        lambda t, x: t.Mul(x, t.HardSigmoid(x, alpha=0.2, beta=0.5)),
    )


@axiom
def attention_written_out(r: random.Random) -> Axiom:
    b, h, q, k = sizes(r, 4, 1, 3)
    size = 4

    def written(t: Any, q: Any, k: Any, v: Any, scale: float = 0.5) -> Any:
        scores = t.Mul(t.MatMul(q, t.Transpose(k, perm=[0, 1, 3, 2])), scale)
        return t.MatMul(t.Softmax(scores, axis=-1), v)

    return Axiom(
        {"q": (b, h, q, size), "k": (b, h, k + 1, size), "v": (b, h, k + 1, size)},
        lambda t, q, k, v: t.Attention(q, k, v),
        written,
        lambda t, q, k, v: written(t, q, k, v, 0.25),
    )


@axiom
def roots_meet(r: random.Random) -> Axiom:
    s = shape(r)
    return Axiom(
        {"a": s, "b": s, "c": s},
        lambda t, a, b, c: t.Mul(t.Mul(a, t.Sqrt(b)), t.Mul(t.Sqrt(b), c)),
        lambda t, a, b, c: t.Mul(t.Mul(a, b), c),
        lambda t, a, b, c: t.Mul(t.Mul(a, t.Sqrt(b)), c),
        {"nonnegative": {"b"}},
    )


@axiom
def absolute_values_merge(r: random.Random) -> Axiom:
    s = shape(r)
    return Axiom(
        {"a": s, "b": s, "c": s},
        lambda t, a, b, c: t.Mul(t.Mul(t.Abs(a), b), t.Abs(c)),
        lambda t, a, b, c: t.Mul(t.Abs(t.Mul(a, c)), b),
        lambda t, a, b, c: t.Abs(t.Mul(t.Mul(a, c), b)),
    )


@axiom
def clip_is_min_of_max(r: random.Random) -> Axiom:
    s = shape(r)
    return Axiom(
        {"x": s},
        lambda t, x: t.Clip(t.Relu(x), 0.0, 6.0),
        lambda t, x: t.Min(t.Max(x, 0.0), 6.0),
        lambda t, x: t.Max(t.Min(x, 6.0), -6.0),
    )
