"""Products of rounded operands are products of bfloat16, and nothing else changes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir

from bricolage.testing.bfloat16_model import in_bfloat16
from bricolage.verify.reference import evaluate
from tests.graph.models import parse


def test_operands_of_products_are_rounded() -> None:
    draw = np.random.default_rng(0)
    w, x = (draw.standard_normal(shape).astype(np.float32) for shape in ((4, 5), (3, 4)))
    model = parse(
        '<ir_version: 10, opset_import: ["" : 18]> m (float[3,4] x) => (float[3,5] y) { p = MatMul (x, w) y = Exp (p) }',
        w=w,
    )
    (found,) = evaluate(in_bfloat16(ir.to_proto(model)), {"x": x}, dtype=np.float32).values()
    half = [array.astype(ml_dtypes.bfloat16).astype(np.float64) for array in (x, w)]
    assert np.allclose(found, np.exp(half[0] @ half[1]), rtol=1e-5)
    assert not np.allclose(found, np.exp(x @ w), rtol=1e-4)
