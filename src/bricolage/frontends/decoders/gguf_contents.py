"""A decoder's description as keys and tensors of a GGUF file: what `gguf_decoder` reads, the other way round."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import numpy as np

from bricolage.errors import UnknownDecoderKind
from bricolage.frontends.decoders.architectures import ARCHITECTURES
from bricolage.frontends.decoders.decoder_description import (
    NORMAL,
    UNUSED,
    DecoderDescription,
    LayerDescription,
    Matrix,
    TokenizerDescription,
    default_frequencies,
    matrix_rows,
    matrix_shape,
)
from bricolage.frontends.decoders.gguf_blocks import choose_format, encode_blocks
from bricolage.frontends.decoders.gguf_file import FORMATS, GgufFile
from bricolage.frontends.decoders.gguf_writer import FORMAT_NUMBERS, KeyValue, TensorToWrite, encode_value

MATRIX_NAMES = {
    "query": "attn_q",
    "key": "attn_k",
    "value": "attn_v",
    "output": "attn_output",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}
"""GGUF's names of a layer's matrices, by the field of `LayerDescription`."""
EMBEDDING, HEAD = "token_embd.weight", "output.weight"
_VECTOR_NAMES = {
    "attention_norm": "attn_norm.weight",
    "feed_forward_norm": "ffn_norm.weight",
    "query_bias": "attn_q.bias",
    "key_bias": "attn_k.bias",
    "value_bias": "attn_v.bias",
    "query_norm": "attn_q_norm.weight",
    "key_norm": "attn_k_norm.weight",
    "attention_post_norm": "post_attention_norm.weight",
    "feed_forward_post_norm": "post_ffw_norm.weight",
}
_TURNED = {"query": "heads", "key": "key_heads", "query_bias": "heads", "key_bias": "key_heads"}
"""Rows that llama's files have in another order, by heads."""
_ROPE_FACTORS = "rope_freqs.weight"


def list_gguf_tensors(decoder: DecoderDescription) -> Iterator[TensorToWrite]:
    """All matrices in the type that they have, and all vectors as float32."""
    yield _matrix_tensor(EMBEDDING, decoder.embedding)
    yield _vector_tensor("output_norm.weight", decoder.norm)
    if decoder.head is not None:
        yield _matrix_tensor(HEAD, decoder.head)
    for number, layer in enumerate(decoder.layers):
        for role, name in MATRIX_NAMES.items():
            matrix: Matrix = getattr(layer, role)
            if role in _TURNED and ARCHITECTURES[decoder.architecture].interleaved:
                matrix = matrix_rows(matrix, _file_order(matrix_shape(matrix)[0], getattr(decoder, _TURNED[role])))
            yield _matrix_tensor(f"blk.{number}.{name}.weight", matrix)
        for role, name in _VECTOR_NAMES.items():
            vector: np.ndarray | None = getattr(layer, role)
            if vector is not None:
                if role in _TURNED and ARCHITECTURES[decoder.architecture].interleaved:
                    vector = vector[_file_order(len(vector), getattr(decoder, _TURNED[role]))]
                yield _vector_tensor(f"blk.{number}.{name}", vector)


def copy_gguf_keys(source: GgufFile) -> tuple[dict[str, bytes], list[TensorToWrite]]:
    """All keys of a file but those about its types of tensors, and the factors of its frequencies."""
    left_out = ("general.file_type", "general.quantization_version", "general.alignment")
    values = {key: source.read_value_bytes(key) for key in source.metadata if key not in left_out}
    factors = [tensor for name, tensor in source.tensors.items() if name.endswith(_ROPE_FACTORS)]
    return values, [
        TensorToWrite(tensor.name, tensor.shape, tensor.format, source.read_bytes(tensor).tobytes) for tensor in factors
    ]


def make_gguf_keys(decoder: DecoderDescription, path: Path) -> tuple[dict[str, bytes], list[TensorToWrite]]:
    """Keys for a decoder that was in another kind of file, and the factors of its frequencies where it has such.

    Raises:
        UnknownDecoderKind: GGUF has no key for something of it; errors name `path`.
    """
    name, rope = decoder.architecture, decoder.layers[-1].rope
    values: dict[str, KeyValue] = {
        "general.architecture": name,
        "general.name": path.resolve().stem,
        f"{name}.context_length": decoder.context_length,
        f"{name}.embedding_length": decoder.width,
        f"{name}.block_count": len(decoder.layers),
        f"{name}.feed_forward_length": decoder.feed_forward,
        f"{name}.attention.head_count": decoder.heads,
        f"{name}.attention.head_count_kv": decoder.key_heads,
        f"{name}.attention.key_length": decoder.head_size,
        f"{name}.attention.value_length": decoder.head_size,
        f"{name}.attention.layer_norm_rms_epsilon": decoder.epsilon,
        f"{name}.rope.dimension_count": decoder.head_size,
    }
    kind = ARCHITECTURES[name]
    for key, cap, usual in (
        ("attn", decoder.attention_softcap, kind.attention_softcap),
        ("final", decoder.logit_softcap, kind.logit_softcap),
    ):
        if cap is not None or usual:
            values[f"{name}.{key}_logit_softcapping"] = cap or 0.0
    seeing_all = next((layer for layer in decoder.layers if layer.sliding_window is None), None)
    if len(decoder.layers) > 1 and seeing_all is not None:
        rope = seeing_all.rope
    values[f"{name}.rope.freq_base"] = rope.base
    values |= _window_keys(decoder, path)
    factors = default_frequencies(rope.base, decoder.head_size) / rope.frequencies
    extra: list[TensorToWrite] = []
    if not np.allclose(factors, 1, rtol=1e-9):
        if np.allclose(factors, factors[0], rtol=1e-9):
            values |= {f"{name}.rope.scaling.type": "linear", f"{name}.rope.scaling.factor": float(factors[0])}
        else:
            extra.append(_vector_tensor(_ROPE_FACTORS, factors))
    values |= _tokenizer_keys(_name_all_rows(decoder), path)
    return {key: encode_value(value) for key, value in values.items()}, extra


def _window_keys(decoder: DecoderDescription, path: Path) -> dict[str, KeyValue]:
    windows = [layer.sliding_window for layer in decoder.layers]
    present = {window for window in windows if window is not None}
    name, pattern = decoder.architecture, ARCHITECTURES[decoder.architecture].pattern
    if not present:
        return {}
    if pattern == 1 or len(present) > 1:
        kind = f"{name} with a sliding window"
        raise UnknownDecoderKind(path=path, kind="architecture", name=kind, expected="gemma2 or gemma3 with one window")
    local = next(layer.rope for layer in decoder.layers if layer.sliding_window is not None)
    keys: dict[str, KeyValue] = {f"{name}.attention.sliding_window": present.pop()}
    if ARCHITECTURES[name].local_base is not None:
        keys[f"{name}.rope.freq_base_swa"] = local.base
    limited = [window is not None for window in windows]
    if limited != [(number + 1) % pattern != 0 for number in range(len(windows))]:
        keys[f"{name}.attention.sliding_window_pattern"] = np.array(limited)
    return keys


def _name_all_rows(decoder: DecoderDescription) -> TokenizerDescription:
    """The tokenizer with a token for each row of the embedding: llama.cpp reads no file that has fewer."""
    tokenizer, missing = decoder.tokenizer, range(len(decoder.tokenizer.tokens), decoder.vocabulary)
    types = np.full(len(tokenizer.tokens), NORMAL) if tokenizer.types is None else tokenizer.types
    return replace(
        tokenizer,
        tokens=(*tokenizer.tokens, *(f"[PAD{number}]" for number in missing)),
        types=np.append(types, np.full(len(missing), UNUSED)),
    )


def _tokenizer_keys(tokenizer: TokenizerDescription, path: Path) -> dict[str, KeyValue]:
    """Raises UnknownDecoderKind where pieces have no scores: GGUF has no merges for them."""
    if tokenizer.model == "llama" and tokenizer.scores is None:
        raise UnknownDecoderKind(
            path=path, kind="tokenizer", name="pieces without scores", expected="ByteLevel, to write a GGUF file"
        )
    prefix = "tokenizer.ggml"
    keys: dict[str, KeyValue] = {f"{prefix}.model": tokenizer.model, f"{prefix}.tokens": tokenizer.tokens}
    if tokenizer.model == "gpt2":
        keys |= {f"{prefix}.pre": tokenizer.pre, f"{prefix}.merges": tokenizer.merges}
    if tokenizer.scores is not None:
        keys[f"{prefix}.scores"] = np.asarray(tokenizer.scores, np.float32)
    if tokenizer.types is not None:
        keys[f"{prefix}.token_type"] = np.asarray(tokenizer.types, np.int32)
    turns = sorted(tokenizer.ends - {tokenizer.end})
    special = {"bos": tokenizer.begin, "eos": tokenizer.end, "unknown": tokenizer.unknown, "padding": tokenizer.padding}
    special |= dict(zip(("eot", "eom"), turns, strict=False))
    keys |= {f"{prefix}.{name}_token_id": token for name, token in special.items() if token is not None}
    keys |= {
        f"{prefix}.add_bos_token": tokenizer.add_begin,
        f"{prefix}.add_eos_token": tokenizer.add_end,
        f"{prefix}.add_space_prefix": tokenizer.add_space_prefix,
    }
    if tokenizer.chat_template is not None:
        keys["tokenizer.chat_template"] = tokenizer.chat_template
    return keys


def find_difference(before: DecoderDescription, after: DecoderDescription) -> str | None:
    """The first thing that a file has lost of a decoder, weights apart; None where there is nothing."""
    for name in ("architecture", "heads", "key_heads", "head_size", "context_length", "activation"):
        if getattr(before, name) != getattr(after, name):
            return f"{name} {getattr(before, name)}"
    for name in ("epsilon", "embedding_scale", "query_scale", "attention_softcap", "logit_softcap"):
        first, second = getattr(before, name), getattr(after, name)
        if (first is None) != (second is None) or (first is not None and not np.isclose(first, second, rtol=1e-6)):
            return f"{name} {first}"
    for number, (first, second) in enumerate(zip(before.layers, after.layers, strict=True)):
        if first.sliding_window != second.sliding_window:
            return f"a window of {first.sliding_window} tokens"
        if not np.allclose(first.rope.frequencies, second.rope.frequencies, rtol=1e-5, atol=0):
            return f"the rotary frequencies of layer {number}"
        for field in fields(LayerDescription):
            if (getattr(first, field.name) is None) != (getattr(second, field.name) is None):
                return f"{field.name} of layer {number}"
    return None if before.tokenizer.ends <= after.tokenizer.ends else "tokens that end a text"


def _file_order(rows: int, heads: int) -> np.ndarray:
    """Rows as llama's files have them: the two that turn together side by side."""
    return np.arange(rows).reshape(heads, 2, -1).swapaxes(1, 2).reshape(-1)


def _matrix_tensor(name: str, matrix: Matrix) -> TensorToWrite:
    form = FORMATS[FORMAT_NUMBERS[choose_format(matrix)]]
    return TensorToWrite(name, matrix_shape(matrix), form, lambda: encode_blocks(matrix))


def _vector_tensor(name: str, vector: np.ndarray) -> TensorToWrite:
    numbers = np.asarray(vector, np.float32)
    return TensorToWrite(name, numbers.shape, FORMATS[0], numbers.tobytes)
