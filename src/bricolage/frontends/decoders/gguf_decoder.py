"""A decoder from the keys and tensors of a GGUF file.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. What a file leaves out has the value that llama.cpp gives it.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from bricolage.device.memory import available_bytes
from bricolage.errors import ModelBeyondMemory, NotALanguageModel, UnknownDecoderKind
from bricolage.frontends.decoders.architectures import ARCHITECTURES, LARGEST_HEAD
from bricolage.frontends.decoders.decoder_description import (
    DecoderDescription,
    LayerDescription,
    Matrix,
    RotaryEmbedding,
    build_checked_decoder,
    default_frequencies,
    matrix_numbers,
    matrix_rows,
    matrix_shape,
)
from bricolage.frontends.decoders.gguf_blocks import count_mapped_bytes, decode_blocks
from bricolage.frontends.decoders.gguf_file import GgufFile
from bricolage.frontends.decoders.gguf_tokenizer import read_gguf_tokenizer
from bricolage.frontends.decoders.named_values import NamedValues


def read_gguf(path: Path) -> DecoderDescription:
    """The decoder in a GGUF file. Weights of 4 to 8 bits become `QuantisedBlocks`; floats stay views of the mapped file.

    Raises:
        MissingFile, NotALanguageModel: there is no such file, or it is damaged or contradicts itself.
        UnknownDecoderKind: an architecture, a tensor type, a tokenizer or a rotary scaling that is not read.
        ModelBeyondMemory: its weights take more than is free, which is said before any is read.
    """
    file = GgufFile(path)
    name = NamedValues(path, file.metadata).text("general.architecture")
    if name not in ARCHITECTURES:
        raise UnknownDecoderKind(path=path, kind="architecture", name=name, expected=", ".join(ARCHITECTURES))
    needed = sum(count_mapped_bytes(tensor.format, tensor.size) for tensor in file.tensors.values())
    present = available_bytes()
    if needed > present:
        raise ModelBeyondMemory(wanted=f"{needed / 1e9:.3g} GB", present=f"{present / 1e9:.3g} GB")
    return build_checked_decoder(path, lambda: _Parts(file, name).decoder())


class _Parts:
    """What a description consists of."""

    def __init__(self, file: GgufFile, name: str) -> None:
        self._file, self._name, self._kind = file, name, ARCHITECTURES[name]
        self._keys = NamedValues(file.path, file.metadata)
        self._layers = self._keys.integer(f"{name}.block_count")
        self._heads = self._keys.integer(f"{name}.attention.head_count")
        self._key_heads = self._keys.integer(f"{name}.attention.head_count_kv", self._heads)
        self._embedding = self._matrix("token_embd.weight")
        self._width = matrix_shape(self._embedding)[1]
        self._head_size = self._keys.integer(
            f"{name}.attention.key_length", self._width // self._heads if self._heads else 0, LARGEST_HEAD
        )

    def decoder(self) -> DecoderDescription:
        """The whole."""
        keys, name = self._keys, self._name
        if self._layers > len(self._file.tensors):
            raise NotALanguageModel(
                path=self._file.path, reason=f"it names {self._layers} layers and has {len(self._file.tensors)} tensors"
            )
        self._refuse_unread_parts()
        scale = None
        if self._layers == self._kind.layers_scaled_by_width:
            scale = (self._width / self._heads) ** -0.5
        return DecoderDescription(
            architecture=name,
            layers=self._all_layers(),
            embedding=self._embedding,
            norm=self._vector("output_norm.weight"),
            heads=self._heads,
            key_heads=self._key_heads,
            head_size=self._head_size,
            context_length=keys.integer(f"{name}.context_length"),
            epsilon=keys.number(f"{name}.attention.layer_norm_rms_epsilon"),
            tokenizer=read_gguf_tokenizer(keys),
            head=self._matrix("output.weight") if "output.weight" in self._file.tensors else None,
            activation=self._kind.activation,
            embedding_scale=math.sqrt(self._width) if self._kind.scaled_embedding else 1.0,
            attention_scale=scale,
            attention_softcap=self._softcap("attn_logit_softcapping", self._kind.attention_softcap),
            logit_softcap=self._softcap("final_logit_softcapping", self._kind.logit_softcap),
        )

    def _softcap(self, key: str, usual: float) -> float | None:
        cap = self._keys.number(f"{self._name}.{key}", usual)
        return cap if cap > 0 else None

    def _refuse_unread_parts(self) -> None:
        """What would be left out without a word.

        Raises:
            UnknownDecoderKind: experts, tensors of no role here, or parts of heads that do not turn.
        """
        keys, name, path = self._keys, self._name, self._file.path
        if keys.integer(f"{name}.expert_count", 0):
            dense = f"dense layers of {', '.join(ARCHITECTURES)}"
            raise UnknownDecoderKind(path=path, kind="architecture", name=f"{name} with experts", expected=dense)
        turned = keys.integer(f"{name}.rope.dimension_count", self._head_size)
        values = keys.integer(f"{name}.attention.value_length", self._head_size)
        if turned != self._head_size or values != self._head_size:
            kind = f"{self._head_size} numbers in a head of keys, {values} of values, {turned} that turn"
            raise UnknownDecoderKind(path=path, kind="head size", name=kind, expected="three equal numbers")
        read = {"token_embd.weight", "output.weight", "output_norm.weight", "rope_freqs.weight"}
        parts = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down", "attn_norm", "ffn_norm"]
        parts += ["attn_q_norm", "attn_k_norm"] * self._kind.head_norms
        parts += ["post_attention_norm", "post_ffw_norm"] * self._kind.post_norms
        suffixes = [f"{part}.weight" for part in parts]
        suffixes += ["attn_q.bias", "attn_k.bias", "attn_v.bias"]
        read |= {f"blk.{i}.{suffix}" for i in range(self._layers) for suffix in suffixes}
        read |= {f"blk.{i}.rope_freqs.weight" for i in range(self._layers)}
        unread = sorted(self._file.tensors.keys() - read)
        if unread:
            expected = f"the tensors of {name}, without what is added to them"
            raise UnknownDecoderKind(path=path, kind="tensor", name=unread[0], expected=expected)

    def _all_layers(self) -> tuple[LayerDescription, ...]:
        """Layers with their windows and frequencies."""
        everywhere, local = self._ropes()
        window = 0
        if local is not None:
            window = self._keys.integer(f"{self._name}.attention.sliding_window", self._kind.window)
        pattern = self._keys.values.get(f"{self._name}.attention.sliding_window_pattern", self._kind.pattern)
        layers = []
        for number in range(self._layers):
            if isinstance(pattern, np.ndarray):
                if pattern.shape != (self._layers,):
                    reason = f"it says of {pattern.size} layers whether they see a window, and has {self._layers}"
                    raise NotALanguageModel(path=self._file.path, reason=reason)
                limited = bool(pattern[number])
            else:
                every = self._keys.integer(f"{self._name}.attention.sliding_window_pattern", self._kind.pattern)
                limited = every > 0 and (number + 1) % every != 0
            limited = limited and window > 0
            rope = local if limited and local is not None else everywhere
            layers.append(self._layer(number, rope, window if limited else None))
        return tuple(layers)

    def _ropes(self) -> tuple[RotaryEmbedding, RotaryEmbedding | None]:
        """Of layers that see everything, and of those with a window where there are such."""
        keys, prefix = self._keys, f"{self._name}.rope"
        scaling = keys.text(f"{prefix}.scaling.type", "none")
        if scaling not in ("none", "linear"):
            expected = "none, linear, and the factors of rope_freqs.weight"
            raise UnknownDecoderKind(path=self._file.path, kind="rotary scaling", name=scaling, expected=expected)
        factor = keys.number(f"{prefix}.scaling.factor", keys.number(f"{prefix}.scale_linear", 1.0))
        if factor <= 0:
            factor = 1.0
        base = keys.number(f"{prefix}.freq_base", self._kind.base)
        if base <= 0:
            raise NotALanguageModel(path=self._file.path, reason=f"the base of its rotary frequencies is {base}")
        frequencies = default_frequencies(base, self._head_size) / factor
        for name in ("rope_freqs.weight", "blk.0.rope_freqs.weight"):
            if name in self._file.tensors:
                factors = self._vector(name)
                if factors.shape != frequencies.shape:
                    reason = f"{name} has {factors.size} factors for {frequencies.size} frequencies"
                    raise NotALanguageModel(path=self._file.path, reason=reason)
                frequencies = frequencies / factors
        everywhere = RotaryEmbedding(base, frequencies)
        if self._kind.pattern == 1:
            return everywhere, None
        if self._kind.local_base is None and f"{prefix}.freq_base_swa" not in keys.values:
            return everywhere, everywhere
        local = keys.number(f"{prefix}.freq_base_swa", self._kind.local_base)
        if local <= 0:
            raise NotALanguageModel(path=self._file.path, reason=f"the base of its local frequencies is {local}")
        return everywhere, RotaryEmbedding(local, default_frequencies(local, self._head_size))

    def _layer(self, number: int, rope: RotaryEmbedding, window: int | None) -> LayerDescription:
        def matrix(part: str) -> Matrix:
            return self._matrix(f"blk.{number}.{part}.weight")

        def vector(part: str) -> np.ndarray:
            return self._vector(f"blk.{number}.{part}")

        def bias(part: str) -> np.ndarray | None:
            name = f"{part}.bias"
            return vector(name) if self._kind.biases or f"blk.{number}.{name}" in self._file.tensors else None

        heads, key_heads, kind = self._heads, self._key_heads, self._kind
        query_bias, key_bias = bias("attn_q"), bias("attn_k")
        query, key = matrix("attn_q"), matrix("attn_k")
        if kind.interleaved:
            query, key = self._turn(query, heads, number), self._turn(key, key_heads, number)
            query_bias, key_bias = (
                self._turn_bias(query_bias, heads, number),
                self._turn_bias(key_bias, key_heads, number),
            )
        return LayerDescription(
            query=query,
            key=key,
            value=matrix("attn_v"),
            output=matrix("attn_output"),
            gate=matrix("ffn_gate"),
            up=matrix("ffn_up"),
            down=matrix("ffn_down"),
            attention_norm=vector("attn_norm.weight"),
            feed_forward_norm=vector("ffn_norm.weight"),
            rope=rope,
            query_bias=query_bias,
            key_bias=key_bias,
            value_bias=bias("attn_v"),
            query_norm=vector("attn_q_norm.weight") if kind.head_norms else None,
            key_norm=vector("attn_k_norm.weight") if kind.head_norms else None,
            attention_post_norm=vector("post_attention_norm.weight") if kind.post_norms else None,
            feed_forward_post_norm=vector("post_ffw_norm.weight") if kind.post_norms else None,
            sliding_window=window,
        )

    def _order(self, rows: int, heads: int, number: int) -> np.ndarray:
        """Rows in Hugging Face's order: the file has the two numbers that turn together side by side."""
        if not heads or rows % (2 * heads):
            reason = f"layer {number} has {rows} rows for {heads} heads"
            raise NotALanguageModel(path=self._file.path, reason=reason)
        return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)

    def _turn(self, matrix: Matrix, heads: int, number: int) -> Matrix:
        return matrix_rows(matrix, self._order(matrix_shape(matrix)[0], heads, number))

    def _turn_bias(self, bias: np.ndarray | None, heads: int, number: int) -> np.ndarray | None:
        return None if bias is None else bias[self._order(len(bias), heads, number)]

    def _matrix(self, name: str) -> Matrix:
        tensor = self._file.tensors.get(name)
        if tensor is None:
            raise NotALanguageModel(path=self._file.path, reason=f"it lacks the tensor '{name}'")
        if len(tensor.shape) != 2:
            reason = f"tensor '{name}' has the shape {list(tensor.shape)}, not two dimensions"
            raise NotALanguageModel(path=self._file.path, reason=reason)
        return decode_blocks(tensor.format, self._file.read_bytes(tensor))

    def _vector(self, name: str) -> np.ndarray:
        """float32."""
        tensor = self._file.tensors.get(name)
        if tensor is None:
            raise NotALanguageModel(path=self._file.path, reason=f"it lacks the tensor '{name}'")
        if len(tensor.shape) != 1:
            reason = f"tensor '{name}' has the shape {list(tensor.shape)}, not one dimension"
            raise NotALanguageModel(path=self._file.path, reason=reason)
        return np.asarray(matrix_numbers(decode_blocks(tensor.format, self._file.read_bytes(tensor)))[0])
