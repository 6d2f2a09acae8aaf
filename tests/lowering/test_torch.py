"""The PyTorch lowering against the ONNX backend test suite, ONNX Runtime, and its own promises."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from bricolage.errors import UnsupportedOperator
from tests.lowering import models, suite

torch = pytest.importorskip("torch")

from bricolage.lowering import torch as lowering  # noqa: E402
from bricolage.lowering.operators.quantization import conv_integer, matmul_integer  # noqa: E402
from bricolage.lowering.torch.arrays import TorchArrays, from_numpy, to_numpy  # noqa: E402

MODELS = {"convolutional": models.convolutional, "transformer": models.transformer}
PASSED_AT_LEAST = 1500


def runner(**options: Any) -> suite.Run:
    def run(model: ir.Model, inputs: suite.Arrays) -> suite.Arrays:
        module = lowering.lower(model, **options)
        with torch.no_grad():
            return [to_numpy(y) for y in module(*(from_numpy(x) for x in inputs))]

    return run


def wrong(cases: Any, run: suite.Run, **options: Any) -> list[suite.Outcome]:
    return [o for o in (suite.check(c, run, **options) for c in cases) if o.verdict == "wrong"]


@pytest.mark.parametrize("known_shapes", [False, True], ids=["shapes at run time", "shapes known"])
def test_sampled_suite_has_no_wrong_answer(known_shapes: bool) -> None:
    assert wrong(suite.sample(8), runner(), known_shapes=known_shapes) == []


def test_sampled_suite_in_float64_has_no_wrong_answer() -> None:
    run = runner(float_dtype=torch.float64)
    assert wrong(suite.sample(8), run, known_shapes=False, loose=True) == []


@pytest.mark.slow
@pytest.mark.parametrize("wide", [False, True], ids=["as stated", "float64"])
def test_whole_suite(wide: bool) -> None:
    run = runner(float_dtype=torch.float64 if wide else None)
    outcomes = [suite.check(c, run, known_shapes=False, loose=wide) for c in suite.cases()]
    assert [o for o in outcomes if o.verdict == "wrong"] == []
    assert sum(o.verdict == "passed" for o in outcomes) >= PASSED_AT_LEAST


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("channels_last", [False, True])
def test_models_agree_with_onnxruntime(name: str, channels_last: bool) -> None:
    proto, feeds = MODELS[name]()
    run = runner(channels_last=channels_last)
    for actual, expected in zip(
        run(models.as_ir(proto), list(feeds.values())), models.onnxruntime_outputs(proto, feeds), strict=True
    ):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_float64_is_closer_to_the_truth_than_float32(name: str) -> None:
    proto, feeds = MODELS[name]()
    exact = runner(float_dtype=torch.float64)(models.as_ir(proto), list(feeds.values()))[0]
    plain = runner()(models.as_ir(proto), list(feeds.values()))[0]
    error = np.linalg.norm(plain - exact) / np.linalg.norm(exact)
    assert exact.dtype == np.float64
    assert 0 < error < 1e-6


@pytest.mark.parametrize("name", MODELS)
def test_dynamo_traces_one_graph(name: str) -> None:
    proto, feeds = MODELS[name]()
    module = lowering.lower(models.as_ir(proto))
    inputs = [from_numpy(x) for x in feeds.values()]
    compiled = torch.compile(module, backend="eager", fullgraph=True, dynamic=name == "transformer")
    with torch.no_grad():
        torch.testing.assert_close(compiled(*inputs), module(*inputs))


def test_symbolic_sizes_serve_any_shape() -> None:
    """One lowering of a model with symbolic dimensions serves other batches and lengths."""
    proto, _ = models.transformer()
    module = lowering.lower(models.as_ir(proto))
    for batch, length in ((1, 1), (2, 11)):
        ids = np.random.default_rng(batch).integers(0, 50, (batch, length))
        expected = models.onnxruntime_outputs(proto, {"ids": ids})[0]
        np.testing.assert_allclose(module(from_numpy(ids))[0].numpy(), expected, rtol=1e-4, atol=1e-5)


def test_generated_code_calls_aten_alone() -> None:
    """No portable definition is left in what the two models run."""
    for make in MODELS.values():
        module = lowering.lower(models.as_ir(make()[0]))
        foreign = [
            n.target
            for n in module.graph.nodes
            if n.op == "call_function" and "bricolage" in str(getattr(n.target, "__module__", ""))
        ]
        # The uneven max-pool window and SAME_UPPER at a static size are resolved too.
        assert foreign == []


def test_batch_normalisation_is_folded_but_not_in_the_reference() -> None:
    def normalisations(**options: Any) -> int:
        module = lowering.lower(models.as_ir(models.convolutional()[0]), **options)
        return sum(n.target is torch.batch_norm for n in module.graph.nodes)

    assert normalisations() == 0
    assert normalisations(float_dtype=torch.float64) == 1


def test_types_are_inferred_when_the_model_has_none() -> None:
    proto, feeds = models.convolutional()
    del proto.graph.value_info[:]
    module = lowering.lower(models.as_ir(proto))
    assert any(n.target is torch.max_pool2d for n in module.graph.nodes)
    expected = models.onnxruntime_outputs(proto, feeds)[0]
    np.testing.assert_allclose(module(from_numpy(feeds["x"]))[0].numpy(), expected, rtol=1e-4, atol=1e-5)


def test_unknown_operator_is_refused_by_name() -> None:
    node = ir.Node("", "RandomNormal", inputs=[], attributes=[ir.AttrInt64s("shape", [2])])
    assert "RandomNormal" in (lowering.find_refusal(node, 20) or "")
    model = ir.Model(ir.Graph([], node.outputs, nodes=[node], opset_imports={"": 20}), ir_version=10)
    with pytest.raises(UnsupportedOperator, match="RandomNormal"):
        lowering.lower(model)


def test_unknown_attribute_is_refused_not_ignored() -> None:
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([2]))
    node = ir.Node("", "Relu", inputs=[x], attributes=[ir.AttrFloat32("slope", 0.5)])
    assert "slope" in (lowering.find_refusal(node, 20) or "")


def test_data_dependent_operators_are_named_as_untraceable() -> None:
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([2]))
    shape = ir.Value(name="shape", type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([1]))
    assert lowering.untraceable(ir.Node("", "NonZero", inputs=[x]), 20)
    assert "shape" in (lowering.untraceable(ir.Node("", "Reshape", inputs=[x, shape]), 20) or "")
    assert lowering.untraceable(ir.Node("", "Relu", inputs=[x]), 20) is None


@pytest.mark.parametrize("kind", [ir.DataType.INT4, ir.DataType.UINT4])
def test_weights_of_four_bits(kind: ir.DataType) -> None:
    model, x, expected = models.in_four_bits(kind)
    (actual,) = runner()(model, [x])
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("terms", [1, 258, 259, 1000])
def test_integer_products_are_exact_however_many_terms(terms: int) -> None:
    """All of them as large as they come: 258 sum exactly in float32."""
    a, b = (torch.full(shape, 255, dtype=torch.uint8) for shape in ((2, 3, terms), (terms, 4)))
    b[:, 0] = 254
    found = matmul_integer(TorchArrays(), a, b)
    assert found.dtype == torch.int32
    assert found[..., 0].unique().tolist() == [255 * 254 * terms] and found[..., 1:].unique().tolist() == [
        255**2 * terms
    ]


@pytest.mark.parametrize(("channels", "groups", "size"), [(3, 1, 3), (40, 1, 3), (600, 1, 1), (64, 2, 3), (2, 1, 17)])
def test_integer_convolutions_are_exact(channels: int, groups: int, size: int) -> None:
    """As one, in parts, of one tap, in groups of many channels, with more taps than float32 sums exactly."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(128, 256, (1, channels, 18, 18), generator=draw, dtype=torch.uint8)
    w = torch.randint(128, 256, (4, channels // groups, size, size), generator=draw, dtype=torch.uint8)
    found = conv_integer(TorchArrays(), x, w, group=groups, pads=(1, 1, 1, 1))
    right = torch.nn.functional.conv2d(x.double(), w.double(), groups=groups, padding=1)
    assert torch.equal(found.double(), right)
