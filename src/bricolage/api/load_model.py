"""`bricolage.load`: an artifact as an executable, or a language model as what writes text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, overload

from bricolage.base.options import Precision
from bricolage.runtime.executable import Executable
from bricolage.runtime.load import load as load_executable

if TYPE_CHECKING:
    from bricolage.base.generation_options import LanguageSettings
    from bricolage.language.language_model import LanguageModel

_GGUF, _ONNX = ".gguf", ".onnx"


@overload
def load(
    path: str | Path, *, any_machine: bool = False, target: str = "", precision: Precision | None = None
) -> Executable: ...
@overload
def load(path: str | Path, *, language: LanguageSettings) -> LanguageModel: ...
def load(
    path: str | Path,
    *,
    any_machine: bool = False,
    target: str = "",
    precision: Precision | None = None,
    language: LanguageSettings | None = None,
) -> Executable | LanguageModel:
    """Opens an artifact or a pack, and gives what runs it: see `bricolage.runtime.load.load`.

    A GGUF file, an ONNX file with a cache, or a folder with a language model becomes a `LanguageModel`, whose `generate` gives a
    text as a stream. Which of both a path is shows when it is opened; with `language`, which says how, checkers of types know it
    too.

    Raises:
        MissingFile, BadArtifact, ForeignArtifact, NoBackend and others: as `bricolage.runtime.load.load`.
        NotALanguageModel, UnknownDecoderKind, OtherVocabulary and others: as `open_language_model`.
    """
    path = Path(path)
    if language is None and not _is_text_model(path):
        return load_executable(path, any_machine=any_machine, target=target, precision=precision)
    from bricolage.api.text_generation import open_text_model

    return open_text_model(path, language)


def _is_text_model(path: Path) -> bool:
    """Whether a path is opened as a language model. Only an ONNX file is looked into."""
    if path.suffix != _ONNX:
        return path.suffix == _GGUF or path.is_dir()
    from bricolage.frontends.decoders.decoder_files import is_language_model

    return is_language_model(path)
