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
