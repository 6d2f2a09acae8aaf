"""Whichever file of a language model a user has."""

from __future__ import annotations

from pathlib import Path

from bricolage.errors import MissingFile
from bricolage.frontends.decoders.decoder_description import DecoderDescription, TokenizerDescription
from bricolage.frontends.decoders.gguf_decoder import read_gguf
from bricolage.frontends.decoders.gguf_file import MAGIC, GgufFile
from bricolage.frontends.decoders.gguf_tokenizer import read_gguf_tokenizer
from bricolage.frontends.decoders.hugging_face_decoder import read_hugging_face
from bricolage.frontends.decoders.named_values import NamedValues, read_json
from bricolage.frontends.decoders.onnx_decoder_files import has_onnx_decoder
from bricolage.frontends.decoders.tokenizer_json import read_tokenizer_json


def read_decoder(path: str | Path) -> DecoderDescription:
    """The decoder in a GGUF file or in a folder of Hugging Face.

    Raises:
        MissingFile, NotALanguageModel: there is nothing, or it is damaged or contradicts itself.
        UnknownDecoderKind: an architecture, a tensor type, a tokenizer or a rotary scaling that is not read, by name.
        ModelBeyondMemory: weights in blocks take more memory than is free.
    """
    path = Path(path)
    if not path.exists():
        raise MissingFile(path=path)
    return read_hugging_face(path) if path.is_dir() else read_gguf(path)


def read_tokenizer_description(path: str | Path) -> TokenizerDescription:
    """The tokenizer of such a file, without reading weights.

    Raises:
        MissingFile, NotALanguageModel, UnknownDecoderKind: as `read_decoder`.
    """
    path = Path(path)
    if not path.exists():
        raise MissingFile(path=path)
    if path.is_dir():
        return read_tokenizer_json(path, read_json(path / "config.json"))
    return read_gguf_tokenizer(NamedValues(path, GgufFile(path).metadata))


def is_language_model(path: str | Path) -> bool:
    """Whether a file begins as GGUF does, an ONNX file takes tokens and a cache, or a folder has such a file, or config.json with
    weights in safetensors. It may still be damaged."""
    path = Path(path)
    try:
        if path.is_dir() and (path / "config.json").is_file() and any(path.glob("*.safetensors")):
            return True
        if path.is_dir() or path.suffix == ".onnx":
            return has_onnx_decoder(path)
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False
