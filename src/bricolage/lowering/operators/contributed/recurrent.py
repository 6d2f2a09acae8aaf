# ruff: noqa: ARG001 -- the signature is the operator's schema: attributes that change nothing are named all the same
"""Recurrent operators on integers (ContribOperators.md of microsoft/onnxruntime)."""

from __future__ import annotations

from typing import Unpack

import onnx_ir as ir

from bricolage.lowering.arrays import Arrays
from bricolage.lowering.common import Array, Results, contributed
from bricolage.lowering.operators.quantization import dynamic_quantize_linear, matmul_integer
from bricolage.lowering.operators.recurrent import Product, RecurrentAttributes, lstm_bias, lstm_cells, run

_LENGTHS = 4


def _some_lengths(node: ir.Node) -> str | None:
    if len(node.inputs) > _LENGTHS and node.inputs[_LENGTHS] is not None:
        return "what is quantised together is open where sequences have lengths of their own"
    return None


@contributed("DynamicQuantizeLSTM", unless=_some_lengths)
def dynamic_quantize_lstm(
    xp: Arrays,
    x: Array,
    w: Array,
    r: Array,
    b: Array = None,
    lengths: Array = None,
    initial_h: Array = None,
    initial_c: Array = None,
    peepholes: Array = None,
    w_scale: Array = None,
    w_zero: Array = None,
    r_scale: Array = None,
    r_zero: Array = None,
    *,
    input_forget: int = 0,
    **attributes: Unpack[RecurrentAttributes],
) -> Results:
    """ContribOperators.md#com.microsoft.DynamicQuantizeLSTM: an LSTM whose weights are integers, with inputs before gates. All of
    X has one scale, and so has the state of each step, all of the batch together, as DynamicQuantizeLinear finds it: what ONNX
    Runtime computes on one thread, and on several for small batches."""

    def product(weight: Array, scale: Array, zero: Array, d: int, bias: Array | None) -> Product:
        scale, zero = scale[d].reshape((1, -1)), zero[d].reshape((-1,))[0]

        def of(rows: Array) -> Array:
            integers, rows_scale, rows_zero = dynamic_quantize_linear(xp, rows)
            total = matmul_integer(xp, integers, weight[d], rows_zero, zero)
            result = xp.astype(total, rows.dtype) * (rows_scale * scale)
            return result if bias is None else result + bias

        return of

    def products(d: int) -> tuple[Product, Product]:
        bias = None if b is None else lstm_bias(b, d)
        return product(w, w_scale, w_zero, d, bias), product(r, r_scale, r_zero, d, None)

    make_cell = lstm_cells(xp, products, r.shape[1], peepholes, bool(input_forget), attributes)
    direction = attributes.get("direction", "forward")
    return run(xp, x, make_cell, (initial_h, initial_c), r.shape[1], None, direction)
