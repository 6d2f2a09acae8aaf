"""Tensors in safetensors files, mapped. Every length is checked against the file before it is used.

Format: https://huggingface.co/docs/safetensors, a header in JSON behind its length, then data.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np

from bricolage.errors import NotALanguageModel, UnknownDecoderKind
from bricolage.frontends.decoders.named_values import read_json

_TYPES: Mapping[str, np.dtype] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
_LONGEST_HEADER = 100_000_000
"""Bytes, as the format limits it."""
_INDEX = "model.safetensors.index.json"


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Arrays by name, views of the mapped file.

    Raises:
        NotALanguageModel: it is cut off, or lies about its lengths.
        UnknownDecoderKind: a tensor of a type that is not read.
    """
    try:
        with path.open("rb") as file:
            if path.stat().st_size < 8:
                raise NotALanguageModel(path=path, reason="it is shorter than its header's length")
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise NotALanguageModel(path=path, reason=error.strerror or error) from error
    length = int.from_bytes(data[:8], "little")
    if length > min(_LONGEST_HEADER, len(data) - 8):
        raise NotALanguageModel(path=path, reason=f"a header of {length} bytes goes beyond its end")
    try:
        header = json.loads(data[8 : 8 + length])
    except (ValueError, RecursionError) as error:
        raise NotALanguageModel(path=path, reason=f"its header is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise NotALanguageModel(path=path, reason="its header is no JSON object")
    header.pop("__metadata__", None)
    return {name: _view(data, 8 + length, name, entry, path) for name, entry in header.items()}


def _view(data: mmap.mmap, base: int, name: str, entry: object, path: Path) -> np.ndarray:
    """One array."""
    match entry:
        case {"dtype": str(kind), "shape": list(shape), "data_offsets": [int(start), int(stop)]}:
            pass
        case _:
            raise NotALanguageModel(path=path, reason=f"tensor '{name}' is not described")
    if kind not in _TYPES:
        raise UnknownDecoderKind(path=path, kind="tensor type", name=kind, expected=", ".join(_TYPES))
    if not all(type(size) is int and size >= 0 for size in shape):
        raise NotALanguageModel(path=path, reason=f"tensor '{name}' has the shape {shape}")
    dtype = _TYPES[kind]
    if not 0 <= start <= stop <= len(data) - base:
        raise NotALanguageModel(path=path, reason=f"tensor '{name}' goes beyond its end")
    if stop - start != math.prod(shape) * dtype.itemsize:
        raise NotALanguageModel(path=path, reason=f"tensor '{name}' has {stop - start} bytes for the shape {shape}")
    return np.frombuffer(data, np.uint8, stop - start, base + start).view(dtype).reshape(shape)


def read_tensors_of_folder(folder: Path) -> dict[str, np.ndarray]:
    """Arrays of all files that the index names, or of the only file.

    Raises:
        NotALanguageModel, UnknownDecoderKind: as `read_safetensors`; files are missing, or lie outside of the folder.
    """
    index = read_json(folder / _INDEX)
    weights = index.within("weight_map").values
    names = sorted({str(name) for name in weights.values()}) if weights else ["model.safetensors"]
    tensors: dict[str, np.ndarray] = {}
    for name in names:
        if name != Path(name).name or not name.endswith(".safetensors"):
            raise NotALanguageModel(path=index.path, reason=f"it refers to '{name}', which is no file of the folder")
        if not (folder / name).is_file():
            raise NotALanguageModel(path=folder, reason=f"it lacks {name}")
        tensors |= read_safetensors(folder / name)
    return tensors
