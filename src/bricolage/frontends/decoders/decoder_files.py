"""Whichever file of a language model a user has."""

from __future__ import annotations

from pathlib import Path

from bricolage.errors import MissingFile
from bricolage.frontends.decoders.decoder_description import DecoderDescription
from bricolage.frontends.decoders.gguf_decoder import read_gguf


def read_decoder(path: str | Path) -> DecoderDescription:
    """The decoder in a GGUF file.

    Raises:
        MissingFile, NotALanguageModel: there is nothing, or it is damaged or contradicts itself.
        UnknownDecoderKind: an architecture, a tensor type, a tokenizer or a rotary scaling that is not read, by name.
    """
    path = Path(path)
    if not path.exists():
        raise MissingFile(path=path)
    return read_gguf(path)
