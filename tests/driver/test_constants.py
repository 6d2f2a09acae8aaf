"""What users say of inputs that never change, and what is made of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bricolage
from bricolage.backends import registry
from bricolage.base.codec import decode, encode
from bricolage.base.option_words import parse_constants
from bricolage.base.options import Options
from bricolage.device.host import host
from bricolage.driver.bucket_decision import decision_key
from bricolage.driver.constants import parse_array
from bricolage.driver.given_samples import GivenData
from bricolage.driver.sources import GivenModel, Source, open_source
from bricolage.errors import (
    BadOption,
    BricolageError,
    MissingInput,
    OtherConstant,
    UnknownInput,
    UnusableSamples,
    WrongShape,
    WrongType,
)
from bricolage.measure.pool import Pool
from bricolage.plan.constant_inputs import ConstantInput, same_value, words_of
from bricolage.plan.plan import TensorSpec
from bricolage.report.words import constant_gains

X = np.float32([[1, 2, 3, 4]])
TEXT = """<ir_version: 8, opset_import: ["" : 18]>
voice (float[b,4] x, int64 sr, float[d] scale, bool loud, seq(float[2]) q) => (float[b,4] y, float[2] z) {
    rate = Constant<value: tensor = int64 {16000}>() c = Equal(sr, rate) m = Max(x) g = Mul(x, scale)
    first = Constant<value: tensor = int64 {0}>()
    z = SequenceAt(q, first)
    u = If(loud) < then_branch = l () => (float[i,j] o) { o = Exp(g) }, else_branch = n () => (float[i,j] p) { p = Identity(g) } >
    y = If(c) < then_branch = a () => (float[i,j] r) { r = Add(u, m) },
                else_branch = e () => (float[i,j] t) { t = Sub(u, m) } > }"""
GIVEN = {"x": X, "sr": np.array(8000), "scale": np.float32([1, 2, 3, 4]), "loud": np.array(True), "q": [X[0, :2]]}


def opened(folder: Path, constants: Any = None, given: Any = GIVEN, **more: Any) -> Source:
    folder.mkdir(exist_ok=True)
    data = more.pop("data", GivenData())
    options = Options(threads=1, constants=constants or {}, **more)
    proto = onnx.parser.parse_model(TEXT)
    return open_source(GivenModel(proto, inputs=given, data=data), options, folder)


def test_values_from_words_and_from_inputs(tmp_path: Path) -> None:
    rest = {name: array for name, array in GIVEN.items() if name != "sr"}
    source = opened(tmp_path / "a", {"loud": None, "sr": 16000}, rest)
    assert source.constants == (ConstantInput("loud", 3, "true"), ConstantInput("sr", 1, "16000"))
    (bucket,) = source.buckets
    assert [info.name for info in bucket.graph.inputs] == ["x", "scale", "q"]
    assert {one.op_type for one in bucket.graph.operators} == {"Mul", "Exp", "Max", "Add", "SequenceAt"}
    assert source.inputs is not None and set(source.inputs) == {"x", "scale", "q"}


def test_sizes_follow_from_values(tmp_path: Path) -> None:
    assert opened(tmp_path / "a", {"scale": [1, 2, 3, 4]}).buckets[0].sizes == {"b": 1}


@pytest.mark.parametrize(
    ("constants", "given", "shapes", "error", "words"),
    [
        ({"rate": 1}, GIVEN, {}, UnknownInput, "no input 'rate'.*sr \\(int64 scalar"),
        ({"b": 1}, GIVEN, {}, BadOption, "dimension of input 'x'.*--shape b=SIZE"),
        ({"sr": None}, None, {"b": 1, "d": 4}, BadOption, "--constant sr=VALUE"),
        ({"sr": None}, {"x": X}, {"d": 4}, BadOption, "--constant sr=VALUE"),
        ({"sr": "16000.5"}, GIVEN, {}, BadOption, "int64 scalar, for example sr=3"),
        ({"sr": float("nan")}, GIVEN, {}, BadOption, "'sr=NaN'"),
        ({"sr": "inf"}, GIVEN, {}, BadOption, "int64 scalar"),
        ({"sr": 2**63}, GIVEN, {}, BadOption, "int64 scalar"),
        ({"sr": True}, GIVEN, {}, BadOption, "int64 scalar"),
        ({"sr": ""}, GIVEN, {}, BadOption, "int64 scalar"),
        ({"sr": [1, 2]}, GIVEN, {}, WrongShape, "'sr'"),
        ({"scale": [[1, 2]]}, GIVEN, {}, WrongShape, "'scale'"),
        ({"scale": "[[1], [1, 2]]"}, GIVEN, {}, BadOption, "scale=0.5,0.5"),
        ({"scale": "1e39"}, GIVEN, {}, BadOption, "float32"),
        ({"loud": "yes"}, GIVEN, {}, BadOption, "loud=true"),
        ({"q": 1}, GIVEN, {}, BadOption, "Sequence.*tensors of numbers"),
        ({"sr": 16000}, GIVEN, {}, BadOption, "'sr=16000'.*sr = 8000"),
        ({"sr": None}, {**GIVEN, "sr": np.float32(1)}, {}, WrongType, "'sr'"),
        ({"sr": 8000}, GIVEN, {"sr": (1,)}, BadOption, "--shape cannot be 'sr'.*--constant"),
        ({"scale": [1, 2, 3, 4]}, GIVEN, {"d": (5,)}, BadOption, "dimension 'd' is 5 elsewhere, and 4"),
    ],
)
def test_bad_values(
    tmp_path: Path, constants: Any, given: Any, shapes: Any, error: type[BricolageError], words: str
) -> None:
    with pytest.raises(error, match=words):
        opened(tmp_path / "a", constants, given, shapes=shapes)


@pytest.mark.parametrize("words", [["=1"], ["sr=1", "sr=2"], ["sr", "sr=2"]])
def test_words_that_are_refused(words: list[str]) -> None:
    with pytest.raises(BadOption, match="--constant"):
        parse_constants(words)


@pytest.mark.parametrize("value", [object(), {"a": 1}, 1j, [1j]])
def test_values_that_are_refused(value: object) -> None:
    with pytest.raises(BadOption, match="constant cannot be"):
        Options(constants={"sr": value})  # type: ignore[dict-item]


def test_long_values_go_among_the_inputs() -> None:
    with pytest.raises(BadOption, match="among the inputs"):
        Options(constants={"mask": np.ones(40_000)})  # type: ignore[dict-item]


def test_options_round_trip() -> None:
    options = Options(constants={"sr": 16000, "loud": np.array([True, False]), "x": None, "f": np.float32(0.1)})  # type: ignore[dict-item]
    assert decode(Options, encode(options)) == options
    given = [
        word for flag, word in zip(options.flags()[::2], options.flags()[1::2], strict=True) if flag == "--constant"
    ]
    assert parse_constants(given) == options.constants


KINDS = {
    "float32": st.floats(width=32),
    "bfloat16": st.floats(width=16).map(lambda one: float(ml_dtypes.bfloat16(one))),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint8": st.integers(0, 255),
    "bool": st.booleans(),
}


@given(st.data())
def test_words_give_the_value_again(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(sorted(KINDS)))
    shape = data.draw(st.sampled_from([(), (1,), (3,), (2, 2)]))
    numbers = [data.draw(KINDS[dtype]) for _ in range(int(np.prod(shape)))]
    array = np.array(numbers).astype(getattr(ml_dtypes, dtype, dtype)).reshape(shape)
    spec = TensorSpec("v", dtype, shape)
    word = Options(constants={"v": array}).constants["v"]  # type: ignore[dict-item]
    assert word is not None and same_value(parse_array(word, spec), array)
    shown = words_of(array)
    assert same_value(
        parse_array(shown.replace("nan", "NaN").replace("inf", "Infinity") if shape else shown, spec), array
    )


def test_samples_hold_one_value(tmp_path: Path) -> None:
    rows = {"x": np.stack([X, X]), "scale": np.ones((2, 4), np.float32), "sr": np.array([8000, 8000])}
    source = opened(tmp_path / "a", {"sr": None}, data=GivenData(evaluate=rows))
    assert source.data.evaluate is not None and set(source.data.evaluate) == {"x", "scale"}
    with pytest.raises(UnusableSamples, match="'sr' of sample 1 is 16000"):
        opened(tmp_path / "b", {"sr": None}, data=GivenData(evaluate={**rows, "sr": np.array([8000, 16000])}))


def test_decisions_with_other_values_are_others(tmp_path: Path) -> None:
    backends, keys = registry.available(("onnxruntime",)), set()
    rest = {name: array for name, array in GIVEN.items() if name != "sr"}
    for number, constants in enumerate([{}, {"sr": 16000}, {"sr": 8000}, {"sr": 8000, "loud": None}]):
        source = opened(tmp_path / str(number), constants, rest if constants else GIVEN)
        options = Options(threads=1, constants=constants)
        keys.add(decision_key(source, source.buckets[0], options, backends, host()))
    assert len(keys) == 4


NET = """<ir_version: 8, opset_import: ["" : 18]> voice (float[b,8] x, int64 sr) => (float[b,8] y, float[k] z) {
    rate = Constant<value: tensor = int64 {16000}>() c = Equal(sr, rate) t = Tanh(x)
    y, z = If(c) <
      then_branch = a () => (float[i,j] r, float[l] o) { r = Exp(t) o = Constant<value: tensor = float[2] {1, 2}>() },
      else_branch = e () => (float[i,j] s, float[m] p) { s = Neg(t) p = Constant<value: tensor = float[1] {3}>() } > }"""
SAMPLE = np.float32(np.linspace(-1, 1, 16).reshape(2, 8))


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool() as workers:
        yield workers


def test_optimize_with_a_constant(tmp_path: Path, pool: Pool) -> None:
    path = tmp_path / "out.bricolage"
    options = Options(backends=("onnxruntime",), budget_s=12.0, threads=1, effort="instant")
    inputs = {"x": SAMPLE, "sr": np.array(16000)}
    proto = onnx.parser.parse_model(NET)
    fast = bricolage.optimize(proto, options, inputs=inputs, constants={"sr": 16000}, pool=pool, output=path)
    assert not fast.plan.buckets[0].record.constant_gains
    for run in (fast, bricolage.load(path)):
        assert [str(one) for one in run.plan.constants] == ["sr = 16000"]
        y, z = run(SAMPLE[:1], 16000)  # a size that was not planned
        np.testing.assert_allclose(y, np.exp(np.tanh(SAMPLE[:1])), rtol=1e-5)
        np.testing.assert_array_equal(z, [1, 2])
        with pytest.raises(OtherConstant):
            run(SAMPLE, 8000)
        with pytest.raises(MissingInput):
            run(sr=16000)


def test_what_a_constant_would_help_is_told(pool: Pool) -> None:
    options = Options(backends=("onnxruntime",), budget_s=60.0, threads=1, effort="instant")
    inputs = {"x": SAMPLE, "sr": np.array(8000)}
    fast = bricolage.optimize(onnx.parser.parse_model(NET), options, inputs=inputs, pool=pool)
    (gain,) = fast.plan.buckets[0].record.constant_gains
    assert (gain.name, gain.value, gain.decided, gain.operators[1]) == ("sr", "8000", 1, 3)
    assert gain.operators[0] > 3 and gain.implementation == "onnxruntime f32" and (gain.median_ms or 0) > 0
    (line,) = constant_gains(fast.plan.buckets[0])
    assert "--constant sr=8000 removes" in line and "onnxruntime f32 takes" in line
    np.testing.assert_allclose(fast(SAMPLE, 16000)[0], np.exp(np.tanh(SAMPLE)), rtol=1e-5)
