"""The contract of quantised graphs: their integers have one right answer.

A graph that rounds to integers by its own operators (`QuantizeLinear`, `QLinearConv`, `MatMulInteger` ...) is judged against the
same graph with exact integer products, and not by what a precision word allows a model to lose: a backend may be off by ties of
rounding and by rounding in float32. What saturates on the way is wrong, however small the harm is to the answer as a whole.
"""

from __future__ import annotations

import onnx_ir as ir

from bricolage.base.options import BOUNDS, Options, Precision
from bricolage.graph.graph import bodies

EXACT_BOUND = BOUNDS["high"]
"""No looser word holds for a quantised graph. Two runtimes that are both right differ where a number lies near a tie, and one step
of one element of a small output is that much of it."""
TIES = 1e-3
"""Share of the elements of an 8-bit output that may be one step off: before they are rounded they differ in the last places, by
the order of multiplications, and so fall on either side of a tie."""

_INTEGER_WORDS = """
    ConvInteger DynamicQuantizeLSTM DynamicQuantizeLinear DynamicQuantizeMatMul MatMulInteger MatMulIntegerToFloat QAttention
    QEmbedLayerNormalization QGemm QuantizeLinear
"""
_INTEGER = frozenset(_INTEGER_WORDS.split())


def is_quantised(model: ir.Model) -> bool:
    """Whether some operator of a model, in its bodies too, rounds to integers or multiplies them. Weights alone that are stored as
    integers do not make it one: all that is computed with them is float."""
    return any(map(_computes_integers, model.graph))


def accepted_bound(model: ir.Model, bound: float) -> float:
    """The relative error that is accepted of answers of a model where `bound` is asked for."""
    return min(bound, EXACT_BOUND) if is_quantised(model) else bound


def precision_of(model: ir.Model, options: Options) -> Precision:
    """For which precision backends offer their configurations: for a quantised graph none that is looser than what is accepted of
    it, unless a tolerance in numbers says so."""
    looser = BOUNDS[options.precision] > EXACT_BOUND and options.tolerance is None
    return "high" if looser and is_quantised(model) else options.precision


def _computes_integers(node: ir.Node) -> bool:
    if node.op_type in _INTEGER or node.op_type.startswith("QLinear"):
        return True
    return any(_computes_integers(inner) for body in bodies(node) for inner in body)
