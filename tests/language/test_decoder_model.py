"""A decoder on our engine: right, and with the same bits however tokens come to it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from bricolage.backends.native.engine import FORCED_ISA_VARIABLE
from bricolage.device.memory import total_bytes
from bricolage.errors import BadOption, ContextFull, NotEnoughMemory
from bricolage.language import decoder_model
from bricolage.language.cache_pool import FIRST_SPAN, CachePool
from bricolage.language.decoder_model import DecoderModel, DecoderSequence, _LogitsMemory
from bricolage.language.decoder_programs import Arithmetic
from bricolage.verify.decoder_reference import compute_decoder_logits, compute_divergence
from tests.language.mixed_decoders import CONTEXT, VOCABULARY, mixed_decoder

TOKENS = np.random.default_rng(0).integers(0, VOCABULARY, 134).tolist()
"""More than a prompt's program has rows, than a window sees, and than a new sequence has rows for."""


@cache
def model_of(threads: int, config: Arithmetic) -> DecoderModel:
    return DecoderModel(mixed_decoder(), threads=threads, config=config)


@cache
def one_by_one(config: Arithmetic) -> tuple[np.ndarray, list[np.ndarray]]:
    """Logits behind each token of a sequence alone, by one thread, and its rows of the cache."""
    model = model_of(1, config)
    sequence = model.open_sequence()
    logits = np.concatenate([model.extend([(sequence, [token])])[0] for token in TOKENS])
    return logits, rows_of(model, sequence)


def rows_of(model: DecoderModel, sequence: DecoderSequence) -> list[np.ndarray]:
    span = slice(sequence.span.start, sequence.span.start + sequence.length)
    return [pool[span].copy() for pool in model.pool.arrays]


def assert_same_bits(model: DecoderModel, sequence: DecoderSequence, logits: np.ndarray, config: Arithmetic) -> None:
    right, rows = one_by_one(config)
    assert np.array_equal(logits, right[sequence.length - len(logits) : sequence.length])
    for found, expected in zip(rows_of(model, sequence), rows, strict=True):
        assert np.array_equal(found, expected[: sequence.length])


def test_it_is_right() -> None:
    right = compute_decoder_logits(mixed_decoder(), TOKENS)
    found, _ = one_by_one("f32")
    assert np.abs(found - right).max() < 2e-2 * np.abs(right).max(), "keys and values are float16"
    model = DecoderModel(mixed_decoder(), threads=2, cache="float32")
    (found,) = model.extend([(model.open_sequence(), TOKENS)], every_row=True)
    assert np.abs(found - right).max() < 1e-5 * np.abs(right).max()


@pytest.mark.parametrize("config", ["f32", "int8"])
def test_chunks_batches_and_threads_have_the_same_bits(config: Arithmetic) -> None:
    for threads in (1, 2) if config == "f32" else (2,):
        model = model_of(threads, config)
        for chunk in (7, 128):
            sequence = model.open_sequence()
            for first in range(0, len(TOKENS), chunk):
                (logits,) = model.extend([(sequence, TOKENS[first : first + chunk])], every_row=chunk < 8)
                assert_same_bits(model, sequence, logits, config)
        for count in (2, 8):
            sequence, *others = (model.open_sequence() for _ in range(count))
            for number, other in enumerate(others):
                model.extend([(other, TOKENS[: 9 * number + 1])])
            for token in TOKENS[:12]:
                logits, *_ = model.extend(
                    [(sequence, [token]), *((other, [number]) for number, other in enumerate(others))]
                )
                assert_same_bits(model, sequence, logits, config)
            for each in (sequence, *others):
                each.close()


@cache
def model_of_bytes(threads: int) -> DecoderModel:
    return DecoderModel(mixed_decoder(32), threads=threads, cache="q8_0")


def round_to_bytes(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """By the definition: bytes and their scales."""
    blocks = rows.reshape(*rows.shape[:-1], -1, 32)
    scales = np.maximum(np.abs(blocks).max(axis=-1) / 127, 2.0**-14).astype(np.float16)
    return np.rint(blocks / scales[..., None].astype(np.float32)).reshape(rows.shape), scales


def test_a_cache_of_bytes_is_what_its_definition_says() -> None:
    decoder = mixed_decoder(32)
    exact, model = DecoderModel(decoder, threads=1, cache="float32"), model_of_bytes(1)
    other, sequence = exact.open_sequence(), model.open_sequence()
    (expected,) = exact.extend([(other, TOKENS[:70])])
    (logits,) = model.extend([(sequence, TOKENS[:70])])
    assert 0 < compute_divergence(expected, logits) < 2e-3
    rows = rows_of(model, sequence)
    assert [(array.dtype, array.shape[1]) for array in rows[:2]] == [(np.int8, 64), (np.float16, 2)]
    # Of the first layer, whose keys and values depend on no cache.
    for floats, integers, scales in zip(rows_of(exact, other)[:2], rows[:4:2], rows[1:4:2], strict=True):
        exact_integers, exact_scales = round_to_bytes(floats)
        assert np.allclose(scales, exact_scales, rtol=2e-3)
        assert np.abs(integers - exact_integers).max() <= 1


@pytest.mark.parametrize("isa", [None, "split-avx512", "split-neon"])
def test_a_cache_of_bytes_has_the_same_bits_for_chunks_batches_and_threads(
    isa: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isa is not None:
        monkeypatch.setenv(FORCED_ISA_VARIABLE, isa)
        alone, *others = [DecoderModel(mixed_decoder(32), threads=1, cache="q8_0")]
    else:
        alone, *others = model_of_bytes(1), model_of_bytes(2)
    tokens, sequence = TOKENS[:80], alone.open_sequence()
    right = np.concatenate([alone.extend([(sequence, [token])])[0] for token in tokens])
    rows = rows_of(alone, sequence)
    for model in (alone, *others):
        together, mates = model.open_sequence(), [model.open_sequence() for _ in range(3)]
        model.extend([(together, tokens[:-1])])
        results = model.extend([(together, tokens[-1:]), *((mate, [7]) for mate in mates)])
        assert np.array_equal(results[0][-1], right[-1])
        for found, wanted in zip(rows_of(model, together), rows, strict=True):
            assert np.array_equal(found, wanted)


def test_a_cache_of_bytes_takes_half_and_is_for_whole_blocks() -> None:
    models = [DecoderModel(mixed_decoder(32), threads=1, cache=cache) for cache in ("float16", "q8_0")]
    assert models[1].pool.row_bytes == models[0].pool.row_bytes * 34 / 64
    with pytest.raises(BadOption, match="24 numbers"):
        DecoderModel(mixed_decoder(), threads=1, cache="q8_0")


def test_capped_scores_are_right_and_have_the_same_bits() -> None:
    """With caps that scores and logits reach."""
    decoder = mixed_decoder(attention_softcap=0.6, logit_softcap=1.5)
    model, tokens = DecoderModel(decoder, threads=2, cache="float32"), TOKENS[:132]
    whole, alone = model.open_sequence(), model.open_sequence()
    (logits,) = model.extend([(whole, tokens)])
    right = compute_decoder_logits(decoder, tokens)
    assert np.abs(logits - right[-1]).max() < 1e-5 * np.abs(right[-1]).max()
    bare = compute_decoder_logits(replace(decoder, attention_softcap=None), tokens)
    assert np.abs(bare[-1] - right[-1]).max() > 1e-2 * np.abs(right[-1]).max(), "else no cap would be right too"
    rows = [model.extend([(alone, [token])])[0] for token in tokens]
    assert np.array_equal(rows[-1], logits)
    for found, expected in zip(rows_of(model, alone), rows_of(model, whole), strict=True):
        assert np.array_equal(found, expected)


def test_a_copied_prefix_and_a_speculation_taken_back_have_the_same_bits() -> None:
    model = model_of(2, "f32")
    first, second = model.open_sequence(), model.open_sequence()
    model.extend([(first, TOKENS[:133])])
    second.copy_prefix(first, 131)
    model.extend([(second, [1, 2, 3])])
    second.truncate(131)
    first.close()
    (logits,) = model.extend([(second, TOKENS[131:])], every_row=True)
    assert_same_bits(model, second, logits, "f32")


def test_logits_stay_the_callers() -> None:
    model = model_of(1, "f32")
    sequence = model.open_sequence()
    kept = [model.extend([(sequence, [token])])[0] for token in TOKENS[:40]]
    assert np.array_equal(np.concatenate(kept), one_by_one("f32")[0][:40])


def test_what_does_not_fit_changes_nothing() -> None:
    model = model_of(1, "f32")
    full, other = model.open_sequence(), model.open_sequence()
    with pytest.raises(ContextFull, match=f"{CONTEXT + 1} tokens"):
        model.extend([(other, [1]), (full, [1] * (CONTEXT + 1))])
    with pytest.raises(ValueError, match="none of"):
        model.extend([(other, [VOCABULARY])])
    with pytest.raises(ValueError, match="0 tokens"):
        model.extend([(other, [])])
    assert other.length == full.length == 0
    with pytest.raises(ValueError, match="1 of 0"):
        other.truncate(1)


def test_caches_of_all_sequences_may_be_larger_than_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program's tensors are as long as the longest texts of all sequences; their memory is taken as they grow."""
    row_bytes = DecoderModel(mixed_decoder(), threads=1, cache="float32").pool.row_bytes
    monkeypatch.setattr(decoder_model, "_SEQUENCES", 2 * total_bytes() // (CONTEXT * row_bytes))
    model = DecoderModel(mixed_decoder(), threads=1, cache="float32")
    (logits,) = model.extend([(model.open_sequence(), TOKENS[:1])])
    right = compute_decoder_logits(mixed_decoder(), TOKENS[:1])
    assert np.abs(logits - right).max() < 1e-5 * np.abs(right).max()


def test_spans_of_the_cache_never_meet() -> None:
    pool = CachePool([(3, np.dtype(np.float16))] * 2, 1 << 20)
    draw = np.random.default_rng(0)
    spans = []
    for step in range(300):
        if spans and draw.random() < 0.4:
            pool.give_back(spans.pop(int(draw.integers(len(spans)))))
        elif spans and draw.random() < 0.4:
            span = spans.pop(int(draw.integers(len(spans))))
            pool.arrays[0][span.start : span.start + span.rows] = step
            larger = pool.enlarge(span, 2 * span.rows if span.rows < 400 else span.rows + 1, span.rows)
            assert (pool.arrays[0][larger.start : larger.start + span.rows] == step).all()
            spans.append(larger)
        else:
            spans.append(pool.take(int(draw.integers(1, 300))))
        rows = [row for span in spans for row in range(span.start, span.start + span.rows)]
        assert len(set(rows)) == len(rows)
        assert all(0 < row < pool.rows for row in rows), "row 0 is no sequence's"
    with pytest.raises(NotEnoughMemory):
        pool.take(1 << 20)


def test_the_memory_of_a_cache_grows_with_its_tokens() -> None:
    model = model_of(1, "f32")
    sequence = model.open_sequence()
    assert sequence.nbytes == 0
    model.extend([(sequence, TOKENS[:3])])
    assert sequence.nbytes == FIRST_SPAN * model.pool.row_bytes
    sequence.close()
    assert sequence.nbytes == 0


def test_a_matrix_unit_changes_no_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Emulated, so that every processor tests it: tiles of many rows once had other bits than a row alone."""
    monkeypatch.setenv(FORCED_ISA_VARIABLE, "split-amx")
    model = DecoderModel(mixed_decoder(), threads=1, config="int8")
    alone, together = model.open_sequence(), model.open_sequence()
    tokens = TOKENS[:24]
    right = np.concatenate([model.extend([(alone, [token])])[0] for token in tokens])
    (logits,) = model.extend([(together, tokens)])
    assert np.array_equal(logits[-1], right[-1])
    for found, expected in zip(rows_of(model, together), rows_of(model, alone), strict=True):
        assert np.array_equal(found, expected)


def test_memory_of_logits_is_used_again_once_no_view_of_it_is_left() -> None:
    memory = _LogitsMemory()
    logits = memory.take(2, 3)
    address, view = logits.ctypes.data, logits[1][1:]
    del logits
    other = memory.take(2, 3)
    assert other.ctypes.data != address, "a view of it is left"
    del view
    assert memory.take(2, 3).ctypes.data == address
