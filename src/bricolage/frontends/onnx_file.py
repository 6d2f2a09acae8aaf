"""ONNX files."""

from __future__ import annotations

import warnings
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf import json_format, message, text_format

from bricolage.errors import MissingFile, NotAModel
from bricolage.frontends import external
from bricolage.frontends.checks import first_line
from bricolage.frontends.clean import clean
from bricolage.frontends.in_memory import deserialise

_SIGNATURES = {
    b"\x89PNG": "it is a PNG image",
    b"GGUF": "it is a language model in GGUF; run it with `bricolage generate`",
    b"PK\x03\x04": "it is a zip archive (a PyTorch checkpoint or a bricolage artifact, perhaps)",
    b"\xff\xd8\xff": "it is a JPEG image",
    b"GIF8": "it is a GIF image",
    b"%PDF": "it is a PDF document",
    b"\x1f\x8b": "it is gzip-compressed; unpack it first",
    b"\x89HDF": "it is an HDF5 file (a Keras model, perhaps)",
    b"version https://git-lfs": "it is a Git LFS pointer; run `git lfs pull`",
    b"<!DOCTYPE": "it is an HTML page; the download was answered by a web page",
    b"<html": "it is an HTML page; the download was answered by a web page",
}
_UNREADABLE = (
    *(message.Error, text_format.Error, json_format.Error, onnx.parser.ParseError),
    *(OSError, ValueError, LookupError, RuntimeError, MemoryError),
)
"""What the parsers of protobuf, of its two texts and of ONNX's raise, without a common base: errors of their own, and those that
text, numbers out of range and nesting lead to in Python and in C++."""


def load_onnx(path: str | Path) -> ir.Model:
    """Reads an ONNX file (binary; text and JSON by their suffix) as a checked model. External data is memory-mapped.

    Raises:
        MissingFile, NotAModel: there is no such file, or it is not an ONNX model.
        MissingExternalData, ExternalDataOutside: its weights are not where they should be.
        UnsupportedOpset, UnknownOperator, TrainingOperator, UnsupportedType, InvalidGraph: see `clean`.
    """
    path = Path(path)
    if not path.exists():
        raise MissingFile(path=path)
    model = deserialise(read_proto(path), str(path))
    external.adopt(model, (path.parent, path.resolve().parent))
    return clean(model)


def read_proto(path: Path) -> onnx.ModelProto:
    """What an ONNX file says, but for weights in other files.

    Raises:
        NotAModel: it is none, or damaged.
    """
    if path.is_dir():
        raise NotAModel(path=path, reason="it is a folder")
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except OSError as error:
        raise NotAModel(path=path, reason=error.strerror or error) from error
    if not head:
        raise NotAModel(path=path, reason="it is empty")
    for signature, meaning in _SIGNATURES.items():
        if head.startswith(signature):
            raise NotAModel(path=path, reason=meaning)
    if path.stat().st_size >= onnx.checker.MAXIMUM_PROTOBUF:
        raise NotAModel(path=path, reason="a single file of 2 GB or more cannot be read; save it with external data")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The onnxtxt format is experimental")
            return onnx.load(str(path), load_external_data=False)
    except _UNREADABLE as error:
        raise NotAModel(path=path, reason=_why_unreadable(head, error)) from error


def _why_unreadable(head: bytes, error: Exception) -> str:
    if all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in head):
        return "it is a text file"
    if "MaxDepth" in str(error):
        return (
            "its graphs are nested too deeply: control flow in control flow, beyond the 100 levels that protobuf reads"
        )
    return f"the protobuf is damaged or cut short ({first_line(error)})"
