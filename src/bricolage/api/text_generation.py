"""Text from a language model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bricolage.base.generation_options import GenerationOptions, LanguageSettings
from bricolage.base.progress import Progress
from bricolage.errors import MissingFile, MissingLibrary, NotALanguageModel, UnusableText
from bricolage.frontends.decoders.decoder_files import is_language_model

if TYPE_CHECKING:
    from bricolage.language.language_model import LanguageModel
    from bricolage.verify.text_accuracy import TextAccuracy

__all__ = [
    "GenerationOptions",
    "LanguageSettings",
    "are_language_models",
    "compose_chat",
    "measure_accuracy",
    "open_text_model",
    "read_messages",
]


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
        raise _missing_library(error) from error
    _check_kind(path)
    return open_language_model(path, settings, progress)


def measure_accuracy(
    path: Path, settings: LanguageSettings, text: Path, progress: Progress | None = None
) -> TextAccuracy:
    """See `bricolage.language.held_out_text.measure_text_accuracy`.

    Raises:
        MissingLibrary: a library of the extra `language` is not installed.
        NotALanguageModel: the file is something else.
        UnusableText: the text is empty, too short, or none.
    """
    try:
        from bricolage.language.held_out_text import measure_text_accuracy
    except ImportError as error:
        raise _missing_library(error) from error
    _check_kind(path)
    return measure_text_accuracy(path, settings, text, progress)


def _missing_library(error: ImportError) -> MissingLibrary:
    return MissingLibrary(name=error.name, purpose="to generate text", reason=error, extra="language")


def _check_kind(path: Path) -> None:
    if path.exists() and not is_language_model(path):
        raise NotALanguageModel(
            path=path,
            reason="it is neither GGUF, nor ONNX with a cache, nor a folder with such a file or with safetensors",
        )


def compose_chat(text: str | None, system: str = "") -> list[dict[str, object]]:
    """Messages of a chat that begins: an instruction and what the user says, where there are such."""
    messages: list[dict[str, object]] = [{"role": "system", "content": system}] if system else []
    return messages if text is None else [*messages, {"role": "user", "content": text}]


def read_messages(path: Path) -> list[dict[str, object]]:
    """Messages of a chat in a file of JSON, as OpenAI's API has them: `[{"role": "user", "content": "Hello"}]`.

    Raises:
        MissingFile: there is none.
        UnusableText: it is no JSON, or no list of objects.
    """
    try:
        messages = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MissingFile(path=path) from None
    except (OSError, ValueError, RecursionError) as error:
        raise UnusableText(path=path, reason=f"it is no JSON: {error}") from error
    if not isinstance(messages, list) or not messages or not all(isinstance(message, dict) for message in messages):
        raise UnusableText(path=path, reason='it is no list of messages: [{"role": "user", "content": "Hello"}]')
    return messages


def are_language_models(paths: Sequence[Path]) -> bool:
    """Whether all of these files are language models, and there is one."""
    return bool(paths) and all(map(is_language_model, paths))
