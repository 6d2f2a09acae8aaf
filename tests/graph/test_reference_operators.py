"""What the ONNX reference implementation computes wrongly is put right."""

from __future__ import annotations

import math

import numpy as np
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator

from bricolage.graph.reference_operators import CORRECTED


@pytest.mark.parametrize(("name", "dtype"), [("double", np.float64), ("float", np.float32), ("float16", np.float16)])
@pytest.mark.parametrize("shape", [(), (3,)])
def test_erf_is_of_the_precision_of_its_input(name: str, dtype: type, shape: tuple[int, ...]) -> None:
    sizes = f"[{','.join(map(str, shape))}]"
    text = f"""<ir_version: 10, opset_import: ["" : 18]> m ({name}{sizes} x) => ({name}{sizes} y) {{ y = Erf (x) }}"""
    x = np.full(shape, 0.5, dtype)
    (y,) = ReferenceEvaluator(parser.parse_model(text), new_ops=list(CORRECTED)).run(None, {"x": x})
    assert y.dtype == dtype and y.shape == shape
    np.testing.assert_array_equal(y, np.full(shape, math.erf(0.5), dtype))
