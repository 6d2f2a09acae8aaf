"""Dataclasses to JSON and back, by their type annotations. Unknown fields, wrong types and values out of range are errors, not
surprises: what was decoded is valid. A type says which values it has as `Annotated[int, Within(0, 100)]`; what several fields
must fulfil together, the dataclass checks in `__post_init__`. A field that is a dataclass and `FLAT` has no key: its fields stand
among those of the class that it is a part of, in the order that `KEY_ORDER` of that class gives, or in their own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import re
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

from bricolage.errors import BricolageError

T = TypeVar("T")
Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
"""A value that JSON can hold."""
JsonObject: TypeAlias = dict[str, Json]
FLAT: Mapping[str, bool] = types.MappingProxyType({"flat": True})
"""Metadata of a field whose own fields stand in the object of the class that has it: `part: Part = field(metadata=FLAT)`."""
_MOST_BYTES = 1 << 24
"""Of a file that a user writes."""


class DecodeError(ValueError):
    """The JSON does not fit the dataclass; the message holds the path to the field."""


@dataclass(frozen=True)
class Within:
    """Numbers from `low` to `high`. NaN is none of them."""

    low: float
    high: float

    def problem(self, value: float) -> str | None:
        """Why `value` is none of these; None where it is one."""
        return None if self.low <= value <= self.high else f"is not between {self.low:g} and {self.high:g}"


@dataclass(frozen=True)
class Matching:
    """Texts that a regular expression matches from end to end; `meaning` says in words what they are."""

    pattern: str
    meaning: str

    def problem(self, value: str) -> str | None:
        """Why `value` is none of these; None where it is one."""
        return None if _compile_pattern(self.pattern).fullmatch(value) else f"is no {self.meaning}"


@dataclass(frozen=True)
class Length:
    """Collections of at least `low` and at most `high` items."""

    low: int
    high: int

    def problem(self, value: typing.Sized) -> str | None:
        """Why `value` is none of these; None where it is one."""
        return None if self.low <= len(value) <= self.high else f"has {len(value)} items, not {self.low} to {self.high}"


@functools.cache
def _compile_pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def parse(text: bytes | str) -> Any:
    """The value of a JSON text.

    Raises:
        DecodeError: it is not JSON, is nested too deeply, or holds a number of thousands of digits.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise DecodeError("it is nested too deeply") from None
    except ValueError as error:
        raise DecodeError(f"it is not JSON ({error})") from error


def read_file(path: Path) -> Any:
    """What a file of JSON (by its ending) or of TOML holds.

    Raises:
        DecodeError: it cannot be read, is larger than 16 MiB, or is neither.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise DecodeError("it is too large")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DecodeError(f"it cannot be read ({error})") from error
    if path.suffix.lower() == ".json":
        return parse(text)
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise DecodeError(f"it is not TOML ({error})") from error


def encode(value: object) -> Any:
    """A structure of dicts, lists, strings, numbers and None."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _encode_dataclass(value)
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, frozenset):
        return sorted(encode(item) for item in value)
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    return value


def _encode_dataclass(value: Any) -> dict[str, Any]:
    kind: Any = type(value)
    encoded: dict[str, Any] = {}
    for f in dataclasses.fields(value):
        item = getattr(value, f.name)
        encoded |= _encode_dataclass(item) if f.metadata.get("flat") else {f.name: encode(item)}
    return {name: encoded[name] for name in _keys(kind)} if hasattr(kind, "KEY_ORDER") else encoded


def decode(kind: type[T], data: object, path: str = "plan") -> T:
    """Builds a `kind` from what `encode` made.

    Raises:
        DecodeError: a field is missing, unknown, of the wrong type or out of range.
    """
    return typing.cast(T, _decode(kind, data, path))


def _decode(kind: Any, data: object, path: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        value = _decode(arguments[0], data, path)
        for check in arguments[1:]:
            problem = check.problem(value)
            if problem is not None:
                raise DecodeError(f"{path} {problem}")
        return value
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
        return {
            _decode(arguments[0], key, f"{path} has a key that"): _decode(arguments[1], item, f"{path}.{key}")
            for key, item in data.items()
        }
    if kind is Path and isinstance(data, str):
        return Path(data)
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        try:
            return float(data)
        except OverflowError:
            raise DecodeError(f"{path} is no float") from None
    if kind is type(None) and data is None:
        return None
    if isinstance(kind, type) and isinstance(data, kind) and (kind is bool or not isinstance(data, bool)):
        return data
    raise DecodeError(f"{path} is no {getattr(kind, '__name__', kind)}")


def _decode_union(arguments: tuple[Any, ...], data: object, path: str) -> Any:
    # The last one says what is wrong: "is no float" tells more than "is no NoneType".
    *others, last_type = sorted(arguments, key=lambda candidate: candidate is not type(None))
    for argument in others:
        with contextlib.suppress(DecodeError):  # kept in a variable it would keep this frame, and all callers', alive
            return _decode(argument, data, path)
    return _decode(last_type, data, path)


def _decode_dataclass(kind: Any, data: object, path: str) -> Any:
    if not isinstance(data, dict):
        raise DecodeError(f"{path} is no object")
    keys = _keys(kind)
    unknown = set(data) - set(keys)
    if unknown:
        raise DecodeError(f"{path} has the unknown field '{sorted(unknown)[0]}'")
    values: dict[str, Any] = {}
    for name, (f, hint) in keys.items():
        if name in data:
            values[name] = _decode(hint, data[name], f"{path}.{name}")
        elif f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise DecodeError(f"{path} lacks the field '{name}'")
    try:
        return _build_dataclass(kind, values)
    except BricolageError as error:
        raise DecodeError(f"{path}: {error.sentence}") from error
    except ValueError as error:
        raise DecodeError(f"{path}: {error}") from error


def _build_dataclass(kind: Any, values: Mapping[str, Any]) -> Any:
    """A `kind` of the values of its keys, those of its flat fields among them."""
    given: dict[str, Any] = {}
    for f in dataclasses.fields(kind):
        if f.metadata.get("flat"):
            given[f.name] = _build_dataclass(_hints(kind)[f.name], values)
        elif f.name in values:
            given[f.name] = values[f.name]
    return kind(**given)


@functools.cache
def _keys(kind: Any) -> dict[str, tuple[dataclasses.Field[Any], Any]]:
    """The keys of the object of a dataclass, in order, each with its field and the type of that."""
    keys: dict[str, tuple[dataclasses.Field[Any], Any]] = {}
    for f in dataclasses.fields(kind):
        hint = _hints(kind)[f.name]
        own_keys = _keys(hint) if f.metadata.get("flat") else {f.name: (f, hint)}
        if twice := keys.keys() & own_keys.keys():
            raise TypeError(f"{kind.__name__} has the key '{sorted(twice)[0]}' twice")
        keys |= own_keys
    order = getattr(kind, "KEY_ORDER", tuple(keys))
    if sorted(order) != sorted(keys):
        raise TypeError(f"KEY_ORDER of {kind.__name__} does not name each of its keys once")
    return {name: keys[name] for name in order}


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)
