"""What a decoder is called in the cache: a digest of all that its programs compute with."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path

import numpy as np

from bricolage import _version
from bricolage.frontends import decoders
from bricolage.frontends.decoders.decoder_description import DecoderDescription, SourceFile
from bricolage.graph import quantised_blocks
from bricolage.language.model_notes import read_note, write_note

_LEFT_OUT = frozenset({"tokenizer", "sources"})
"""Of a description: what programs do not compute with."""


def identify_decoder(decoder: DecoderDescription) -> str:
    """SHA-256, in hexadecimal digits, of a decoder's weights and sizes, and of the code that reads them.

    Files are read through once. As long as they are as they were left, a note in the cache says their digest.
    """
    digest = hashlib.sha256(_digest_readers().encode())
    digests = [digest_source(source) for source in decoder.sources]
    if digests and all(digests):
        digest.update("".join(map(str, digests)).encode())
    else:  # made in memory, or its files are not any more what they were when it was read
        for part in _list_parts(decoder):
            digest.update(part)
    return digest.hexdigest()


def digest_source(source: SourceFile) -> str | None:
    """SHA-256 of a file's contents; None where it is not any more as it was when it was looked at."""
    try:
        if SourceFile.of(source.path) != source:
            return None
        noted = read_note("digests", repr(source))
        if noted is not None:
            return noted.decode()
        with source.path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if SourceFile.of(source.path) != source:
            return None
    except OSError:
        return None
    write_note("digests", repr(source), digest.encode())
    return digest


@cache
def _digest_readers() -> str:
    """Of the code that makes descriptions and graphs of files."""
    digest = hashlib.sha256(_version.__version__.encode())
    for path in [*sorted(Path(str(decoders.__file__)).parent.glob("*.py")), Path(quantised_blocks.__file__)]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _list_parts(value: object) -> Iterator[bytes | memoryview]:
    """The bytes of a value: of dataclasses, tuples, arrays and plain values."""
    if isinstance(value, np.ndarray):
        yield f"{value.dtype.name}{value.shape}".encode()
        yield np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
    elif is_dataclass(value):
        yield type(value).__name__.encode()
        for field in fields(value):
            if field.name not in _LEFT_OUT:
                yield field.name.encode()
                yield from _list_parts(getattr(value, field.name))
    elif isinstance(value, tuple):
        yield f"({len(value)}".encode()
        for part in value:
            yield from _list_parts(part)
    else:
        yield repr(value).encode()
