"""Which ONNX file of a folder is a decoder with a cache, by the names of its inputs, without reading its weights.

Protobuf's wire format: https://protobuf.dev/programming-guides/encoding/. A field is a tag of number and type, then a length or a
value; fields that are not looked for are stepped over.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

from bricolage.errors import NotALanguageModel
from bricolage.frontends.decoders.named_values import NamedValues, read_json

KEPT_DESCRIPTION = "decoder.json"
"""Name of the file by which a reading of a graph is opened that is kept in the cache."""
_GRAPH, _INPUT, _NAME = 7, 11, 1
"""Numbers of the fields in ModelProto, GraphProto and ValueInfoProto."""
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_MOST_BITS = 70
_TOKENS, _CACHE = "input_ids", ("past", "key")
_USUAL = ("model.onnx", "onnx/model.onnx", "decoder_model_merged.onnx", "decoder_with_past_model.onnx")


class _Damaged(Exception):
    """Bytes that are no protobuf."""


def is_onnx_decoder(path: Path) -> bool:
    """Whether an ONNX file takes tokens and a cache of keys. It may still be damaged, or of a kind that is not read."""
    try:
        names = list_input_names(path)
    except (OSError, _Damaged):
        return False
    return _TOKENS in names and any(all(word in name for word in _CACHE) for name in names)


def list_input_names(path: Path) -> list[str]:
    """Names of a model's inputs.

    Raises:
        OSError: it cannot be read.
        _Damaged: it is no ONNX model.
    """
    if not path.stat().st_size:
        raise _Damaged
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        names = []
        for number, start, stop in _fields(data, 0, len(data)):
            if number == _GRAPH:
                for inner, begin, end in _fields(data, start, stop):
                    if inner == _INPUT:
                        names += [
                            data[a:b].decode(errors="replace") for n, a, b in _fields(data, begin, end) if n == _NAME
                        ]
        return names


def _fields(data: mmap.mmap, at: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Number, begin and end of each field of bytes."""
    while at < stop:
        tag, at = _varint(data, at, stop)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            _, at = _varint(data, at, stop)
            continue
        size = {_FIXED_64: 8, _FIXED_32: 4}.get(kind)
        if kind == _BYTES:
            size, at = _varint(data, at, stop)
        if size is None or not number or size > stop - at:
            raise _Damaged
        if kind == _BYTES:
            yield number, at, at + size
        at += size


def _varint(data: mmap.mmap, at: int, stop: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, _MOST_BITS, 7):
        if at >= stop:
            raise _Damaged
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise _Damaged


def has_onnx_decoder(path: Path) -> bool:
    """Whether a file is such a decoder, or a folder has one."""
    return bool(_list_decoders(path))


def find_onnx_decoder(path: Path) -> Path | None:
    """The file itself, or the one of a folder; None where there is none.

    Raises:
        NotALanguageModel: a folder has several, and none of them has the usual name.
    """
    files = _list_decoders(path)
    if not path.is_dir() or len(files) < 2:
        return files[0] if files else None
    stated = read_json(path / "genai_config.json").within("model").within("decoder").values.get("filename")
    usual = [path / name for name in (stated, *_USUAL) if isinstance(name, str)]
    chosen = next((file for file in usual if file in files), None)
    if chosen is None:
        names = ", ".join(str(file.relative_to(path)) for file in files)
        raise NotALanguageModel(path=path, reason=f"it has {names}: give the path of one of them")
    return chosen


def _list_decoders(path: Path) -> list[Path]:
    files = sorted((*path.glob("*.onnx"), *path.glob("onnx/*.onnx"))) if path.is_dir() else [path]
    return [file for file in files if file.suffix == ".onnx" and file.is_file() and is_onnx_decoder(file)]


def find_settings(file: Path) -> tuple[Path, NamedValues]:
    """The folder with tokenizer.json that belongs to an ONNX file, its own or the one above, and what config.json says there. Of
    ONNX Runtime GenAI's files it is what genai_config.json says, in config.json's words.

    Raises:
        NotALanguageModel: a file is damaged.
    """
    folder = file.parent
    if not (folder / "tokenizer.json").is_file() and (folder.parent / "tokenizer.json").is_file():
        folder = folder.parent
    config = read_json(folder / "config.json")
    if config.values:
        return folder, config
    stated = read_json(folder / "genai_config.json").within("model")
    words = {"context_length": "max_position_embeddings"}
    return folder, NamedValues(stated.path, {words.get(key, key): value for key, value in stated.values.items()})
