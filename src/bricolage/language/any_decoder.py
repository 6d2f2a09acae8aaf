"""Whichever file of a language model a user has, ONNX files with a cache among them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bricolage.base.progress import Progress, Silent
from bricolage.errors import NotALanguageModel
from bricolage.frontends.decoders.decoder_description import DecoderDescription
from bricolage.frontends.decoders.decoder_files import find_decoder_graph, model_within, read_decoder
from bricolage.frontends.decoders.onnx_decoder_files import KEPT_DESCRIPTION

if TYPE_CHECKING:
    from bricolage.driver.decoders.decoder_file import DecoderFile

# Files of other kinds start without what reads graphs: it is imported where it is needed.


def read_any_decoder(path: str | Path, progress: Progress | None = None) -> DecoderDescription:
    """The decoder in an ONNX file with a cache or in a folder with one, in a GGUF file, in a folder of Hugging Face, or in an
    artifact of one of these. One that is kept in the cache has no tokenizer. `progress` is told of an ONNX file that is read for
    the first time.

    Raises:
        MissingFile, NotALanguageModel, UnknownDecoderKind, ModelBeyondMemory: as `read_decoder`.
        UnreadDecoderGraph, NotAModel, MissingExternalData, InvalidGraph and others: as `read_onnx_decoder`.
    """
    path = Path(path)
    if path.name == KEPT_DESCRIPTION:
        return _open_kept(path)
    file = find_decoder_graph(model_within(path))
    if file is None:
        return read_decoder(path)
    from bricolage.language.onnx_decoders.onnx_decoder import read_onnx_decoder

    return read_onnx_decoder(file, progress or Silent())


def open_untouched_file(path: Path) -> DecoderFile | None:
    """The ONNX file with a cache that a path is, has, or holds as an artifact, to be raced as it comes; None where there is none.

    Raises:
        NotALanguageModel: a folder has several.
        UnreadDecoderGraph and others: as `open_original`.
    """
    file = find_decoder_graph(model_within(path))
    if file is None:
        return None
    from bricolage.language.onnx_decoders.original_answers import open_original

    return open_original(file)


def _open_kept(path: Path) -> DecoderDescription:
    from bricolage.language.onnx_decoders.kept_decoders import NO_TOKENIZER, open_kept_decoder

    decoder = open_kept_decoder(path.parent, NO_TOKENIZER)
    if decoder is None:
        raise NotALanguageModel(path=path, reason="it is no reading of a graph, or its files are not what they were")
    return decoder
