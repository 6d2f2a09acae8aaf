"""Outliers of an activation moved into the weights that read it, so that what is left fits into 8 bits. These equations hold for
any factors; which are used follows from data, so that the rules are made with them and stand in no catalogue."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from bricolage.graph.constant_folding import constant_elements
from bricolage.rewrite.engine.matching import Match
from bricolage.rewrite.pattern import AnyValue, Op, Weight, op
from bricolage.rewrite.predicates import integer, rank, require, shape, sizes
from bricolage.rewrite.rule import Example, Operators, Result, Rule

_STEPS = 1 << 20
_FACTORS = {"y": np.array([2.0, 0.5, 4.0])}


class MigrateScaleIntoProduct(Rule):
    """L(x, w, b) = L(x · 1/s, s · w, b)

    for L a Conv, MatMul or Gemm with constant weight, and s a positive number for each input channel; also where a Reshape that
    keeps the last axis stands before L. Behind a normalisation or another product the factor is in their weights
    (Xiao et al., "SmoothQuant", ICML 2023; Nagel et al., "Data-Free Quantization Through Weight Equalization", ICCV 2019).
    """

    family = "migration"
    cost_based = True
    examples = (
        Example("float[2,3] x", "y = MatMul(x, w)", {"w": (3, 4)}),
        Example("float[2,3] x", "y = Gemm<transB=1>(x, w, b)", {"w": (4, 3), "b": (4,)}),
        Example("float[2,3] x", "y = Gemm(x, w)", {"w": (3, 4)}),
        Example("float[1,3,4] x", "y = Conv<pads=[1,1]>(x, w)", {"w": (2, 3, 3)}),
        Example("float[1,3,4] x", "y = Conv<group=3>(x, w)", {"w": (3, 1, 2)}),
        Example(
            "float[2,2,3] x", "r = Reshape(x, shape) y = Gemm(r, w, b)", {"w": (3, 4), "b": (4,), "shape": [-1, 3]}
        ),
    )
    counterexamples = (
        Example("float[2,3] x, float[3,4] w", "y = MatMul(x, w)", why="not a constant"),
        Example("float[2,5] x", "y = MatMul(x, w)", {"w": (5, 4)}, why="factors"),
        Example("float[3,2] x", "y = Gemm<transA=1>(x, w)", {"w": (3, 4)}, why="transposed"),
        Example("float[2,3] x", "z = MatMul(x, w)", {"w": (3, 4)}, outputs="z", why="no factors"),
    )

    def __init__(self, factors: Mapping[str, np.ndarray] | None = None) -> None:
        """`factors`: positive numbers, one for each input channel, by name of what the product computes."""
        self._factors = _FACTORS if factors is None else factors

    def patterns(self) -> list[Op]:
        direct = op.one_of("Conv", "MatMul", "Gemm")
        x, bias = AnyValue("x"), AnyValue("b", optional=True)
        through = op.Reshape(x, AnyValue("shape"), name="reshape")
        return [op.Gemm(through, Weight("w"), bias, name="linear"), direct(x, Weight("w"), bias, name="linear")]

    def check(self, match: Match) -> None:
        node = match.node("linear")
        factors = self._factors.get(node.outputs[0].name or "")
        require(factors is not None, "there are no factors for it")
        assert factors is not None
        require(not integer(node, "transA", 0), "its activation is transposed")
        axis = 1 if node.op_type == "Conv" else -1
        require(
            rank(match["x"]) > 1 and shape(match["x"])[axis] == factors.size, "it has not as many channels as factors"
        )
        require(rank(match["w"]) > 1, "its weight is a vector")
        if "reshape" in match.nodes:
            require(shape(match.node("reshape").outputs[0])[-1] == factors.size, "the Reshape changes the last axis")

    def rewrite(self, op: Operators, match: Match) -> Result:
        node = match.node("linear")
        factors = self._factors[node.outputs[0].name or ""]
        convolution = node.op_type == "Conv"
        taps = [1] * (rank(match["w"]) - 2)
        vector = _vector(op, factors, match["w"])
        inverse = op.Reciprocal(op.Reshape(vector, op.integers([-1, *taps])) if convolution else vector)
        smaller = op.Mul(match["x"], inverse)
        if "reshape" in match.nodes:
            smaller = op.copy(match.node("reshape"), smaller, match["shape"])
        scaled = op.Mul(match["w"], _laid_out(op, node, vector, sizes(match["w"])))
        return op.copy(node, smaller, scaled, match.get("b"))


class ScaleBeforeRectifier(Rule):
    """Relu(x) · c = Relu(x · c), and for LeakyRelu

    for c a constant of positive numbers.
    """

    family = "migration"
    enabling = True
    examples = (
        Example("float[2,3] x", "t = Relu(x) y = Mul(t, c)", {"c": [2.0, 0.5, 4.0]}),
        Example("float[2,3] x", "t = LeakyRelu<alpha=0.5>(x) y = Mul(t, c)", {"c": [2.0, 0.5, 4.0]}),
    )
    counterexamples = (
        Example("float[2,3] x", "t = Relu(x) y = Mul(t, c)", {"c": [2.0, -0.5, 4.0]}, why="positive"),
        Example("float[2,3] x", "t = Relu(x) y = Mul(t, c)", {"c": [2.0, 1.0, 1.0]}, outputs="y, t", why="read"),
    )

    def patterns(self) -> list[Op]:
        return [op.Mul(op.one_of("Relu", "LeakyRelu")(AnyValue("x"), name="rectifier"), Weight("c"))]

    def check(self, match: Match) -> None:
        factor = constant_elements(match["c"])
        require(factor is not None and bool((factor > 0).all()), "the factor is not positive")
        result = match.node("rectifier").outputs[0]
        require(len(result.uses()) == 1 and not result.is_graph_output(), "the rectifier is read by others")
        require(rank(match["c"]) <= rank(match["x"]), "the factor is of higher rank")

    def rewrite(self, op: Operators, match: Match) -> Result:
        return op.copy(match.node("rectifier"), op.Mul(match["x"], match["c"]))


def _vector(op: Operators, factors: np.ndarray, like: ir.Value) -> ir.Value:
    """A constant with one number for each channel, in steps of 2^-20: rules write lists of integers alone."""
    steps = np.maximum(np.rint(factors.astype(np.float64) * _STEPS), 1).astype(np.int64)
    whole = op.Cast(op.integers(steps.tolist()), to=int(like.dtype or ir.DataType.FLOAT))
    return op.Mul(whole, op.number(1 / _STEPS, like))


def _laid_out(op: Operators, node: ir.Node, vector: ir.Value, own: tuple[int, ...]) -> ir.Value:
    """The factors, to be multiplied with the weight."""
    if node.op_type == "Conv":
        groups, taps = integer(node, "group", 1), [1] * (len(own) - 2)
        by_group = op.Reshape(vector, op.integers([groups, 1, own[1], *taps]))
        each = op.Expand(by_group, op.integers([groups, own[0] // groups, own[1], *taps]))
        return op.Reshape(each, op.integers([own[0], own[1], *taps]))
    if node.op_type == "Gemm" and integer(node, "transB", 0):
        return vector
    return op.Reshape(vector, op.integers([-1, 1]))
