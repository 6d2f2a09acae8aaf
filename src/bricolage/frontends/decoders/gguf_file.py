"""The container GGUF: keys with values, and tensors in a mapped file. Every length is checked against the file before it is used.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3 in little-endian order.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from bricolage.errors import MissingFile, NotALanguageModel, UnknownDecoderKind

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY, _BOOL = 8, 9, 7
_NUMBERS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "<u1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
"""numpy's type for each type of value that is a number."""
_MOST_DIMENSIONS = 4
_MOST_NESTING = 4
"""Arrays in arrays."""
_LARGEST_ALIGNMENT = 1 << 16
_LONGEST_NAME = 1 << 16
"""Bytes of a key's or a tensor's name, as the format limits it."""

GgufValue = int | float | bool | str | np.ndarray | tuple["GgufValue", ...]


@dataclass(frozen=True)
class BlockFormat:
    """How numbers of a tensor lie in a file."""

    name: str
    count: int
    """Numbers of a block."""
    size: int
    """Bytes of a block."""


_F32, _F16, _BF16 = BlockFormat("F32", 1, 4), BlockFormat("F16", 1, 2), BlockFormat("BF16", 1, 2)
FORMATS: Mapping[int, BlockFormat] = {
    0: _F32,
    1: _F16,
    2: BlockFormat("Q4_0", 32, 18),
    3: BlockFormat("Q4_1", 32, 20),
    6: BlockFormat("Q5_0", 32, 22),
    7: BlockFormat("Q5_1", 32, 24),
    8: BlockFormat("Q8_0", 32, 34),
    12: BlockFormat("Q4_K", 256, 144),
    13: BlockFormat("Q5_K", 256, 176),
    14: BlockFormat("Q6_K", 256, 210),
    30: _BF16,
}
"""By number, those that are read."""
_OTHER_FORMATS = {
    9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL",
    21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0",
    35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip
"""Names of those that are not."""


@dataclass(frozen=True)
class GgufTensor:
    """Where a tensor lies."""

    name: str
    shape: tuple[int, ...]
    """The last dimension is the one whose numbers are neighbours."""
    format: BlockFormat
    start: int
    """Byte of the file."""
    size: int
    """Bytes."""


class GgufFile:
    """An open file. Its arrays are views of the mapped file."""

    def __init__(self, path: Path) -> None:
        """Reads keys and where tensors lie.

        Raises:
            MissingFile: there is no such file.
            NotALanguageModel: it is no GGUF file, cut off, or lies about its lengths.
            UnknownDecoderKind: a tensor is in a format that is not read.
        """
        self.path = path
        try:
            with path.open("rb") as file:
                size = path.stat().st_size
                if not size:
                    raise NotALanguageModel(path=path, reason="it is empty")
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise MissingFile(path=path) from None
        except (OSError, ValueError) as error:
            raise NotALanguageModel(path=path, reason=getattr(error, "strerror", None) or error) from error
        reader = _Reader(self._data, path)
        tensor_count, key_count = reader.header()
        self.metadata: Mapping[str, GgufValue] = reader.metadata(key_count)
        self._value_places = reader.value_places
        self.tensors: Mapping[str, GgufTensor] = reader.tensors(tensor_count, self.metadata)

    def read_value_bytes(self, key: str) -> bytes:
        """The value of a key with its type, as it is in the file."""
        start, stop = self._value_places[key]
        return self._data[start:stop]

    def read_bytes(self, tensor: GgufTensor) -> np.ndarray:
        """uint8 [rows, bytes of a row]: a matrix's rows, or a vector as one row."""
        rows = tensor.shape[0] if len(tensor.shape) > 1 else 1
        flat = np.frombuffer(self._data, np.uint8, tensor.size, tensor.start)
        return flat.reshape(rows, -1)


class _Reader:
    """Goes through the bytes in front of the tensors' data."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self._data, self._path, self._at = data, path, 0
        self.value_places: dict[str, tuple[int, int]] = {}
        """Bytes from which and up to which each key's type and value are."""

    def _wrong(self, reason: str) -> NotALanguageModel:
        return NotALanguageModel(path=self._path, reason=f"{reason} (byte {self._at})")

    def _need(self, size: int, what: str) -> int:
        """Where `size` bytes begin that are then behind the reader."""
        start = self._at
        if size > len(self._data) - start:
            raise self._wrong(f"{what} of {size} bytes goes beyond its end")
        self._at = start + size
        return start

    def _number(self, kind: str) -> int:
        size = struct.calcsize(kind)
        return int(struct.unpack_from(kind, self._data, self._need(size, "a number"))[0])

    def _string(self, longest: int | None = None) -> str:
        length = self._number("<Q")
        if longest is not None and length > longest:
            raise self._wrong(f"a name of {length} bytes")
        start = self._need(length, "a text")
        try:
            return self._data[start : start + length].decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._wrong(f"a text is not UTF-8: {error.reason}") from error

    def header(self) -> tuple[int, int]:
        """Numbers of tensors and of keys."""
        if self._data[:4] != MAGIC:
            raise self._wrong("it does not begin with GGUF")
        self._need(4, "the first word")
        version = self._number("<I")
        if version not in _VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            order = ", in big-endian order" if swapped in _VERSIONS else ""
            raise self._wrong(f"its version is {swapped if order else version}{order}; 2 and 3 are read")
        return self._number("<Q"), self._number("<Q")

    def metadata(self, count: int) -> dict[str, GgufValue]:
        """Values by key."""
        values: dict[str, GgufValue] = {}
        for _ in range(count):
            key = self._string(_LONGEST_NAME)
            if key in values:
                raise self._wrong(f"the key '{key}' stands twice")
            start = self._at
            values[key] = self._value(self._number("<I"), 0)
            self.value_places[key] = start, self._at
        return values

    def _value(self, kind: int, depth: int) -> GgufValue:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(depth)
        if kind not in _NUMBERS:
            raise self._wrong(f"a value has the unknown type {kind}")
        dtype = np.dtype(_NUMBERS[kind])
        start = self._need(dtype.itemsize, "a number")
        number = np.frombuffer(self._data, dtype, 1, start)[0].item()
        return bool(number) if kind == _BOOL else number

    def _array(self, depth: int) -> GgufValue:
        kind, count = self._number("<I"), self._number("<Q")
        if kind in _NUMBERS:
            dtype = np.dtype(_NUMBERS[kind])
            start = self._need(count * dtype.itemsize, "an array")
            return np.frombuffer(self._data, dtype, count, start).view(np.bool_ if kind == _BOOL else dtype)
        smallest = {_STRING: 8, _ARRAY: 12}.get(kind)
        if smallest is None:
            raise self._wrong(f"an array has elements of the unknown type {kind}")
        if count > (len(self._data) - self._at) // smallest:
            raise self._wrong(f"an array of {count} elements goes beyond its end")
        if kind == _STRING:
            return self._strings(count)
        if depth >= _MOST_NESTING:
            raise self._wrong("arrays are nested too deeply")
        return tuple(self._array(depth + 1) for _ in range(count))

    def _strings(self, count: int) -> tuple[str, ...]:
        """Vocabularies have hundreds of thousands of them: a loop without calls of ours."""
        data, at, end = self._data, self._at, len(self._data)
        read_length = struct.Struct("<Q").unpack_from
        texts: list[str] = []
        try:
            for _ in range(count):
                start = at + 8
                at = start + read_length(data, at)[0]
                if at > end:
                    raise self._wrong("a text of an array goes beyond its end")
                texts.append(data[start:at].decode("utf-8"))
        except struct.error:
            raise self._wrong("an array of texts goes beyond its end") from None
        except UnicodeDecodeError as error:
            raise self._wrong(f"text {len(texts)} of an array is not UTF-8: {error.reason}") from error
        self._at = at
        return tuple(texts)

    def tensors(self, count: int, metadata: Mapping[str, GgufValue]) -> dict[str, GgufTensor]:
        """By name; the reader ends in front of the data."""
        infos: list[tuple[str, tuple[int, ...], BlockFormat, int]] = []
        for _ in range(count):
            name = self._string(_LONGEST_NAME)
            dimensions = self._number("<I")
            if not 1 <= dimensions <= _MOST_DIMENSIONS:
                raise self._wrong(f"tensor '{name}' has {dimensions} dimensions")
            shape = tuple(self._number("<Q") for _ in range(dimensions))[::-1]
            infos.append((name, shape, self._format(self._number("<I")), self._number("<Q")))
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= _LARGEST_ALIGNMENT:
            raise self._wrong(f"its alignment is {alignment}")
        base = -(-self._at // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        for name, shape, form, offset in infos:
            if name in tensors:
                raise self._wrong(f"tensor '{name}' stands twice")
            tensors[name] = self._place(GgufTensor(name, shape, form, base + offset, 0))
        self._refuse_overlaps(tensors)
        return tensors

    def _format(self, number: int) -> BlockFormat:
        if number not in FORMATS:
            expected = ", ".join(form.name for form in FORMATS.values())
            name = _OTHER_FORMATS.get(number, str(number))
            raise UnknownDecoderKind(path=self._path, kind="tensor type", name=name, expected=expected)
        return FORMATS[number]

    def _place(self, tensor: GgufTensor) -> GgufTensor:
        """With its size, which lies in the file."""
        numbers, form = math.prod(tensor.shape), tensor.format
        if not numbers or tensor.shape[-1] % form.count:
            raise self._wrong(f"tensor '{tensor.name}' of {form.name} has the shape {list(tensor.shape)}")
        size = numbers // form.count * form.size
        if tensor.start + size > len(self._data):
            raise self._wrong(f"tensor '{tensor.name}' of {size} bytes goes beyond its end")
        return GgufTensor(tensor.name, tensor.shape, form, tensor.start, size)

    def _refuse_overlaps(self, tensors: Mapping[str, GgufTensor]) -> None:
        placed = sorted(tensors.values(), key=lambda tensor: tensor.start)
        for before, after in pairwise(placed):
            if before.start + before.size > after.start:
                raise self._wrong(f"tensors '{before.name}' and '{after.name}' overlap")
