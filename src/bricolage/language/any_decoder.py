"""Whichever file of a language model a user has, ONNX files with a cache among them."""

from __future__ import annotations

from pathlib import Path

from bricolage.frontends.decoders.decoder_description import DecoderDescription
from bricolage.frontends.decoders.decoder_files import read_decoder
from bricolage.frontends.decoders.onnx_decoder_files import find_onnx_decoder


def read_any_decoder(path: str | Path) -> DecoderDescription:
    """The decoder in an ONNX file with a cache or in a folder with one, in a GGUF file, or in a folder of Hugging Face.

    Raises:
        MissingFile, NotALanguageModel, UnknownDecoderKind, ModelBeyondMemory: as `read_decoder`.
        UnreadDecoderGraph, NotAModel, MissingExternalData, InvalidGraph and others: as `read_onnx_decoder`.
    """
    path = Path(path)
    has_tensors = path.is_dir() and any(path.glob("*.safetensors"))
    file = None if has_tensors else find_onnx_decoder(path)
    if file is None:
        return read_decoder(path)
    from bricolage.language.onnx_decoders.onnx_decoder import read_onnx_decoder  # it imports far more than other files need

    return read_onnx_decoder(file)
