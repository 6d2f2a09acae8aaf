"""A decoder from a folder of Hugging Face: config.json, safetensors, and the files of its tokenizer."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from bricolage.errors import NotALanguageModel, UnknownDecoderKind
from bricolage.frontends.decoders.architectures import ARCHITECTURES, LARGEST_HEAD
from bricolage.frontends.decoders.decoder_description import (
    DecoderDescription,
    LayerDescription,
    RotaryEmbedding,
    build_checked_decoder,
    default_frequencies,
)
from bricolage.frontends.decoders.named_values import NamedValues, read_json
from bricolage.frontends.decoders.safetensors_file import read_tensors_of_folder
from bricolage.frontends.decoders.tokenizer_json import read_tokenizer_json

_MODEL_TYPES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma2": "gemma2", "gemma3_text": "gemma3"}
"""GGUF's names of `model_type`."""
_ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
_SLIDING = "sliding_attention"


def read_hugging_face(folder: Path) -> DecoderDescription:
    """The decoder in a folder. Weights are views of the mapped files.

    Raises:
        NotALanguageModel: files are missing or damaged, or contradict each other.
        UnknownDecoderKind: a `model_type`, an activation, a tensor, a rotary scaling or a tokenizer that is not read.
    """
    config = read_json(folder / "config.json")
    if not config.values:
        raise NotALanguageModel(path=folder, reason="it has no config.json")
    kind = config.text("model_type", "")
    if kind not in _MODEL_TYPES:
        raise UnknownDecoderKind(path=folder, kind="model_type", name=kind, expected=", ".join(_MODEL_TYPES))
    return build_checked_decoder(folder, lambda: _Folder(folder, config, _MODEL_TYPES[kind]).decoder())


class _Folder:
    """Its parts."""

    def __init__(self, folder: Path, config: NamedValues, name: str) -> None:
        self._folder, self._config, self._name, self._kind = folder, config, name, ARCHITECTURES[name]
        self._tensors = read_tensors_of_folder(folder)
        self._unread = set(self._tensors)
        self._heads = config.integer("num_attention_heads")
        width = config.integer("hidden_size")
        usual = width // self._heads if self._heads and name in ("llama", "qwen2") else None
        self._head_size = config.integer("head_dim", usual, LARGEST_HEAD)

    def decoder(self) -> DecoderDescription:
        """The whole."""
        config, kind = self._config, self._kind
        activation = config.text("hidden_activation", config.text("hidden_act", "silu"))
        if _ACTIVATIONS.get(activation) != kind.activation:
            raise UnknownDecoderKind(path=self._folder, kind="activation", name=activation, expected=kind.activation)
        embedding = self._matrix("model.embed_tokens.weight")
        tied = config.flag("tie_word_embeddings", kind.scaled_embedding)
        head = None if tied else self._matrix("lm_head.weight")
        scale = config.number("query_pre_attn_scalar", float(self._head_size)) if kind.layers_scaled_by_width else 0.0
        decoder = DecoderDescription(
            architecture=self._name,
            layers=self._layers(),
            embedding=embedding,
            norm=self._norm("model.norm"),
            heads=self._heads,
            key_heads=config.integer("num_key_value_heads", self._heads),
            head_size=self._head_size,
            context_length=config.integer("max_position_embeddings"),
            epsilon=config.number("rms_norm_eps", 1e-6),
            tokenizer=read_tokenizer_json(self._folder, config),
            head=head,
            activation=kind.activation,
            embedding_scale=math.sqrt(embedding.shape[1]) if kind.scaled_embedding else 1.0,
            attention_scale=scale**-0.5 if scale > 0 else None,
            attention_softcap=self._softcap("attn_logit_softcapping", kind.attention_softcap),
            logit_softcap=self._softcap("final_logit_softcapping", kind.logit_softcap),
        )
        unread = sorted(
            name for name in self._unread if not name.endswith("rotary_emb.inv_freq") and name != "lm_head.weight"
        )
        if unread:
            raise UnknownDecoderKind(
                path=self._folder, kind="tensor", name=unread[0], expected=f"those of {self._name}, without additions"
            )
        return decoder

    def _softcap(self, key: str, usual: float) -> float | None:
        """That of the architecture where there is no such key; a null is none."""
        cap = self._config.number(key, 0.0 if key in self._config.values else usual)
        return cap if cap > 0 else None

    def _layers(self) -> tuple[LayerDescription, ...]:
        count = self._config.integer("num_hidden_layers")
        if count > len(self._tensors):
            reason = f"it names {count} layers and has {len(self._tensors)} tensors"
            raise NotALanguageModel(path=self._folder, reason=reason)
        window = self._config.integer("sliding_window", self._kind.window)
        sliding = self._sliding_layers(count)
        everywhere, local = self._rope("full_attention"), self._rope(_SLIDING)
        return tuple(
            self._layer(number, local, window) if sliding[number] and window else self._layer(number, everywhere, None)
            for number in range(count)
        )

    def _sliding_layers(self, count: int) -> list[bool]:
        """Of each layer, whether it sees a window."""
        config = self._config
        types = config.texts("layer_types")
        if types:
            unknown = sorted(set(types) - {_SLIDING, "full_attention"})
            if unknown or len(types) != count:
                reason = f"it has {count} layers and these types of them: {', '.join(types)}"
                raise NotALanguageModel(path=self._folder, reason=reason)
            return [kind == _SLIDING for kind in types]
        if self._kind.pattern > 1:
            pattern = config.integer("sliding_window_pattern", self._kind.pattern)
            return [pattern > 0 and (number + 1) % pattern != 0 for number in range(count)]
        if self._name == "llama" or not config.flag("use_sliding_window", False):
            return [False] * count
        return [number >= config.integer("max_window_layers", count) for number in range(count)]

    def _rope(self, layers: str) -> RotaryEmbedding:
        """Of one type of layers: `rope_parameters` as Transformers writes it now, or the keys of earlier versions."""
        config, local = self._config, layers == _SLIDING and self._kind.local_base is not None
        parameters = config.within("rope_parameters")
        if layers in parameters.values:
            parameters = parameters.within(layers)
        elif local:
            parameters = NamedValues(config.path, {})
        base = self._kind.local_base if local and self._kind.local_base else self._kind.base
        base = config.number("rope_local_base_freq" if local else "rope_theta", base)
        base = parameters.number("rope_theta", base)
        if base <= 0:
            raise NotALanguageModel(path=self._folder, reason=f"the base of its rotary frequencies is {base}")
        scaling = parameters if parameters.values or local else config.within("rope_scaling")
        if scaling.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0)) != 1.0:
            raise UnknownDecoderKind(
                path=self._folder, kind="rotary scaling", name="partial_rotary_factor", expected="whole heads"
            )
        return RotaryEmbedding(base, self._scale(default_frequencies(base, self._head_size), scaling))

    def _scale(self, frequencies: np.ndarray, scaling: NamedValues) -> np.ndarray:
        """Frequencies as a scaling makes them: all divided (linear), or the slow ones alone (Llama 3)."""
        name = scaling.text("rope_type", scaling.text("type", "default"))
        if name == "default":
            return frequencies
        if name not in ("linear", "llama3"):
            raise UnknownDecoderKind(
                path=self._folder, kind="rotary scaling", name=name, expected="default, linear, llama3"
            )
        factor = scaling.number("factor")
        if factor <= 0:
            raise NotALanguageModel(path=self._folder, reason=f"its rotary frequencies are divided by {factor}")
        if name == "linear":
            return frequencies / factor
        low, high = scaling.number("low_freq_factor"), scaling.number("high_freq_factor")
        trained = scaling.number("original_max_position_embeddings")
        if not 0 < low < high or trained <= 0:
            raise NotALanguageModel(path=self._folder, reason=f"its rotary frequencies change between {low} and {high}")
        turns = trained * frequencies / (2 * math.pi)
        kept = np.clip((turns - low) / (high - low), 0, 1)
        return np.asarray((1 - kept) * frequencies / factor + kept * frequencies)

    def _layer(self, number: int, rope: RotaryEmbedding, window: int | None) -> LayerDescription:
        prefix, kind = f"model.layers.{number}", self._kind

        def project(name: str) -> np.ndarray:
            return self._matrix(f"{prefix}.{name}_proj.weight")

        def bias(name: str) -> np.ndarray | None:
            full = f"{prefix}.self_attn.{name}_proj.bias"
            return self._vector(full) if kind.biases or full in self._tensors else None

        def norm(name: str, present: bool) -> np.ndarray | None:
            return self._norm(f"{prefix}.{name}") if present else None

        posts = kind.post_norms
        behind = "post_attention_layernorm"  # in front of the feed-forward network, where there is no other norm
        return LayerDescription(
            query=project("self_attn.q"),
            key=project("self_attn.k"),
            value=project("self_attn.v"),
            output=project("self_attn.o"),
            gate=project("mlp.gate"),
            up=project("mlp.up"),
            down=project("mlp.down"),
            attention_norm=self._norm(f"{prefix}.input_layernorm"),
            feed_forward_norm=self._norm(f"{prefix}.{'pre_feedforward_layernorm' if posts else behind}"),
            rope=rope,
            query_bias=bias("q"),
            key_bias=bias("k"),
            value_bias=bias("v"),
            query_norm=norm("self_attn.q_norm", kind.head_norms),
            key_norm=norm("self_attn.k_norm", kind.head_norms),
            attention_post_norm=norm(behind, posts),
            feed_forward_post_norm=norm("post_feedforward_layernorm", posts),
            sliding_window=window,
        )

    def _take(self, name: str, dimensions: int) -> np.ndarray:
        tensor = self._tensors.get(name)
        if tensor is None:
            raise NotALanguageModel(path=self._folder, reason=f"it lacks the tensor '{name}'")
        if tensor.ndim != dimensions or not tensor.size:
            raise NotALanguageModel(path=self._folder, reason=f"tensor '{name}' has the shape {list(tensor.shape)}")
        self._unread.discard(name)
        return tensor

    def _matrix(self, name: str) -> np.ndarray:
        return self._take(name, 2)

    def _vector(self, name: str) -> np.ndarray:
        return self._take(name, 1).astype(np.float32)

    def _norm(self, name: str) -> np.ndarray:
        weight = self._vector(f"{name}.weight")
        return weight + np.float32(1) if self._kind.norms_from_one else weight
