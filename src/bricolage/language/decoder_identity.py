"""What a decoder is called in the cache: a digest of all that its programs compute with."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path

import numpy as np

from bricolage import _version
from bricolage.base import scratch
from bricolage.base.cache import cache_directory
from bricolage.frontends import decoders
from bricolage.frontends.decoders.decoder_description import DecoderDescription, SourceFile
from bricolage.graph import quantised_blocks

_DIGEST = re.compile(r"[0-9a-f]{64}")
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
        note = kept_of_models("digests", repr(source))
        with contextlib.suppress(OSError):
            text = note.read_text(encoding="ascii", errors="replace")
            if _DIGEST.fullmatch(text):
                return text
        with source.path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if SourceFile.of(source.path) != source:
            return None
    except OSError:
        return None
    write_kept(note, digest.encode())
    return digest


def kept_of_models(kind: str, name: str) -> Path:
    """Where something small about a model is kept, among what the cache's limit of size is for."""
    return cache_directory() / "compiled" / "models" / kind / hashlib.sha256(name.encode()).hexdigest()[:32]


def write_kept(path: Path, content: bytes) -> None:
    """Writes it whole, or not at all: it can be made again."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with scratch.write_whole(path) as partial:
            partial.write_bytes(content)


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
