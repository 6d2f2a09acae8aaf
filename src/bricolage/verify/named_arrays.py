"""Named values in an .npz file, between the parent and its workers: without pickle, and with what numpy's own format
forgets (bfloat16, 8-bit floats, strings, sequences, maps, empty optionals)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from bricolage.verify.randomness import Drawn, mark_drawn
from bricolage.work.values import ModelValue

_INDEX = "__tensors__"
_LIMIT = "\0limit of "
"""Before the name of an output: no tensor's name has a zero byte."""


def digest(what: str, values: Mapping[str, ModelValue]) -> str:
    """Of a text and named values (arrays, lists of them, None), whatever the order of the names."""
    hasher = hashlib.sha256(what.encode())
    for name in sorted(values):
        _feed(hasher, name, values[name])
    return hasher.hexdigest()


def save_tensors(path: Path, values: Mapping[str, object]) -> None:
    """Writes arrays, lists, dicts or None under any names. Types that numpy does not know are stored as raw
    bytes."""
    members: dict[str, np.ndarray] = {}
    index = {name: _pack_value(value, members) for name, value in values.items()}
    members[_INDEX] = np.array(json.dumps(index))
    np.savez(path, **members)  # type: ignore[arg-type]


def save_expected(path: Path, values: Mapping[str, object], limits: Mapping[str, float]) -> None:
    """Writes expected outputs, and for each the error that is still float32's own."""
    save_tensors(path, {**values, **{_LIMIT + name: np.asarray(limit) for name, limit in limits.items()}})


def load_limits(path: Path, names: Iterable[str]) -> list[float]:
    """Limits of the outputs, from a file of `save_expected`; 0 where it has none."""
    with np.load(path, allow_pickle=False) as file:
        index: dict[str, Any] = json.loads(str(file[_INDEX])) if _INDEX in file.files else {}
        return [float(file[index[_LIMIT + name]["member"]]) if _LIMIT + name in index else 0.0 for name in names]


def load_values(path: Path, names: Iterable[str] | None = None) -> dict[str, object]:
    """Reads the values asked for (all when None) from a file of `save_tensors` or a plain .npz.

    Raises:
        KeyError: the file has no value of that name.
    """
    with np.load(path, allow_pickle=False) as file:
        if _INDEX not in file.files:
            return {name: file[name] for name in (file.files if names is None else names)}
        index: dict[str, object] = json.loads(str(file[_INDEX]))
        return {name: _unpack_value(index[name], file) for name in (index if names is None else names)}


def _feed(found: hashlib._Hash, name: str, value: ModelValue) -> None:
    if isinstance(value, list | tuple):
        found.update(f"{name} {len(value)}".encode())
        for member in value:
            _feed(found, name, member)
        return
    if isinstance(value, dict):
        _feed(found, name, [list(value), list(value.values())])
        return
    array = np.asarray(value)
    found.update(f"{name} {array.dtype} {array.shape}".encode())
    found.update(str(array.tolist()).encode() if array.dtype == object else np.ascontiguousarray(array).tobytes())


def _pack_value(value: object, members: dict[str, np.ndarray]) -> object:
    """Puts the arrays of a value among the members and returns how to find them again."""
    if value is None:
        return None
    if isinstance(value, list | tuple):
        return [_pack_value(item, members) for item in value]
    if isinstance(value, dict):
        return {
            "keys": [str(key) if isinstance(key, str) else int(key) for key in value],
            "values": _pack_value(list(value.values()), members),
        }
    array = np.asarray(value)
    member, kind = f"t{len(members)}", array.dtype.name
    chance = {"drawn": True} if isinstance(value, Drawn) else {}
    if array.dtype.kind == "O":
        array = array.astype(np.str_)
    elif (
        array.dtype.kind == "V" or array.dtype.isbuiltin == 2
    ):  # some of the types that others registered call themselves floats
        array = np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(*array.shape, array.dtype.itemsize)
    members[member] = array
    return {"member": member, "type": kind, **chance}


def _unpack_value(packed: Any, file: Mapping[str, np.ndarray]) -> object:
    if packed is None:
        return None
    if isinstance(packed, list):
        return [_unpack_value(item, file) for item in packed]
    if "keys" in packed:
        held = [_unpack_value(item, file) for item in packed["values"]]
        return {
            key: value.item() if isinstance(value, np.ndarray) and not value.ndim else value
            for key, value in zip(packed["keys"], held, strict=True)
        }
    array, kind = file[packed["member"]], packed["type"]
    if packed.get("drawn"):
        array = mark_drawn(array)
    if array.dtype.name == kind:
        return array
    if kind == "object":
        return array.astype(object)
    return array.view(np.dtype(getattr(ml_dtypes, kind))).reshape(array.shape[:-1])
