"""Changes of well-formed inputs: JSON, protobuf messages, plain bytes, zip archives."""

from __future__ import annotations

import copy
import io
import zipfile
from collections.abc import Mapping
from typing import Any

from benchmarks.fuzz_loaders.choices import Choices

CANARY = "must-not-be-read"
"""Name of a folder outside everything that a loader may read; hostile paths lead there."""
TEXTS = (
    "", ".", "..", "/", f"../{CANARY}/secret", f"../../{CANARY}/secret", f"/tmp/{CANARY}/secret", "model.onnx", "plan.json",
    "weights.data", "graph-0.onnx", "graph-ffffffffffffffff.onnx", "a/b", "a\\b", "a\0b", "\x1b[31m\x1b]0;title\x07",
    "x" * 10_000, "\u202e\ud7ff", "nan", "-4", "18446744073709551616", "0-99999999", "0-1,1-2", "3-1", "0,0", "native",
    "onnxruntime", "cpu", "f32", "float32", "object", "%s%n", "{0.__class__}", "${HOME}", "'; rm -rf /", "\xed\xa0\x80",
)  # fmt: skip
NUMBERS = (
    0, 1, -1, 2, 3, 7, 17, 64, 255, 256, 1024, 65_535, 65_536, 2**31 - 1, 2**31, -(2**31), 2**32, 2**40, 2**53, 2**62, 2**63 - 1,
    -(2**63), 2**64, 10**18, 10**30, -3,
)  # fmt: skip
_FLOATS = (0.0, -0.0, -1.0, 0.5, 1.0, 1e-300, 1e300, -1e300, float("inf"), float("-inf"), float("nan"))


def json_value(value: Any, choose: Choices) -> Any:
    """A JSON value with some places changed, removed, moved or made up."""
    changed = copy.deepcopy(value)
    for _ in range(1 + choose.number(3)):
        holder, key = _place(changed, choose)
        if holder is None:
            return _made_up(choose)
        match choose.number(6):
            case 0:
                del holder[key]
            case 1:
                other_holder, other = _place(changed, choose)
                if other_holder is not None:
                    holder[key] = copy.deepcopy(other_holder[other])
            case 2 if isinstance(holder, list):
                holder.extend([copy.deepcopy(holder[key])] * (1 + choose.number(3)))
            case 3 if isinstance(holder, dict):
                holder[choose.of(TEXTS)] = holder[key]
            case _:
                holder[key] = _made_up(choose)
    return changed


def _place(value: Any, choose: Choices) -> tuple[Any, Any]:
    """Somewhere in a value: what holds it, and its key or position."""
    holder, key = None, None
    while isinstance(value, dict | list) and value:
        holder = value
        key = choose.of(list(value)) if isinstance(value, dict) else choose.number(len(value))
        value = value[key]
        if choose.once_in(5):
            break
    return holder, key


def _made_up(choose: Choices) -> Any:
    match choose.number(7):
        case 0:
            return choose.of(NUMBERS)
        case 1:
            return choose.of(TEXTS)
        case 2:
            return choose.of(_FLOATS)
        case 3:
            return choose.of((None, True, False, [], {}))
        case 4:
            nested: Any = []
            for _ in range(choose.of((1, 5, 100, 400))):
                nested = [nested]
            return nested
        case 5:
            return [choose.of(NUMBERS) for _ in range(choose.number(5))]
        case _:
            return choose.rest(16).decode("latin-1")


def message(root: Any, choose: Choices) -> None:
    """Changes some fields of a protobuf message, in place."""
    for _ in range(1 + choose.number(4)):
        _change_field(_inner(root, choose), choose)


def _inner(found: Any, choose: Choices) -> Any:
    """A message somewhere in a message."""
    while not choose.once_in(4):
        inner: list[Any] = []
        for field, value in found.ListFields():
            if field.message_type is not None:
                inner.extend(value if _repeated(field) else [value])
        if not inner:
            break
        found = choose.of(inner)
    return found


def _repeated(field: Any) -> bool:
    return bool(field.is_repeated)


def _change_field(found: Any, choose: Choices) -> None:
    field = choose.of(found.DESCRIPTOR.fields)
    values = getattr(found, field.name)
    try:
        if _repeated(field):
            _change_list(values, field, choose)
        elif choose.once_in(4):
            found.ClearField(field.name)
        elif field.message_type is not None:
            values.SetInParent()
        else:
            setattr(found, field.name, _scalar(field, choose))
    except (ValueError, TypeError, OverflowError, UnicodeError):
        pass  # the value does not fit the field: no change


def _change_list(values: Any, field: Any, choose: Choices) -> None:
    match choose.number(5):
        case 0 if len(values):
            del values[choose.number(len(values))]
        case 1 if len(values) and field.message_type is not None:
            values.add().CopyFrom(values[choose.number(len(values))])
        case 2 if len(values) and field.message_type is not None:
            values[choose.number(len(values))].CopyFrom(values[choose.number(len(values))])
        case 3 if len(values) and field.message_type is None:
            values[choose.number(len(values))] = _scalar(field, choose)
        case _ if field.message_type is None:
            values.append(_scalar(field, choose))
        case _:
            values.add()


def _scalar(field: Any, choose: Choices) -> Any:
    if field.cpp_type == field.CPPTYPE_STRING:
        text = choose.of(TEXTS) if choose.once_in(2) else choose.rest(12).decode("latin-1")
        return text.encode("utf-8", "replace") if field.type == field.TYPE_BYTES else text
    if field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return choose.of(_FLOATS)
    if field.cpp_type == field.CPPTYPE_ENUM:
        return choose.number(32)
    return choose.of(NUMBERS) if choose.once_in(2) else choose.number(32)


def raw(data: bytes, choose: Choices) -> bytes:
    """Bytes with some of them changed, cut out, doubled or put in."""
    changed = bytearray(data)
    for _ in range(1 + choose.number(6)):
        start = choose.number(len(changed) + 1)
        match choose.number(5):
            case 0:
                del changed[start : start + choose.number(64)]
            case 1:
                changed[start:start] = choose.rest(16)
            case 2:
                del changed[start:]
            case 3:
                changed[start:start] = changed[start : start + choose.number(256)]
            case _ if start < len(changed):
                changed[start] ^= 1 + choose.number(255)
    return bytes(changed)


def archive(members: Mapping[str, bytes], choose: Choices) -> bytes:
    """A zip of the members, with something odd about it now and then."""
    target = io.BytesIO()
    names = list(members)
    odd = choose.of(names) if names and choose.once_in(3) else None
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as made:
        for name in names:
            info = zipfile.ZipInfo(name)
            how = zipfile.ZIP_STORED
            content = members[name]
            if name == odd:
                match choose.number(6):
                    case 0:
                        made.writestr(zipfile.ZipInfo(name), b"twice")  # zipfile warns, and writes it
                    case 1:
                        info.external_attr = 0o120777 << 16
                    case 2:
                        how = zipfile.ZIP_DEFLATED
                    case 3:
                        how, content = zipfile.ZIP_DEFLATED, content + b" " * (1 << 20)
                    case 4:
                        info.filename = choose.of(TEXTS).replace("\0", "") or "x"
                    case _:
                        info.external_attr = 0o040777 << 16
            made.writestr(info, content, how)
    return raw(target.getvalue(), choose) if choose.once_in(6) else target.getvalue()
