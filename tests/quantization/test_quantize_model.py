"""Whole graphs: what the file computes is what runtimes make of it, and what is refused says why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from bricolage.api.quantize import quantize
from bricolage.base.quantization_options import QuantizationOptions
from bricolage.errors import (
    AlreadyQuantised,
    MissingInput,
    NothingToQuantise,
    UnknownOperatorName,
    UnusableCalibration,
    WrongShape,
    WrongType,
)
from bricolage.graph.prepare import simplify
from bricolage.quantization.canonical import canonical
from bricolage.quantization.outcome import QuantizedModel
from bricolage.quantization.outlier_migration import migrate_outliers
from bricolage.quantization.products import products
from bricolage.verify.reference import evaluate
from tests.quantization.networks import CONVOLUTIONS, OUTLIERS, PRODUCTS, data, model_of

ONE_CONVOLUTION = ("float[1,5,9,9] x", "c = Conv<pads=[1,1,1,1]>(x, w, b) y = Relu(c)", {"w": (7, 5, 3, 3), "b": (7,)})


def kinds(found: QuantizedModel) -> Counter[str]:
    return Counter(node.op_type for node in found.model.graph)


def by_runtimes(path: Path, sample: dict[str, np.ndarray]) -> dict[str, list[np.ndarray]]:
    """Outputs of the file on ONNX Runtime and OpenVINO as they come, in float32 where they compute with floats."""
    import onnxruntime
    import openvino

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    compiled = openvino.Core().compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    by_openvino = compiled(sample)
    return {
        "onnxruntime": session.run(None, sample),
        "openvino": [by_openvino[output] for output in compiled.outputs],
    }


def error(found: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> float:
    return max(float(np.linalg.norm(y - r) / np.linalg.norm(r)) for y, r in zip(found, right, strict=True))


@pytest.mark.apart
def test_runtimes_give_the_exact_answer_within_one_step(tmp_path: Path) -> None:
    samples = data(1, 5, 9, 9)
    found = quantize(model_of(*ONE_CONVOLUTION), samples)
    found.save(tmp_path / "q.onnx")
    step = next(
        float(value.const_value.numpy())
        for name, value in found.model.graph.initializers.items()
        if name.startswith("y.scale") and value.const_value is not None
    )
    (exact,) = evaluate(found.model, samples[0]).values()
    for name, (answer,) in by_runtimes(tmp_path / "q.onnx", samples[0]).items():
        assert np.abs(answer - exact).max() <= 1.001 * step, name
        assert (np.abs(answer - exact) > 0.001 * step).mean() < 5e-3, name


@pytest.mark.apart
@pytest.mark.parametrize(
    ("network", "weights"), [("convolutions", None), ("products", None), ("products", "int8"), ("products", "int4")]
)
def test_networks_on_runtimes(network: str, weights: str | None, tmp_path: Path) -> None:
    model = model_of(*(CONVOLUTIONS if network == "convolutions" else PRODUCTS))
    samples = data(1, 3, 12, 12) if network == "convolutions" else data(3, 5, 16)
    if weights is None:
        found = quantize(model, samples, sums=network == "convolutions")
        assert not any(one.op_type != "MatMul" for one in found.report.kept_float)
    else:
        found = quantize(model, samples, weights=weights, block_format="blocks", block_size=16, max_error=None)
    found.save(tmp_path / "q.onnx")
    exact = list(evaluate(found.model, samples[0]).values())
    right = list(evaluate(model, samples[0]).values())
    assert 0 < error(exact, right) < (0.3 if weights == "int4" else 0.05)
    assert found.report.error is not None and found.report.error < (0.5 if weights == "int4" else 0.1)
    for name, answer in by_runtimes(tmp_path / "q.onnx", samples[0]).items():
        assert error(answer, exact) < 6e-3, name


@pytest.mark.apart
@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_the_operator_with_blocks_on_onnx_runtime(weights: str, tmp_path: Path) -> None:
    import onnxruntime

    samples = data(3, 5, 16)
    found = quantize(model_of(*PRODUCTS), samples, weights=weights, accuracy_level=0, max_error=None)
    assert kinds(found)["MatMulNBits"] == 3
    found.save(tmp_path / "q.onnx")
    answer = onnxruntime.InferenceSession(str(tmp_path / "q.onnx")).run(None, samples[0])
    assert error(answer, list(evaluate(found.model, samples[0]).values())) < 1e-5


def test_pairs_stand_where_runtimes_fuse_them() -> None:
    found = quantize(model_of(*CONVOLUTIONS), data(1, 3, 12, 12))
    nodes = list(found.model.graph)
    for node in nodes:
        if node.op_type == "Conv":
            assert all(value.producer().op_type == "DequantizeLinear" for value in node.inputs)  # type: ignore[union-attr]
            (behind,) = node.outputs[0].consumers()
            while behind.op_type == "Relu":
                (behind,) = behind.outputs[0].consumers()
            assert behind.op_type == "QuantizeLinear"
    # What a pooling reads and what it gives have one scale, so that it can compute with bytes.
    (pool,) = (node for node in nodes if node.op_type == "MaxPool")
    before, behind = pool.inputs[0].producer(), next(iter(pool.outputs[0].consumers()))  # type: ignore[union-attr]
    assert before is not None and before.inputs[1].const_value.numpy() == behind.inputs[1].const_value.numpy()  # type: ignore[union-attr]
    assert found.model.graph.outputs[0].name == "y"
    assert found.report.bytes[1] < found.report.bytes[0]


def test_a_model_keeps_its_open_sizes() -> None:
    samples = data(3, 5, 16)
    found = quantize(model_of(*PRODUCTS), samples)
    larger = {"x": np.concatenate([samples[0]["x"], samples[1]["x"]])}
    assert next(iter(evaluate(found.model, larger).values())).shape == (6, 5, 16)


def test_operators_that_cost_most_stay_float_until_the_error_holds() -> None:
    model, samples = model_of(*CONVOLUTIONS), data(1, 3, 12, 12)
    everything = quantize(model, samples, max_error=None)
    assert everything.report.error is not None
    limit = everything.report.error * 0.8
    found = quantize(model, samples, max_error=limit)
    assert found.report.error is not None and found.report.error <= limit
    assert 0 < len(found.report.quantised) < len(everything.report.quantised)
    assert all("whole would miss an error of at most" in one.reason for one in found.report.kept_float)
    with pytest.raises(NothingToQuantise, match="misses an error of at most 1e-09"):
        quantize(model, samples, max_error=1e-9)


def test_operators_keep_the_names_that_the_user_knows() -> None:
    """Where a rule makes one of several, and every name is there once."""
    body = "p = MatMul(x, w) s = Add(p, b) y = Relu(s)"
    model = model_of("float[2,5,16] x", body, {"w": (16, 8), "b": (8,)})
    for kept in ("MatMul_0", "Add_1"):
        model.graph.node(kept).name = f"encoder/{kept}"
    found = quantize(model, data(2, 5, 16))
    names = [node.name for node in found.model.graph]
    assert len(set(names)) == len(names)
    (product,) = found.report.operators
    assert product.name.startswith("encoder/")
    with pytest.raises(NothingToQuantise):
        quantize(model, data(2, 5, 16), keep_float=(product.name,))


def test_products_keep_their_names_where_ranges_of_channels_are_made_equal() -> None:
    """Each that takes a factor up is a new operator, and its result a new value."""
    body = (
        "a = Conv(x, w1) n = BatchNormalization(a, g, g, g, v) r = Relu(n)"
        " c = Conv<pads=[1,1,1,1], group=8>(r, w2) m = BatchNormalization(c, g, g, g, v) e = Relu(m)"
        " d = Conv(e, w3) s = Add(d, r) f = Relu(s) y = Conv(f, w4)"
    )
    steps, sizes = np.geomspace(0.01, 10, 8).reshape(8, 1, 1, 1), {"w3": (8, 8, 1, 1), "w4": (4, 8, 1, 1)}
    drawn = np.random.default_rng(3).standard_normal((8, 12))
    own = {"w1": drawn[:, :3, None, None] * steps, "w2": drawn[:, 3:].reshape(8, 1, 3, 3) / steps}
    one = np.ones(8, np.float32)
    weights = {**sizes, **{name: value.astype(np.float32) for name, value in own.items()}, "g": one, "v": one}
    graph = canonical(model_of("float[1,3,6,6] x", body, weights), QuantizationOptions())
    able, _ = products(graph)
    made = migrate_outliers(graph, able, data(1, 3, 6, 6), QuantizationOptions())
    after, _ = products(made)
    assert made is not graph and [one.output for one in after] != [one.output for one in able]
    assert [one.name for one in after] == [one.name for one in able]
    names = [operator.name for operator in made.operators]
    assert len(set(names)) == len(names)


def test_names_in_a_report_keep_these_operators_float() -> None:
    """Also of the part of a product that multiplies some channels apart: it is the whole that stays float."""
    draw, model = np.random.default_rng(0), model_of(*OUTLIERS)
    samples = [{"x": draw.standard_normal((9, 16)).astype(np.float32)} for _ in range(8)]
    quick = {"max_error": None, "errors_by_operator": False, "smooth": 0.0, "equalise": False}
    names = [one.name for one in quantize(model, samples, **quick).report.operators]
    parts = [name for name in names if name.endswith("/MatMul")]
    assert parts and len(set(names)) == len(names)
    report = quantize(model, samples, keep_float=(parts[0],), **quick).report
    asked = {one.name for one in report.kept_float if one.reason == "asked for"}
    assert asked == {parts[0].removesuffix("/MatMul")}
    with pytest.raises(UnknownOperatorName):
        quantize(model, samples, keep_float=(f"{names[0]}/nothing",))


@pytest.mark.parametrize(
    ("inputs", "body", "reason"),
    [
        ("float[4,16] x, float[16,4] z", "y = MatMul(x, z)", "both sides are computed"),
        ("float[16,4] x", "y = MatMul(w, x)", "on the left"),
        ("float[4,16] x", "y = Gemm(x, w, rows)", "for each row"),
        ("float[4,16] x", "y = Gemm<alpha=0.5>(x, w)", "a factor"),
        ("double[4,16] x", "y = MatMul(x, wide)", "DOUBLE"),
        ("float[4,16] x", "y = MatMul(x, wrong)", "NaN"),
        ("float[4,16] x", "y = MatMul(x, stack)", "stack"),
    ],
)
def test_what_cannot_be_quantised_says_why(inputs: str, body: str, reason: str) -> None:
    """In one model with a product that can."""
    weights = {"w": (16, 4), "rows": (4, 4), "stack": (3, 16, 4), "wrong": np.full((16, 4), np.nan)}
    used = {name: value for name, value in weights.items() if name in body}
    graph = model_of(inputs, body, used) if "wide" not in body else None
    if graph is None:
        graph = model_of(inputs, "d = Cast<to=11>(w) y = MatMul(x, d)", {"w": (16, 4)})
    able, refused = products(simplify(graph))
    assert not able and reason in refused[0].reason


def test_kept_float_when_asked_for() -> None:
    model, samples = model_of(*CONVOLUTIONS), data(1, 3, 12, 12)
    found = quantize(model, samples, keep_float=("Gemm", "Conv_0"))
    assert {one.name for one in found.report.kept_float} == {
        "Conv_0",
        next(one.name for one in found.report.operators if one.op_type == "Gemm"),
    }
    with pytest.raises(UnknownOperatorName, match="Conv_0"):
        quantize(model, samples, keep_float=("nothing",))


def test_an_activation_with_outliers_stays_float_and_is_named() -> None:
    model = model_of(
        "float[4,16] x",
        "a = MatMul(x, w1) h = Tanh(a) m = Mul(h, far) y = MatMul(m, w2)",
        {"w1": (16, 16), "w2": (16, 8), "far": np.array([*[1.0] * 15, 1e6])},
    )
    found = quantize(model, data(4, 16), smooth=0.0, equalise=False, observer="minmax", max_error=None)
    (kept,) = found.report.kept_float
    assert "has outliers up to" in kept.reason and "% of the rest zero" in kept.reason


@pytest.mark.parametrize("folded", [True, False])
def test_moving_outliers_into_weights_keeps_the_answer_and_helps(folded: bool) -> None:
    """Behind a normalisation whose channels differ a thousandfold. Another reader keeps what it read."""
    body = "n = LayerNormalization(x, g, b) p = MatMul(n, w1) q = MatMul(n, w2) y = Mul(p, q)"
    outputs = "y" if folded else "y, n"
    gains = np.geomspace(0.05, 50, 16)
    rows = np.random.default_rng(1).standard_normal((16, 24)) / gains[:, None]
    weights = {"g": gains, "b": np.zeros(16), "w1": rows, "w2": rows[:, ::-1].copy()}
    model, samples = model_of("float[6,16] x", body, weights, outputs), data(6, 16)
    plain = quantize(model, samples, smooth=0.0, max_error=None)
    moved = quantize(model, samples, max_error=None)
    assert plain.report.error is not None and moved.report.error is not None
    assert moved.report.error < plain.report.error / 4
    assert kinds(moved)["Mul"] == (1 if folded else 2)


def test_equalised_channels_between_convolutions() -> None:
    gains = np.geomspace(0.02, 20, 8).astype(np.float32)
    rng = np.random.default_rng(0)
    first = rng.standard_normal((8, 3, 3, 3)) * gains[:, None, None, None]
    second = rng.standard_normal((4, 8, 1, 1)) / gains[None, :, None, None]
    model = model_of("float[1,3,8,8] x", "c = Conv(x, u) r = Relu(c) y = Conv(r, v)", {"u": first, "v": second})
    samples = data(1, 3, 8, 8)
    plain, equal = (quantize(model, samples, equalise=word, max_error=None) for word in (False, True))
    assert plain.report.error is not None and equal.report.error is not None
    assert equal.report.error < plain.report.error / 4 and kinds(equal)["Mul"] == 0


def test_equalised_channels_behind_a_constant_factor() -> None:
    """A depthwise convolution behind x · c + d, whatever x is: channels become alike all the way, and nothing is added."""
    gains = np.geomspace(0.02, 20, 8).astype(np.float32)
    rng = np.random.default_rng(0)
    first = rng.standard_normal((8, 3, 3, 3)) * gains[:, None, None, None]
    second = rng.standard_normal((8, 1, 3, 3)) / gains[:, None, None, None]
    body = "c = Conv(x, u) h = Tanh(c) k = Mul(h, g) m = Mul(k, s) a = Add(m, d) y = Conv<group=8>(a, v)"
    weights = {"u": first / gains[:, None, None, None], "v": second, "g": gains[:, None, None], "s": 1.3, "d": -0.02}
    model, samples = model_of("float[1,3,9,9] x", body, weights), data(1, 3, 9, 9)
    plain, equal = (quantize(model, samples, equalise=word, max_error=None) for word in (False, True))
    assert plain.report.error is not None and equal.report.error is not None
    assert equal.report.error < plain.report.error / 4 and kinds(equal)["Mul"] == kinds(plain)["Mul"] == 1


def test_results_in_front_of_a_function_stay_float_when_asked_for() -> None:
    body = "c = Conv(x, u, b) h = HardSwish(c) d = Conv(h, v) y = Conv(d, w)"
    model = model_of("float[1,4,9,9] x", body, {"u": (8, 4, 3, 3), "b": (8,), "v": (8, 8, 1, 1), "w": (4, 8, 1, 1)})
    whole, better = (quantize(model, data(1, 4, 9, 9), max_error=None, float_results=on) for on in (False, True))
    assert kinds(whole)["QuantizeLinear"] == 5 and kinds(better)["QuantizeLinear"] == 3
    assert len(better.report.quantised) == len(whole.report.quantised) == 3
    assert better.report.error is not None and better.report.error < (whole.report.error or 0.0)


def test_weights_that_are_inputs_with_a_default_are_weights() -> None:
    model = model_of(*ONE_CONVOLUTION)
    model.graph.inputs.append(model.graph.initializers["w"])
    found = quantize(model, data(1, 5, 9, 9))
    assert len(found.report.quantised) == 1 and [value.name for value in found.model.graph.inputs] == ["x"]


def test_weights_alone_without_data() -> None:
    found = quantize(model_of(*PRODUCTS), weights="int4")
    assert found.report.error is None and "not measured" in found.report.warnings[0]
    with pytest.raises(NothingToQuantise, match="MatMul"):
        quantize(model_of(*ONE_CONVOLUTION), weights="int4")


class TestBadInput:
    model = staticmethod(lambda: model_of(*PRODUCTS))

    def refused(self, samples: object, error: type[Exception], words: str) -> None:
        with pytest.raises(error, match=words):
            quantize(self.model(), samples)  # type: ignore[arg-type]

    def test_shapes_types_and_names(self) -> None:
        self.refused([{"x": np.zeros((3, 5, 8), np.float32)}] * 2, WrongShape, "x")
        self.refused([{"x": np.zeros((3, 5, 16), np.int64)}] * 2, WrongType, "int64")
        self.refused({"z": np.zeros((3, 5, 16), np.float32)}, Exception, "no input 'z'")
        self.refused({"x.0": data(3, 5, 16)[0]["x"], "x.2": data(3, 5, 16)[0]["x"]}, UnusableCalibration, "sample 1")
        two = model_of("float[2,4] x, float[2,4] z", "a = MatMul(x, w) y = Add(a, z)", {"w": (4, 4)})
        with pytest.raises(UnusableCalibration, match="3 of 'x', 2 of 'z'"):
            quantize(two, {"x": np.ones((3, 2, 4), np.float32), "z": np.ones((2, 2, 4), np.float32)})
        with pytest.raises(MissingInput):
            quantize(two, {"x": np.ones((3, 2, 4), np.float32)})

    def test_none_too_few_constant_and_not_finite(self) -> None:
        samples = data(3, 5, 16)
        self.refused(None, UnusableCalibration, "none")
        self.refused([], UnusableCalibration, "no sample")
        self.refused(samples[:1], UnusableCalibration, "1 sample")
        self.refused([{"x": np.full((3, 5, 16), 2.0, np.float32)}] * 4, UnusableCalibration, "2 everywhere")
        for strange in (np.nan, np.inf):
            bad = [{"x": one["x"].copy()} for one in samples]
            bad[2]["x"][0, 0, 0] = strange
            self.refused(bad, UnusableCalibration, "sample 2")

    def test_what_looks_wrong_is_told(self) -> None:
        rng = np.random.default_rng(0)
        model = model_of("float[1,3,32,32] x", "y = Conv(x, w)", {"w": (4, 3, 3, 3)})
        noise = [{"x": rng.standard_normal((1, 3, 32, 32)).astype(np.float32)} for _ in range(4)]
        told = quantize(model, noise).report.warnings
        assert any("random" in line for line in told) and any("few" in line for line in told)
        assert quantize(model, data(1, 3, 32, 32)).report.warnings == ()
        wide = [*data(1, 3, 32, 32, count=8), {"x": 100 * noise[0]["x"]}]
        wide.insert(4, wide.pop())
        assert any("reaches" in line for line in quantize(model, wide, held_back=0.1, max_error=None).report.warnings)

    def test_a_quantised_model_is_not_quantised_again(self) -> None:
        found = quantize(self.model(), data(3, 5, 16))
        with pytest.raises(AlreadyQuantised, match="QuantizeLinear"):
            quantize(found.model, data(3, 5, 16))
