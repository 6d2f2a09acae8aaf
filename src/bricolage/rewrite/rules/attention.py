"""Attention that an export wrote out in elementary operators."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from bricolage.graph.constant_folding import constant_elements
from bricolage.graph.graph import describe
from bricolage.rewrite.engine.matching import Match
from bricolage.rewrite.pattern import AnyValue, Either, Op, Weight, op
from bricolage.rewrite.predicates import integer, rank, require, shape, single_precision, sizes
from bricolage.rewrite.rule import Example, Operators, Result, Rule

x = AnyValue("x")

_QKV = "float[2,3,5,4] q, float[2,3,4,6] k, float[2,3,6,7] v"
_PLAIN = "s = MatMul(q, k) p = Softmax(s) y = MatMul(p, v)"
_SCALED = "s = MatMul(q, k) c = Mul(s, f) b = Add(c, m) p = Softmax<axis=-1>(b) y = MatMul(p, v)"
_DIVIDED = "s = MatMul(q, k) c = Div(s, f) p = Softmax<axis=3>(c) y = MatMul(p, v)"
_KEPT = "s = MatMul(q, k) c = Mul(s, f) b = Where(m, c, l) p = Softmax(b) y = MatMul(p, v)"
_FILLED = "s = MatMul(q, k) b = Where(m, l, s) p = Softmax(b) y = MatMul(p, v)"
_KEPT_AND_ADDED = "s = MatMul(q, k) w = Where(n, s, l) b = Add(w, m) p = Softmax(b) y = MatMul(p, v)"
_LEAST = float(np.finfo(np.float32).min)
_CAUSAL = np.tril(np.ones((5, 6), bool))

_ABSORBING = -1e30
"""A number that swallows any score added to it, so that a row in which nothing is kept stays the same too."""
_VANISHING = -1e4
"""A score that weighs nothing compared with one that is kept."""


class RecogniseAttention(Rule):
    """MatMul(Softmax(MatMul(q, k) · c + mask), v) = Attention(q, kᵀ, v, mask, scale=c)

    for q, k, v of rank 4 with equal batches and heads, the softmax along the last axis, c a positive constant of one
    element (1 where there is none, or its reciprocal after /), and a mask (or none) that broadcasts to the scores, whose
    last two sizes are fixed, or equal and the mask's last, where the mask has others; q of at most single precision; from opset 23.
    A choice Where(m, scores, l) is the mask Where(m, 0, l), and so with the two exchanged, for a constant l of one element, at most
    -10³⁰ or, where m is a constant that keeps an element of each row, at most -10⁴.
    """

    family = "attention"
    since = 23
    examples = (
        Example(_QKV, _PLAIN, opset=23),
        Example(f"{_QKV}, float[2,1,1,6] m", _SCALED, {"f": 0.5}, opset=23),
        Example(f"{_QKV}, float[5,6] m", _SCALED, {"f": 0.5}, opset=23),
        Example(_QKV, _DIVIDED, {"f": 2.0}, opset=23),
        Example(f"{_QKV}, bool[2,1,5,6] m", _KEPT, {"f": 0.5, "l": _LEAST}, opset=23),
        Example(f"{_QKV}, bool[1,1,1,6] m", _FILLED, {"l": _LEAST}, opset=23),
        Example(_QKV, _KEPT, {"f": 0.5, "m": _CAUSAL, "l": -np.inf}, opset=23),
        Example(_QKV, _FILLED, {"m": ~_CAUSAL, "l": [-1e9]}, opset=23),
        Example(
            "float[B,3,N,4] q, float[B,3,4,N] k, float[B,3,N,7] v, float[B,1,1,N] m", _SCALED, {"f": 0.5}, opset=23
        ),
        Example(f"{_QKV}, float[2,1,1,6] m", _KEPT_AND_ADDED, {"n": _CAUSAL, "l": -1e4}, opset=23),
    )
    counterexamples = (
        Example(_QKV, _PLAIN.replace("Softmax", "Softmax<axis=2>"), opset=23, why="last axis"),
        Example(_QKV, _DIVIDED, {"f": -2.0}, opset=23, why="positive"),
        Example(_QKV, _DIVIDED, {"f": (6,)}, opset=23, why="one element"),
        Example("float[3,5,4] q, float[3,4,6] k, float[3,6,7] v", _PLAIN, opset=23, why="rank 4"),
        Example("float[2,3,5,4] q, float[2,1,4,6] k, float[2,3,6,7] v", _PLAIN, opset=23, why="batches and heads"),
        Example(f"{_QKV}, float[4,1,2,3,1,6] m", _SCALED, {"f": 0.5}, opset=23, why="rank"),
        examples[1].but("not known", inputs="float[2,3,N,4] q, float[2,3,4,6] k, float[2,3,6,7] v, float[2,1,1,6] m"),
        Example(f"{_QKV}, bool[1,1,5,6] m", _FILLED, {"l": -1e9}, opset=23, why="may still count"),
        Example(_QKV, _FILLED, {"m": np.ones((5, 6), bool), "l": -1e9}, opset=23, why="may still count"),
        Example(_QKV, _KEPT, {"f": 0.5, "m": _CAUSAL, "l": -100.0}, opset=23, why="may still count"),
        Example(_QKV, _FILLED, {"m": ~_CAUSAL, "l": (1, 6)}, opset=23, why="one element"),
        examples[1].but("larger", inputs="float[1,3,5,4] q, float[1,3,4,6] k, float[1,3,6,7] v, float[2,1,1,6] m"),
        Example(f"{_QKV}, bool[4,2,3,5,6] m", _KEPT, {"f": 0.5, "l": _LEAST}, opset=23, why="rank"),
        Example(_QKV, _PLAIN, opset=22),
    )

    def patterns(self) -> list[Op]:
        product = op.MatMul(AnyValue("q"), AnyValue("k"), name="product")
        scores = Either(op.Mul(product, Weight("c"), name="mul"), op.Div(product, Weight("c"), name="div"), product)
        kept = op.Where(AnyValue("condition"), scores, Weight("low"), name="kept")
        filled = op.Where(AnyValue("condition"), Weight("low"), scores, name="filled")
        chosen = Either(kept, filled, scores)
        masked = Either(op.Add(chosen, AnyValue("mask"), name="masked"), chosen)
        return [op.MatMul(op.Softmax(masked, name="softmax"), AnyValue("v"))]

    def check(self, match: Match) -> None:
        single_precision(match["q"])
        ranks = [rank(match[name]) for name in "qkv"]
        require(ranks == [4, 4, 4], "q, k and v are not all of rank 4")
        batches = {shape(match[name])[:2] for name in "qkv"}
        require(len(batches) == 1 and "?" not in batches.pop(), "q, k and v have different batches and heads")
        require(integer(match.node("softmax"), "axis", -1) in (-1, 3), "the softmax is not along the last axis")
        if "mul" in match.nodes or "div" in match.nodes:
            self._scale(match)
        if "kept" in match.nodes or "filled" in match.nodes:
            self._low(match)
        if "masked" in match.nodes:
            mask = match["mask"]
            require(describe(mask).dtype == describe(match["q"]).dtype, "the mask has another type")
            require(rank(mask) <= 4, "the mask has a higher rank than the scores")
        weighed, whole = shape(match.node("product").outputs[0]), shape(match.node("softmax").outputs[0])
        require(weighed == whole and "?" not in whole, "the mask is larger than the scores")

    @staticmethod
    def _scale(match: Match) -> float:
        if "mul" not in match.nodes and "div" not in match.nodes:
            return 1.0
        array = constant_elements(match["c"])
        require(array is not None and array.size == 1 and len(sizes(match["c"])) <= 4, "the scale has not one element")
        assert array is not None
        scale = float(array.reshape(()).astype(float))
        require(math.isfinite(scale) and scale > 0, "the scale is not positive")
        return 1 / scale if "div" in match.nodes else scale

    @staticmethod
    def _low(match: Match) -> float:
        """What the scores that are masked are set to."""
        condition, array = match["condition"], constant_elements(match["low"])
        require(array is not None and array.size == 1, "what masked scores are set to has not one element")
        assert array is not None
        require(max(rank(condition), array.ndim) <= 4, "the mask has a higher rank than the scores")
        low, kept = float(array.reshape(()).astype(float)), constant_elements(condition)
        if "filled" in match.nodes and kept is not None:
            kept = ~kept
        rows = kept is not None and kept.ndim > 0 and bool(kept.any(axis=-1).all())
        require(low <= (_VANISHING if rows else _ABSORBING), "scores that are masked may still count")
        return low

    def _mask(self, op: Operators, match: Match) -> ir.Value | None:
        """What is added to the scores, of rank 4."""
        masks = [match["mask"]] if "masked" in match.nodes else []
        if "kept" in match.nodes or "filled" in match.nodes:
            zero, low = op.number(0, match["q"]), op.number(self._low(match), match["q"])
            masks.append(op.Where(match["condition"], *((zero, low) if "kept" in match.nodes else (low, zero))))
        if not masks:
            return None
        mask = masks[0] if len(masks) == 1 else op.Add(*masks)
        return mask if rank(mask) == 4 else op.Unsqueeze(mask, op.integers(list(range(4 - rank(mask)))))

    def rewrite(self, op: Operators, match: Match) -> Result:
        mask = self._mask(op, match)
        scores = match.node("softmax").outputs[0]
        if mask is not None and shape(mask)[2:] != shape(scores)[2:]:
            mask = op.Expand(
                mask, self._whole(op, mask, scores)
            )  # runtimes broadcast a mask over batches and heads only
        key = op.Transpose(match["k"], perm=[0, 1, 3, 2])
        return op.Attention(match["q"], key, match["v"], mask, scale=self._scale(match))

    @staticmethod
    def _whole(op: Operators, mask: ir.Value, scores: ir.Value) -> ir.Value:
        """The sizes to which a mask expands. Equal unknown ones are asked of the mask, which is the same for all layers."""
        rows, columns = shape(scores)[2:]
        if isinstance(rows, int) and isinstance(columns, int):
            return op.integers([1, 1, rows, columns])
        require(rows == columns == shape(mask)[3] and rows != "?", f"a dimension of '{scores.name}' is not known")
        return op.Concat(op.integers([1, 1]), op.Shape(mask, start=3), op.integers([1]), axis=0)
