"""Text from a language model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bricolage.base.generation_options import GenerationOptions, LanguageSettings
from bricolage.base.progress import Progress
from bricolage.errors import MissingLibrary, NotALanguageModel
from bricolage.frontends.decoders.decoder_files import is_language_model

if TYPE_CHECKING:
    from bricolage.language.language_model import LanguageModel

__all__ = ["GenerationOptions", "LanguageSettings", "are_language_models", "compose_chat", "open_text_model"]


def open_text_model(
    path: Path, settings: LanguageSettings | None = None, progress: Progress | None = None
) -> LanguageModel:
    """See `bricolage.language.open_language.open_language_model`.

    Raises:
        MissingLibrary: a library of the extra `language` is not installed.
        NotALanguageModel: the file is something else.
    """
    try:
        from bricolage.language.open_language import open_language_model
    except ImportError as error:
        purpose = "to generate text"
        raise MissingLibrary(name=error.name, purpose=purpose, reason=error, extra="language") from error
    if path.exists() and not is_language_model(path):
        raise NotALanguageModel(
            path=path,
            reason="it is neither GGUF, nor ONNX with a cache, nor a folder with such a file or with safetensors",
        )
    return open_language_model(path, settings, progress)


def compose_chat(text: str, system: str = "") -> list[dict[str, str]]:
    """Messages of a chat that begins: an instruction, where there is one, and what the user says."""
    messages = [{"role": "system", "content": system}] if system else []
    return [*messages, {"role": "user", "content": text}]


def are_language_models(paths: Sequence[Path]) -> bool:
    """Whether all of these files are language models, and there is one."""
    return bool(paths) and all(map(is_language_model, paths))
