"""The JAX lowering against the ONNX backend test suite and ONNX Runtime."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from bricolage.errors import UnsupportedOperator
from tests.lowering import models, suite
from tests.needed import needs

needs("jax")

MODELS = {"convolutional": models.convolutional, "transformer": models.transformer}
PASSED_AT_LEAST = 1500
pytestmark = pytest.mark.apart


def run(model: ir.Model, inputs: suite.Arrays) -> suite.Arrays:
    import jax

    from bricolage.lowering import jax as lowering

    fn, constants = lowering.lower(model)
    with jax.enable_x64(True):
        return [np.asarray(y) for y in jax.jit(fn)(constants, *inputs)]


def test_sampled_suite_has_no_wrong_answer() -> None:
    """Without the expanded forms: they compile dozens of operators each, and belong to the slow run."""
    chosen = [c for c in suite.sample(160) if not c.name.endswith("_expanded")]
    outcomes = [suite.check(c, run, known_shapes=True) for c in chosen]
    assert [o for o in outcomes if o.verdict == "wrong"] == []


@pytest.mark.slow
def test_whole_suite() -> None:
    outcomes = [suite.check(c, run, known_shapes=True) for c in suite.cases()]
    assert [o for o in outcomes if o.verdict == "wrong"] == []
    assert sum(o.verdict == "passed" for o in outcomes) >= PASSED_AT_LEAST


@pytest.mark.parametrize("name", MODELS)
def test_models_agree_with_onnxruntime(name: str) -> None:
    proto, feeds = MODELS[name]()
    expected = models.onnxruntime_outputs(proto, feeds)
    for actual, wanted in zip(run(models.as_ir(proto), list(feeds.values())), expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_in_bfloat16_everything_between_is_narrow(name: str) -> None:
    import jax

    from bricolage.lowering import jax as lowering

    proto, feeds = MODELS[name]()
    expected = models.onnxruntime_outputs(proto, feeds)
    fn, constants = lowering.lower(models.as_ir(proto), float_dtype=ml_dtypes.bfloat16)
    with jax.enable_x64(True):
        found = [np.asarray(y) for y in jax.jit(fn)(constants, *feeds.values())]
        text = str(jax.make_jaxpr(fn)(constants, *feeds.values()))
    assert "dot_general" not in text or "f32[" not in text.partition("dot_general")[2].splitlines()[0]
    for actual, wanted in zip(found, expected, strict=True):
        assert actual.dtype == wanted.dtype
        error = float(np.linalg.norm(actual - wanted) / np.linalg.norm(wanted))
        assert 1e-5 < error < 3e-2


def test_weights_are_arguments_and_small_constants_are_not() -> None:
    import jax

    from bricolage.lowering import jax as lowering

    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([2, 100]))
    weight = ir.Value(name="w", const_value=ir.tensor(np.eye(100, dtype=np.float32), name="w"))
    shape = ir.Value(name="s", const_value=ir.tensor(np.array([4, -1]), name="s"))
    product = ir.Node("", "MatMul", inputs=[x, weight])
    folded = ir.Node("", "Reshape", inputs=[product.outputs[0], shape])
    graph = ir.Graph([x], folded.outputs, nodes=[product, folded], initializers=[weight, shape], opset_imports={"": 20})
    fn, constants = lowering.lower(ir.Model(graph, ir_version=10))
    assert set(constants) == {"w"}
    values = np.arange(200, dtype=np.float32).reshape(2, 100)
    with jax.enable_x64(True):
        np.testing.assert_array_equal(jax.jit(fn)(constants, values)[0], values.reshape(4, 50))


def test_shape_that_depends_on_data_is_refused_by_name() -> None:
    from bricolage.lowering import jax as lowering

    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([4]))
    shape = ir.Value(name="shape", type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([2]))
    node = ir.Node("", "Reshape", inputs=[x, shape])
    assert "'shape'" in (lowering.find_refusal(node, 20) or "")
    model = ir.Model(ir.Graph([x, shape], node.outputs, nodes=[node], opset_imports={"": 20}), ir_version=10)
    with pytest.raises(UnsupportedOperator, match="Reshape"):
        lowering.lower(model)


@pytest.mark.parametrize("kind", [ir.DataType.INT4, ir.DataType.UINT4])
def test_weights_of_four_bits(kind: ir.DataType) -> None:
    model, x, expected = models.in_four_bits(kind)
    (actual,) = run(model, [x])
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-4)
