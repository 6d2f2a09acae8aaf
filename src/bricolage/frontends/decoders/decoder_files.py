"""Whichever file of a language model a user has."""

from __future__ import annotations

import contextlib
from pathlib import Path

from bricolage.errors import MissingFile
from bricolage.frontends.decoders.decoder_description import DecoderDescription, SourceFile, TokenizerDescription
from bricolage.frontends.decoders.gguf_decoder import read_gguf
from bricolage.frontends.decoders.gguf_file import MAGIC, GgufFile
from bricolage.frontends.decoders.gguf_tokenizer import read_gguf_tokenizer
from bricolage.frontends.decoders.named_values import NamedValues, read_json
from bricolage.frontends.decoders.onnx_decoder_files import find_onnx_decoder, has_onnx_decoder

DECODER_PLAN = "decoder-plan.json"
"""In a folder that is an artifact of a language model, what was decided; the model lies there too."""


def model_within(path: Path) -> Path:
    """The model in an artifact; a path that is none is a model itself."""
    if not (path / DECODER_PLAN).is_file():
        return path
    file = path / "model.gguf"
    return file if file.exists() else path / "model"


def read_decoder(path: str | Path) -> DecoderDescription:
    """The decoder in a GGUF file, in a folder of Hugging Face, or in an artifact of either.

    Raises:
        MissingFile, NotALanguageModel: there is nothing, or it is damaged or contradicts itself.
        UnknownDecoderKind: an architecture, a tensor type, a tokenizer or a rotary scaling that is not read, by name.
        ModelBeyondMemory: weights in blocks take more memory than is free.
    """
    path = model_within(Path(path))
    if not path.exists():
        raise MissingFile(path=path)
    sources: tuple[SourceFile, ...] = ()
    with contextlib.suppress(OSError):  # a link to nothing, say: what reads it has a word for that
        sources = tuple(map(SourceFile.of, _list_sources(path)))
    if path.is_dir():
        from bricolage.frontends.decoders.hugging_face_decoder import read_hugging_face  # most models are files

        decoder = read_hugging_face(path)
    else:
        decoder = read_gguf(path)
    object.__setattr__(decoder, "sources", sources)  # no argument, so that `replace` does not copy it
    return decoder


def _list_sources(path: Path) -> list[Path]:
    """Files that say what a decoder computes."""
    if not path.is_dir():
        return [path]
    names = (path / "config.json", path / "model.safetensors.index.json")
    return [*(name for name in names if name.is_file()), *sorted(path.glob("*.safetensors"))]


def read_tokenizer_description(path: str | Path) -> TokenizerDescription:
    """The tokenizer of such a file, without reading weights.

    Raises:
        MissingFile, NotALanguageModel, UnknownDecoderKind: as `read_decoder`.
    """
    path = model_within(Path(path))
    if not path.exists():
        raise MissingFile(path=path)
    if path.is_dir():
        from bricolage.frontends.decoders.tokenizer_json import read_tokenizer_json

        return read_tokenizer_json(path, read_json(path / "config.json"))
    return read_gguf_tokenizer(NamedValues(path, GgufFile(path).metadata))


def find_decoder_graph(path: Path) -> Path | None:
    """The ONNX file with a cache that a path is or has. Safetensors in a folder come first.

    Raises:
        NotALanguageModel: a folder has several, and none of them has the usual name.
    """
    if path.is_dir() and any(path.glob("*.safetensors")):
        return None
    return find_onnx_decoder(path)


def is_language_model(path: str | Path) -> bool:
    """Whether a path is a stored decoder, an ONNX file that takes tokens and a cache, or a folder with one. It may still be
    damaged."""
    path = Path(path)
    if is_stored_decoder(path):
        return True
    try:
        return (path.is_dir() or path.suffix == ".onnx") and has_onnx_decoder(path)
    except OSError:
        return False


def is_stored_decoder(path: str | Path) -> bool:
    """Whether a path has weights without a graph: a file begins as GGUF does, a folder has config.json with safetensors, or is an
    artifact of one. It may still be damaged."""
    path = Path(path)
    try:
        if (path / DECODER_PLAN).is_file():
            return True
        if path.is_dir():
            return (path / "config.json").is_file() and any(path.glob("*.safetensors"))
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False
