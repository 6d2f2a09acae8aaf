"""Whichever file of a language model a user has, ONNX files with a cache among them."""

from __future__ import annotations

from pathlib import Path

from bricolage.base.progress import Progress, Silent
from bricolage.errors import NotALanguageModel
from bricolage.frontends.decoders.decoder_description import DecoderDescription
from bricolage.frontends.decoders.decoder_files import read_decoder
from bricolage.frontends.decoders.onnx_decoder_files import KEPT_DESCRIPTION, find_onnx_decoder

# Files of other kinds start without what reads graphs: it is imported where it is needed.


def read_any_decoder(path: str | Path, progress: Progress | None = None) -> DecoderDescription:
    """The decoder in an ONNX file with a cache or in a folder with one, in a GGUF file, or in a folder of Hugging Face. One that is
    kept in the cache has no tokenizer. `progress` is told of an ONNX file that is read for the first time.

    Raises:
        MissingFile, NotALanguageModel, UnknownDecoderKind, ModelBeyondMemory: as `read_decoder`.
        UnreadDecoderGraph, NotAModel, MissingExternalData, InvalidGraph and others: as `read_onnx_decoder`.
    """
    path = Path(path)
    if path.name == KEPT_DESCRIPTION:
        return _open_kept(path)
    has_tensors = path.is_dir() and any(path.glob("*.safetensors"))
    file = None if has_tensors else find_onnx_decoder(path)
    if file is None:
        return read_decoder(path)
    from bricolage.language.onnx_decoders.onnx_decoder import read_onnx_decoder

    return read_onnx_decoder(file, progress or Silent())


def _open_kept(path: Path) -> DecoderDescription:
    from bricolage.language.onnx_decoders.kept_decoders import NO_TOKENIZER, open_kept_decoder

    decoder = open_kept_decoder(path.parent, NO_TOKENIZER)
    if decoder is None:
        raise NotALanguageModel(path=path, reason="it is no reading of a graph, or its files are not what they were")
    return decoder
