"""Dataclasses to JSON and back, by their type annotations. Unknown fields and wrong types are errors, not surprises."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class DecodeError(ValueError):
    """The JSON does not fit the dataclass; the message holds the path to the field."""


def encode(value: object) -> Any:
    """A structure of dicts, lists, strings, numbers and None."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, frozenset):
        return sorted(encode(item) for item in value)
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    return value


def decode(kind: type[T], data: object, path: str = "plan") -> T:
    """Builds a `kind` from what `encode` made.

    Raises:
        DecodeError: a field is missing, unknown or of the wrong type.
    """
    return typing.cast(T, _decode(kind, data, path))


def _decode(kind: Any, data: object, path: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(kind, data, path)
    if origin in (typing.Union, types.UnionType):
        return _decode_union(arguments, data, path)
    if origin is frozenset:
        if not isinstance(data, list):
            raise DecodeError(f"{path} is no list")
        return frozenset(_decode(arguments[0], item, f"{path}[{i}]") for i, item in enumerate(data))
    if origin is tuple:
        if not isinstance(data, list):
            raise DecodeError(f"{path} is no list")
        if arguments[-1] is ...:
            return tuple(_decode(arguments[0], item, f"{path}[{i}]") for i, item in enumerate(data))
        if len(data) != len(arguments):
            raise DecodeError(f"{path} has {len(data)} items instead of {len(arguments)}")
        return tuple(_decode(a, item, f"{path}[{i}]") for i, (a, item) in enumerate(zip(arguments, data, strict=True)))
    if origin is typing.Literal:
        if data not in arguments:
            raise DecodeError(f"{path} is none of {', '.join(map(str, arguments))}")
        return data
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(data, dict):
            raise DecodeError(f"{path} is no object")
        return {key: _decode(arguments[1], item, f"{path}.{key}") for key, item in data.items()}
    if kind is Path and isinstance(data, str):
        return Path(data)
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if kind is type(None) and data is None:
        return None
    if isinstance(kind, type) and isinstance(data, kind) and (kind is bool or not isinstance(data, bool)):
        return data
    raise DecodeError(f"{path} is no {getattr(kind, '__name__', kind)}")


def _decode_union(arguments: tuple[Any, ...], data: object, path: str) -> Any:
    for argument in arguments:
        try:
            return _decode(argument, data, path)
        except DecodeError as error:
            last = error
    raise last


def _decode_dataclass(kind: Any, data: object, path: str) -> Any:
    if not isinstance(data, dict):
        raise DecodeError(f"{path} is no object")
    hints = typing.get_type_hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind)}
    unknown = set(data) - set(fields)
    if unknown:
        raise DecodeError(f"{path} has the unknown field '{sorted(unknown)[0]}'")
    values: dict[str, Any] = {}
    for name, f in fields.items():
        if name in data:
            values[name] = _decode(hints[name], data[name], f"{path}.{name}")
        elif f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise DecodeError(f"{path} lacks the field '{name}'")
    try:
        return kind(**values)
    except ValueError as error:
        raise DecodeError(f"{path}: {error}") from error
