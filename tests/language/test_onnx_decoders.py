"""ONNX files with a cache are read back into the decoder that they were written from, however they are spelt, or are refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from bricolage.api.load_model import load
from bricolage.api.optimize_decoder import DecoderOptions, is_decided_as_text, optimize_decoder
from bricolage.base.cache import VARIABLE
from bricolage.base.options import Options
from bricolage.errors import BadExternalData, NotALanguageModel, UnreadDecoderGraph
from bricolage.frontends import to_model
from bricolage.frontends.decoders.decoder_description import DecoderDescription, Matrix, matrix_numbers
from bricolage.frontends.decoders.decoder_files import is_language_model
from bricolage.graph.quantised_blocks import QuantisedBlocks
from bricolage.language.any_decoder import read_any_decoder
from bricolage.language.language_model import LanguageModel
from bricolage.language.onnx_decoders import onnx_decoder
from bricolage.language.onnx_decoders.cache_interface import find_cache_interface
from bricolage.language.onnx_decoders.decoder_reading import StatedSizes, read_decoder_graph
from bricolage.language.onnx_decoders.original_answers import open_original
from bricolage.language.onnx_decoders.reading_failure import NotUnderstood
from bricolage.plan.decoder_plan import digest_files, list_model_files, read_decoder_plan
from bricolage.verify.decoder_reference import compute_decoder_logits
from tests.language.cached_graphs import CachedGraph, Spelling, write_beside
from tests.language.mixed_decoders import CONTEXT, KEY_HEADS, SIZE, mixed_decoder

TOKENS = [int(token) for token in np.random.default_rng(0).integers(0, 80, 120)]
"""More than a window."""


def small_decoder() -> DecoderDescription:
    return mixed_decoder(layers=mixed_decoder().layers[1:])


def read(model: onnx.ModelProto, decoder: DecoderDescription) -> DecoderDescription:
    clean = to_model(model)
    return read_decoder_graph(clean, find_cache_interface(clean), StatedSizes(CONTEXT, None, decoder.tokenizer))


@pytest.mark.parametrize("spelling", get_args(Spelling))
def test_a_decoder_is_read_back_however_it_is_spelt(spelling: Spelling) -> None:
    if spelling == "fused":
        pytest.importorskip("torch", reason="without torch nothing here computes operators of ONNX Runtime in float64")
    written = mixed_decoder()
    decoder = read(CachedGraph(written, spelling).model(), written)
    assert [layer.sliding_window for layer in decoder.layers] == [100, None]
    assert (decoder.heads, decoder.key_heads, decoder.head_size) == (
        written.heads,
        written.key_heads,
        written.head_size,
    )
    assert (decoder.attention_scale is None and decoder.head is None) or spelling == "fused"
    for layer, original in zip(decoder.layers, written.layers, strict=True):
        np.testing.assert_allclose(layer.rope.frequencies, original.rope.frequencies, rtol=3e-7)
        for name in (
            "attention_norm",
            "feed_forward_norm",
            "query_norm",
            "key_norm",
            "query_bias",
            "key_bias",
            "value_bias",
        ):
            np.testing.assert_array_equal(getattr(layer, name), getattr(original, name))
        for matrix, wanted in zip(layer.matrices, original.matrices, strict=True):
            np.testing.assert_array_equal(matrix_numbers(matrix), matrix_numbers(wanted))
            if spelling == "fused":
                assert type(matrix) is type(wanted) and matrix.nbytes <= wanted.nbytes * 2
                assert not isinstance(matrix, QuantisedBlocks) or np.array_equal(matrix.packed, wanted.packed)  # type: ignore[union-attr]
    expected = compute_decoder_logits(written, TOKENS)
    logits = compute_decoder_logits(decoder, TOKENS)
    assert np.linalg.norm(logits - expected) <= 1e-5 * np.linalg.norm(expected)


@pytest.mark.parametrize("spelling", get_args(Spelling))
def test_caps_of_scores_and_logits_are_read(spelling: Spelling) -> None:
    if spelling == "fused":
        pytest.importorskip("torch", reason="without torch nothing here computes operators of ONNX Runtime in float64")
    written = replace(small_decoder(), attention_softcap=0.7, logit_softcap=2.0)
    decoder = read(CachedGraph(written, spelling).model(), written)
    assert (decoder.attention_softcap, decoder.logit_softcap) == pytest.approx((0.7, 2.0), rel=1e-7)
    assert decoder.query_scale == pytest.approx(written.query_scale, rel=1e-6)
    expected, logits = (compute_decoder_logits(each, TOKENS) for each in (written, decoder))
    assert np.linalg.norm(logits - expected) <= 1e-5 * np.linalg.norm(expected)


def _with_heads_in(decoder: DecoderDescription, order: np.ndarray, frequencies: np.ndarray) -> DecoderDescription:
    """With numbers of heads of queries and keys in another order, and frequencies that a graph has tables of."""

    def move(values: np.ndarray) -> np.ndarray:
        return np.asarray(values.reshape(-1, len(order), *values.shape[1:])[:, order].reshape(values.shape))

    names = ("query", "key", "query_bias", "key_bias", "query_norm", "key_norm")
    layers = []
    for layer in decoder.layers:
        parts = {name: getattr(layer, name) for name in names}
        moved = {
            name: move(matrix_numbers(part)) for name, part in parts.items() if part is not None and "norm" not in name
        }
        moved |= {name: part[order] for name, part in parts.items() if part is not None and "norm" in name}
        layers.append(replace(layer, rope=replace(layer.rope, frequencies=frequencies), **moved))
    return replace(decoder, layers=tuple(layers))


class _Interleaved(CachedGraph):
    interleaved = 1


class _FirstHalf(CachedGraph):
    turned = SIZE // 2


@pytest.mark.parametrize(
    ("kind", "spelling"), [(_Interleaved, "standard"), (_Interleaved, "fused"), (_FirstHalf, "standard")]
)
def test_numbers_that_turn_together_may_lie_anywhere(kind: type[CachedGraph], spelling: Spelling) -> None:
    if spelling == "fused":
        pytest.importorskip("torch", reason="without torch nothing here computes operators of ONNX Runtime in float64")
    half, written = SIZE // 2, mixed_decoder()
    frequencies = written.layers[0].rope.frequencies
    if kind is _Interleaved:
        order = np.arange(SIZE).reshape(2, -1).T.reshape(-1)
    else:  # pairs of the first half, and what stands still behind each of their halves
        order = np.argsort(np.arange(SIZE).reshape(2, 2, -1).swapaxes(0, 1).reshape(-1))
        still = np.concatenate([frequencies[: half // 2], np.zeros(half // 2)])
        written = _with_heads_in(written, np.arange(SIZE), still)
        frequencies = frequencies[: half // 2]
    decoder = read(kind(_with_heads_in(written, order, frequencies), spelling).model(), written)
    for layer, wanted in zip(decoder.layers, written.layers, strict=True):
        np.testing.assert_allclose(layer.rope.frequencies, wanted.rope.frequencies, rtol=3e-7, atol=1e-12)
        for name in ("query", "key"):
            np.testing.assert_array_equal(matrix_numbers(getattr(layer, name)), matrix_numbers(getattr(wanted, name)))
        np.testing.assert_array_equal(layer.query_norm, wanted.query_norm)
    expected, logits = (compute_decoder_logits(each, TOKENS) for each in (written, decoder))
    assert np.linalg.norm(logits - expected) <= 1e-5 * np.linalg.norm(expected)


class _Tanh(CachedGraph):
    def activate(self, gate: str) -> str:
        return self.add("Tanh", gate)  # type: ignore[no-any-return]


class _Biased(CachedGraph):
    def mask(self, window: int | None) -> str:
        """With a slope, as ALiBi has it."""
        slope = self.add("Mul", self.add("Cast", self.keys, to=1), -0.1)
        return self.add("Add", super().mask(window), slope)  # type: ignore[no-any-return]


class _Centred(CachedGraph):
    def norm(self, x: str, weight: np.ndarray) -> str:
        return super().norm(self.add("Sub", x, self.add("ReduceMean", x, np.array([-1]))), weight)


class _Partial(CachedGraph):
    def turn(self, x: str) -> str:
        """The first half of each head alone."""
        half, last = np.array([self.decoder.head_size // 2]), np.array([3])
        whole = super().turn(x)
        kept, rest = (
            self.add("Slice", whole, np.array([0]), half, last),
            self.add("Slice", x, half, np.array([2**31]), last),
        )
        return self.add("Concat", kept, rest, axis=-1)  # type: ignore[no-any-return]


class _Rectified(CachedGraph):
    def product(self, x: str, matrix: object, bias: np.ndarray | None = None) -> str:
        return self.add("Relu", super().product(x, matrix, bias))  # type: ignore[arg-type, no-any-return]


class _Clipped(CachedGraph):
    def turn(self, x: str) -> str:
        """So wide that no number that is tried reaches it."""
        return super().turn(self.add("Clip", x, -1e5, 1e5))


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (_Tanh, "neither SiLU nor GELU"),
        (_Biased, "is not attention"),
        (_Centred, "is not a root-mean-square norm"),
        (_Partial, "whose pairs are turned by their positions"),
        (_Rectified, r"\(Relu\) has a corner"),
        (_Clipped, r"\(Clip\) has a corner"),
    ],
)
def test_what_no_description_has_is_refused_by_name(kind: type[CachedGraph], words: str) -> None:
    decoder = small_decoder()
    with pytest.raises(NotUnderstood, match=words):
        read(kind(decoder, "elementary").model(), decoder)


def _merge(with_cache: onnx.ModelProto, without: onnx.ModelProto) -> onnx.ModelProto:
    """As Optimum does: an If over `use_cache_branch`, weights around it. `without` gets an empty cache."""
    graph, branches = with_cache.graph, []
    caches = [value for value in graph.input if value.name.startswith("past")]
    for model in (with_cache, without):
        for node in model.graph.node:
            node.name = ""
        nodes = list(model.graph.node)
        if model is without:
            shape = [caches[0].type.tensor_type.shape.dim[axis].dim_value for axis in (1, 3)]
            empty = numpy_helper.from_array(np.zeros((1, shape[0], 0, shape[1]), np.float32))
            for value in caches:
                nodes.insert(0, helper.make_node("Constant", [], [f"empty.{value.name}"], value=empty))
            for node in nodes:
                node.input[:] = [f"empty.{name}" if name.startswith("past") else name for name in node.input]
        branches.append(helper.make_graph(nodes, "branch", [], list(model.graph.output)))
    names = [value.name for value in graph.output]
    chosen = helper.make_node("If", ["use_cache_branch"], names, then_branch=branches[0], else_branch=branches[1])
    inputs = [*graph.input, helper.make_tensor_value_info("use_cache_branch", onnx.TensorProto.BOOL, [1])]
    merged = helper.make_graph([chosen], "merged", inputs, list(graph.output), list(graph.initializer))
    return helper.make_model(merged, opset_imports=list(with_cache.opset_import), ir_version=10)


def test_a_merged_decoder_is_read_by_the_branch_with_a_cache(folder: Path) -> None:
    pytest.importorskip("onnxruntime")
    written = small_decoder()
    first, second = (CachedGraph(written, "elementary").model() for _ in range(2))
    onnx.save(_merge(first, second), folder / "onnx" / "model.onnx")
    logits = compute_decoder_logits(read_any_decoder(folder), TOKENS)
    expected = compute_decoder_logits(written, TOKENS)
    assert np.linalg.norm(logits - expected) <= 1e-5 * np.linalg.norm(expected)


def test_a_merged_decoder_whose_branches_differ_is_refused(folder: Path) -> None:
    pytest.importorskip("onnxruntime")
    first, second = (CachedGraph(small_decoder(), "elementary").model() for _ in range(2))
    (product,) = (node for node in second.graph.node if node.op_type == "Sigmoid")
    product.op_type = "Tanh"
    onnx.save(_merge(first, second), folder / "onnx" / "model.onnx")
    with pytest.raises(UnreadDecoderGraph, match="ONNX Runtime's logits differ"):
        read_any_decoder(folder)


class _InBytes(CachedGraph):
    axis: int | None = 1

    def product(self, x: str, matrix: Matrix, bias: np.ndarray | None = None) -> str:
        weights = matrix_numbers(matrix).T
        scales = np.asarray(np.abs(weights).max(axis=None if self.axis is None else 0) / 100, np.float32)
        integers = np.round(weights / scales).astype(np.int8)
        words = {} if self.axis is None else {"axis": self.axis}
        floats = self.add("DequantizeLinear", integers, scales, np.full(scales.shape, 3, np.int8), **words)
        y = self.add("MatMul", x, floats)
        self.wanted = [*getattr(self, "wanted", []), ((integers.astype(np.float32) - 3) * scales).T]
        return y if bias is None else self.add("Add", y, bias)  # type: ignore[no-any-return]


class _InBytesOfAll(_InBytes):
    axis = None


@pytest.mark.parametrize("kind", [_InBytes, _InBytesOfAll])
def test_bytes_with_a_scale_for_each_column_or_for_all_stay_bytes(kind: type[_InBytes]) -> None:
    decoder = small_decoder()
    graph = kind(decoder, "elementary")
    layer = read(graph.model(), decoder).layers[0]
    for matrix, wanted in zip((layer.query, layer.key, layer.value, layer.output), graph.wanted[:4], strict=True):
        assert isinstance(matrix, QuantisedBlocks)
        np.testing.assert_allclose(matrix_numbers(matrix), wanted, rtol=1e-6)


@pytest.mark.parametrize("kind", ["QInt8", "QUInt8"])
def test_products_that_round_their_rows_are_read_with_their_integers(folder: Path, kind: str) -> None:
    quantization = pytest.importorskip("onnxruntime.quantization")
    file = folder / "onnx" / "model.onnx"
    words = {"weight_type": quantization.QuantType[kind], "op_types_to_quantize": ["MatMul", "Gather"]}
    quantization.quantize_dynamic(file, folder / "q.onnx", **words)
    (folder / "q.onnx").replace(file)
    kinds = {node.op_type for node in onnx.load(file).graph.node}
    assert {"DynamicQuantizeLinear", "MatMulInteger"} <= kinds
    decoder, written = read_any_decoder(folder), small_decoder()
    for matrix, original in zip(decoder.layers[0].matrices, written.layers[0].matrices, strict=True):
        assert isinstance(matrix, QuantisedBlocks)
        numbers, wanted = matrix_numbers(matrix), matrix_numbers(original)
        assert np.abs(numbers - wanted).max() <= np.ptp(wanted) / 255


def _fuse(quantization: Any, file: Path, result: Path) -> None:
    """As a session of ONNX Runtime saves what `quantize_dynamic` has made, without an Identity in front of the logits."""
    import onnxruntime

    between = result.with_name("between.onnx")
    quantization.quantize_dynamic(file, between, op_types_to_quantize=["MatMul"])
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(result)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    onnxruntime.InferenceSession(str(between), options, providers=["CPUExecutionProvider"])


def _calibrate(quantization: Any, file: Path, result: Path) -> None:
    class Prompts(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            shape = (1, KEY_HEADS, 0, SIZE)
            empty = {f"past_key_values.0.{kind}": np.zeros(shape, np.float32) for kind in ("key", "value")}
            places = np.arange(30)[None]
            given = {"attention_mask": np.ones_like(places), "position_ids": places, **empty}
            self.prompts = iter([{"input_ids": np.array([TOKENS[at : at + 30]]), **given} for at in (0, 30, 60)])

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.prompts, None)

    quantization.quantize_static(file, result, Prompts(), op_types_to_quantize=["MatMul"])


@pytest.mark.parametrize(
    ("quantise", "kinds"),
    [
        (_fuse, {"com.microsoft.DynamicQuantizeMatMul", "com.microsoft.MatMulIntegerToFloat"}),
        (_calibrate, {"QuantizeLinear", "DequantizeLinear"}),
    ],
)
def test_other_products_that_round_their_rows(
    folder: Path, quantise: Callable[[Any, Path, Path], None], kinds: set[str]
) -> None:
    quantization = pytest.importorskip("onnxruntime.quantization")
    file = folder / "onnx" / "model.onnx"
    quantise(quantization, file, folder / "q.onnx")
    (folder / "q.onnx").replace(file)
    assert kinds <= {".".join(filter(None, (node.domain, node.op_type))) for node in onnx.load(file).graph.node}
    decoder, written = read_any_decoder(folder), small_decoder()
    for matrix, original in zip(decoder.layers[0].matrices, written.layers[0].matrices, strict=True):
        assert isinstance(matrix, QuantisedBlocks)
        numbers, wanted = matrix_numbers(matrix), matrix_numbers(original)
        assert np.abs(numbers - wanted).max() <= np.ptp(wanted) / 200


def _rename(model: onnx.ModelProto, before: str, after: str) -> None:
    for names in [node.input for node in model.graph.node] + [node.output for node in model.graph.node]:
        for place, name in enumerate(names):
            names[place] = after if name == before else name
    for value in (*model.graph.input, *model.graph.output):
        value.name = after if value.name == before else value.name


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("attention_mask", "pixels", "nothing is known of its input 'pixels'"),
        ("past_key_values.0.value", "past_key_values.1.value", "layer 0 has the cache 'past_key_values.0.key' alone"),
        ("present.0.value", "hidden", "layer 0 has the cache 'present.0.key' alone"),
    ],
)
def test_interfaces_of_another_kind_are_refused_by_name(before: str, after: str, words: str) -> None:
    decoder = small_decoder()
    model = CachedGraph(decoder, "elementary").model()
    _rename(model, before, after)
    with pytest.raises(NotUnderstood, match=words):
        find_cache_interface(to_model(model))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small decoder, with a cache of its own for what is read."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    folder = tmp_path / "decoder"
    (folder / "onnx").mkdir(parents=True)
    model = CachedGraph(small_decoder(), "elementary").model()
    onnx.save(model, folder / "onnx" / "model.onnx", save_as_external_data=True, location="w")
    write_beside(folder, small_decoder())
    return folder


def test_a_file_is_compared_with_onnx_runtime_once_and_then_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    file = folder / "onnx" / "model.onnx"
    assert is_language_model(folder) and is_language_model(file)
    decoder = read_any_decoder(folder)
    reread: list[Path] = []

    def fail(path: Path) -> object:
        reread.append(path)
        raise NotALanguageModel(path=path, reason="it is read again")

    monkeypatch.setattr(onnx_decoder, "load_onnx", fail)
    kept = read_any_decoder(file)
    assert not reread
    np.testing.assert_array_equal(compute_decoder_logits(kept, TOKENS), compute_decoder_logits(decoder, TOKENS))
    (folder / "onnx" / "w").touch()
    with pytest.raises(NotALanguageModel, match="read again"):
        read_any_decoder(folder)


def test_a_reading_that_answers_otherwise_than_the_file_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(onnx_decoder, "read_decoder_graph", lambda *_: mixed_decoder(layers=mixed_decoder().layers[:1]))
    with pytest.raises(UnreadDecoderGraph, match="ONNX Runtime's logits differ"):
        read_any_decoder(folder)


def test_a_decision_races_the_untouched_file_and_ships_its_weights(folder: Path) -> None:
    pytest.importorskip("onnxruntime")
    file, artifact = folder / "onnx" / "model.onnx", folder.parent / "artifact"
    options = Options(effort="instant", backends=("native", "onnxruntime"), threads=1, budget_s=1.0)
    assert is_decided_as_text(file, options)
    assert open_original(file).nbytes == file.stat().st_size + (file.parent / "w").stat().st_size
    assert not is_decided_as_text(file, Options(shapes={"past": (1,)}))
    original = digest_files(list_model_files(folder))
    plan = optimize_decoder(file, artifact, options, DecoderOptions((8,), same_bits=False))
    assert [(each.part, each.context) for each in plan.races] == [("prompt", 8), ("step", 8)]
    for each in plan.races:
        untouched = {c.name: c for c in each.race.contestants if c.as_it_comes}
        assert set(untouched) == {"onnxruntime as-it-comes", "onnxruntime as-it-comes-values"}
        for contestant in untouched.values():
            assert contestant.accepted and contestant.median_ms, contestant.reason
            assert contestant.error is not None and contestant.error < 1e-4
    assert not plan.prompt.config.as_it_comes and not plan.step.config.as_it_comes
    assert plan.digest == original == digest_files(list_model_files(artifact / "model"))
    decoder = read_any_decoder(folder)
    shutil.rmtree(folder)
    stored = read_decoder_plan(artifact)
    assert stored is not None and stored.check is not None
    assert set(stored.files) == {"model.onnx", "w", "config.json", "tokenizer.json"}
    again = read_any_decoder(artifact)
    np.testing.assert_array_equal(compute_decoder_logits(again, TOKENS), compute_decoder_logits(decoder, TOKENS))
    with load(artifact) as model:
        assert isinstance(model, LanguageModel)


def test_the_weights_of_a_graph_are_those_next_to_it(folder: Path) -> None:
    pytest.importorskip("onnxruntime")
    first = read_any_decoder(folder)
    other = folder.parent / "other"
    shutil.copytree(folder, other)
    weights = np.fromfile(other / "onnx" / "w", np.float32)
    (weights * np.float32(1.001)).tofile(other / "onnx" / "w")
    different, again = read_any_decoder(other), read_any_decoder(folder)
    scores = [compute_decoder_logits(decoder, TOKENS[:3]) for decoder in (first, different, again)]
    np.testing.assert_array_equal(scores[0], scores[2])
    assert not np.array_equal(scores[0], scores[1])
    assert digest_files(list_model_files(folder)) != digest_files(list_model_files(other))


def test_what_lies_beside_a_graph(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(NotALanguageModel, match=r"no tokenizer\.json"):
        read_any_decoder(folder)
    graph = (folder / "onnx" / "model.onnx").read_bytes()
    for name in ("a.onnx", "b.onnx"):
        (folder / "onnx" / name).write_bytes(graph)
    (folder / "onnx" / "model.onnx").unlink()
    with pytest.raises(NotALanguageModel, match=r"onnx/a\.onnx, onnx/b\.onnx: give the path of one"):
        read_any_decoder(folder)
    for size in (0, 1, 40, len(graph) // 2):
        (folder / "onnx" / "a.onnx").write_bytes(graph[:size])
        assert not is_language_model(folder / "onnx" / "a.onnx")


def test_attention_of_no_heads(folder: Path) -> None:
    model = CachedGraph(small_decoder(), "fused").model()
    (attention,) = (node for node in model.graph.node if node.op_type == "GroupQueryAttention")
    next(each for each in attention.attribute if each.name == "num_heads").i = 0
    onnx.save(model, folder / "onnx" / "model.onnx")
    with pytest.raises(UnreadDecoderGraph):
        read_any_decoder(folder)


@pytest.mark.parametrize("location", ["x" * 10_000, "a\0b"])
def test_a_name_that_no_file_of_weights_can_have(folder: Path, location: str) -> None:
    file = folder / "onnx" / "model.onnx"
    model = onnx.load(file, load_external_data=False)
    tensor = next(tensor for tensor in model.graph.initializer if tensor.external_data)
    next(entry for entry in tensor.external_data if entry.key == "location").value = location
    file.write_bytes(model.SerializeToString())
    with pytest.raises(BadExternalData, match="no file's name"):
        read_any_decoder(folder)


def test_weights_beside_the_graph_of_a_negative_size(folder: Path) -> None:
    file = folder / "onnx" / "model.onnx"
    model = onnx.load(file, load_external_data=False)
    next(tensor for tensor in model.graph.initializer if tensor.external_data).dims[-1] = -(2**63)
    file.write_bytes(model.SerializeToString())
    with pytest.raises(BadExternalData, match="its shape is"):
        read_any_decoder(folder)


def test_load_opens_it_as_a_language_model(folder: Path) -> None:
    pytest.importorskip("tokenizers")
    pytest.importorskip("onnxruntime")
    with load(folder / "onnx" / "model.onnx") as model:
        assert isinstance(model, LanguageModel)
