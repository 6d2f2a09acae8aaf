"""Of files of language models."""

from __future__ import annotations

from bricolage.errors.base import UsageError


class NotALanguageModel(UsageError):
    what = "'{path}' is not a language model that can be read: {reason}"
    hint = (
        "Give a GGUF file or a folder with config.json, safetensors and tokenizer.json, and check that it is complete"
    )


class UnknownDecoderKind(UsageError):
    what = "'{path}' has the {kind} '{name}', which bricolage does not read"
    hint = "It reads: {expected}"


class ModelBeyondMemory(UsageError):
    what = "the model's weights take {wanted}; {present} of memory are free"
    hint = "Take a smaller model, or the same one with weights of fewer bits"


class UnreadDecoderGraph(UsageError):
    what = "'{path}' is a language model with a cache, and a part of its graph is not understood: {reason}"
    hint = (
        "It reads decoders of the llama family: RMS norms, rotary embeddings of whole heads, attention to a cache, gated"
        " feed-forward networks. Run other ones by the runtime that they were exported for"
    )
