"""Tensors of requests and answers as bytes and as lists of plain values."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import prod

import numpy as np

from bricolage.errors import BadTensor, NotInJson
from bricolage.runtime.inference_protocol.datatypes import BINARY_ONLY, BYTES, dtype_of

Buffer = bytes | memoryview
_LENGTH = struct.Struct("<I")
"""Before each element of BYTES."""
_MOST_DIMENSIONS = 32
_JSON_KINDS = {"b": "b", "i": "iu", "u": "iuO", "f": "iuf"}
"""By the kind of the wanted type: kinds of the numbers that JSON may give for it."""


def count_elements(name: str, shape: Sequence[int]) -> int:
    """Of a tensor of this shape.

    Raises:
        BadTensor: there is no such shape.
    """
    if len(shape) > _MOST_DIMENSIONS or any(size < 0 for size in shape):
        raise BadTensor(name=name, reason=f"it cannot have the shape {list(shape)[:_MOST_DIMENSIONS]}")
    return prod(shape)


def decode_bytes(name: str, datatype: str, shape: Sequence[int], data: Buffer) -> np.ndarray:
    """A tensor from its elements in little-endian row-major order: a view of `data`, but for BOOL and BYTES.

    Raises:
        BadTensor: shape and length do not fit, or BYTES are not UTF-8.
    """
    count = count_elements(name, shape)
    if datatype == BYTES:
        return _shaped(name, np.array([*_split_strings(name, data, count)], object), shape)
    dtype = dtype_of(datatype)
    if count * dtype.itemsize != len(data):
        reason = f"{datatype} of shape {list(shape)} has {count * dtype.itemsize} bytes, and {len(data)} were sent"
        raise BadTensor(name=name, reason=reason)
    if dtype.kind == "b":
        return _shaped(name, np.frombuffer(data, np.uint8) != 0, shape)  # 2 is no truth value of numpy's
    return _shaped(name, np.frombuffer(data, dtype), shape)


def _split_strings(name: str, data: Buffer, count: int) -> list[str]:
    """The elements of BYTES."""
    strings: list[str] = []
    begin = 0
    while begin < len(data) and len(strings) < count:
        if begin + _LENGTH.size > len(data):
            break
        end = begin + _LENGTH.size + _LENGTH.unpack_from(data, begin)[0]
        if end > len(data):
            break
        strings.append(decode_string(name, bytes(data[begin + _LENGTH.size : end])))
        begin = end
    if begin != len(data) or len(strings) != count:
        raise BadTensor(name=name, reason=f"its bytes are not {count} strings, each after its length in 4 bytes")
    return strings


def decode_string(name: str, data: bytes) -> str:
    """An element of BYTES.

    Raises:
        BadTensor: it is not UTF-8.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise BadTensor(name=name, reason="a string is not UTF-8") from None


def decode_values(name: str, datatype: str, shape: Sequence[int], values: object) -> np.ndarray:
    """A tensor from plain values, in a flat list or in nested ones.

    Raises:
        BadTensor: they are not of its type, do not fit into it, or are not as many as the shape has.
    """
    count = count_elements(name, shape)
    if datatype in BINARY_ONLY:
        raise BadTensor(name=name, reason=f"{datatype} is sent in binary only")
    if not isinstance(values, list):
        raise BadTensor(name=name, reason="'data' is not a list")
    dtype = dtype_of(datatype)
    try:
        array = np.array(values, object if datatype == BYTES else None)
    except (ValueError, OverflowError):
        raise BadTensor(name=name, reason="its lists differ in length") from None
    if dtype.kind == "u" and array.dtype.kind == "f":  # as numpy reads 0 among numbers of 64 bits
        array = np.array(values, object)
    if array.size != count:
        raise BadTensor(name=name, reason=f"shape {list(shape)} has {count} elements, and {array.size} were sent")
    if datatype == BYTES:
        if not all(isinstance(element, str) for element in array.flat):
            raise BadTensor(name=name, reason="an element is not a string")
        return _shaped(name, array, shape)
    return _shaped(name, _convert_numbers(name, datatype, array, dtype), shape)


def _convert_numbers(name: str, datatype: str, array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    wrong = array.dtype.kind == "O" and not all(type(element) is int for element in array.flat)
    if array.size and (wrong or array.dtype.kind not in _JSON_KINDS[dtype.kind]):
        raise BadTensor(name=name, reason=f"an element is not {datatype}")
    try:
        with np.errstate(over="ignore"):
            converted = array.astype(dtype)
    except OverflowError:
        raise BadTensor(name=name, reason=f"an element does not fit into {datatype}") from None
    fits = np.isfinite(converted).all() if dtype.kind == "f" else np.array_equal(converted, array)
    if not fits:
        raise BadTensor(name=name, reason=f"an element does not fit into {datatype}")
    return converted


def _shaped(name: str, flat: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    try:
        return flat.reshape(shape)
    except (ValueError, OverflowError):  # sizes beyond what an array can have, where another one is 0
        raise BadTensor(name=name, reason=f"it cannot have the shape {list(shape)}") from None


def encode_bytes(array: np.ndarray, datatype: str) -> Buffer:
    """The elements in little-endian row-major order."""
    if datatype != BYTES:
        return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    encoded = [str(element).encode("utf-8") for element in array.flat]
    return b"".join(part for element in encoded for part in (_LENGTH.pack(len(element)), element))


def encode_values(name: str, array: np.ndarray, datatype: str) -> np.ndarray | list[str]:
    """The elements in row-major order, as what writes JSON takes them.

    Raises:
        NotInJson: JSON has no spelling for them.
    """
    if datatype == BYTES:
        return [str(element) for element in array.flat]
    if datatype in BINARY_ONLY:
        raise NotInJson(name=name, reason=f"{datatype} is sent in binary only")
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.dtype.kind == "f" and not np.isfinite(flat).all():
        raise NotInJson(name=name, reason="it holds NaN or infinity")
    return flat
