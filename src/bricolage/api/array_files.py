"""Arrays in the files that users give and get."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bricolage.verify.npz_files import read_arrays
from bricolage.work.values import ModelValue


def load_arrays(path: Path, option: str = "--input") -> dict[str, np.ndarray]:
    """The arrays of a `.npz` file, which an `option` names. Pickled objects are refused, since loading them runs code.

    Raises:
        MissingFile: there is no such file.
        BadOption: it is no `.npz` file of plain arrays.
    """
    return read_arrays(path, option)


def flatten_values(values: Mapping[str, ModelValue]) -> dict[str, np.ndarray]:
    """A model's values as a `.npz` file holds them. Types that the format lacks (bfloat16, 8-bit floats) become float32; the
    members of a sequence are called `name.0`, `name.1` and so on; of maps their values stand in the rows of an array."""
    arrays: dict[str, np.ndarray] = {}
    for name, value in values.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            arrays[name] = np.array([list(row.values()) for row in value])
        elif isinstance(value, list):
            arrays |= {f"{name}.{number}": member for number, member in enumerate(value)}
        elif value is not None:
            arrays[name] = np.asarray(value)
    foreign = {name for name, array in arrays.items() if array.dtype.kind == "V" or array.dtype.isbuiltin == 2}
    return {name: array.astype(np.float32) if name in foreign else array for name, array in arrays.items()}
