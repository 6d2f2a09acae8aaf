"""Writes the container GGUF: keys with values, and tensors. What `gguf_file` reads.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, version 3 in little-endian order.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bricolage.base.scratch import write_whole
from bricolage.errors import NotWritable
from bricolage.frontends.decoders.gguf_file import FORMATS, MAGIC, BlockFormat

KeyValue = bool | int | float | str | tuple[str, ...] | np.ndarray
"""What a key can have here: integers are written as uint32, floats as float32, arrays as int32, float32 or bool."""
_VERSION, _ALIGNMENT = 3, 32
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_ARRAY_TYPES = {"int32": _INT32, "float32": _FLOAT32, "bool": _BOOL}
FORMAT_NUMBERS: Mapping[str, int] = {form.name: number for number, form in FORMATS.items()}


@dataclass(frozen=True)
class TensorToWrite:
    """A tensor of a file in the making."""

    name: str
    shape: tuple[int, ...]
    """The last dimension is the one whose numbers are neighbours."""
    format: BlockFormat
    read: Callable[[], bytes]
    """Its bytes, asked for when they are written."""

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) // self.format.count * self.format.size


def encode_value(value: KeyValue) -> bytes:
    """Type and value of a key."""
    match value:
        case bool():
            return struct.pack("<I?", _BOOL, value)
        case int():
            return struct.pack("<II", _UINT32, value)
        case float():
            return struct.pack("<If", _FLOAT32, value)
        case str():
            return struct.pack("<I", _STRING) + _encode_text(value)
        case tuple():
            return struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + b"".join(map(_encode_text, value))
    return struct.pack("<IIQ", _ARRAY, _ARRAY_TYPES[value.dtype.name], value.size) + value.tobytes()


def write_gguf_file(path: Path, values: Mapping[str, bytes], tensors: Sequence[TensorToWrite]) -> None:
    """Writes a file: there whole or not at all.

    Args:
        path: where; a file that is there is replaced.
        values: by key, each with its type as `encode_value` makes it.
        tensors: in their order.

    Raises:
        NotWritable: the disk is full or the folder is not writable.
    """
    head = [MAGIC, struct.pack("<IQQ", _VERSION, len(tensors), len(values))]
    head += [_encode_text(key) + value for key, value in values.items()]
    offset = 0
    for tensor in tensors:
        shape = tensor.shape[::-1]
        head.append(_encode_text(tensor.name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape))
        head.append(struct.pack("<IQ", FORMAT_NUMBERS[tensor.format.name], offset))
        offset += _aligned(tensor.size)
    try:
        with write_whole(path) as partial, partial.open("wb") as file:
            begin = b"".join(head)
            file.write(begin + bytes(_aligned(len(begin)) - len(begin)))
            for tensor in tensors:
                content = tensor.read()
                assert len(content) == tensor.size, tensor.name
                file.write(content + bytes(_aligned(len(content)) - len(content)))
    except OSError as error:
        raise NotWritable(path=path, reason=error.strerror or error) from error


def _encode_text(text: str) -> bytes:
    raw = text.encode("utf-8")
    return struct.pack("<Q", len(raw)) + raw


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
