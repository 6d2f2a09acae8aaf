"""Files that users give: artifacts by their name, arrays in `.npz` files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bricolage.work.values import ModelValue

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

ARTIFACT_SUFFIXES = (".bricolage", ".pack")


def is_artifact(path: Path) -> bool:
    """Whether a path names an artifact rather than a model."""
    return path.suffix in ARTIFACT_SUFFIXES


def load_arrays(path: Path, option: str = "--input") -> dict[str, np.ndarray]:
    """The arrays of a `.npz` file. Pickled objects are refused, since loading them runs code.

    Raises:
        MissingFile, BadOption
    """
    from bricolage.verify import inputs

    return inputs.read_arrays(path, option)


def write_arrays(path: Path, outputs: Mapping[str, ModelValue]) -> None:
    """Writes a `.npz` file. Types that the format lacks (bfloat16, 8-bit floats) become float32; the members of a sequence are
    called `name.0`, `name.1` and so on; of maps their values stand in the rows of an array.

    Raises:
        NotWritable
    """
    import numpy as np

    from bricolage.cli import output

    arrays: dict[str, np.ndarray] = {}
    for name, value in outputs.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            arrays[name] = np.array([list(row.values()) for row in value])
        elif isinstance(value, list):
            arrays |= {f"{name}.{number}": member for number, member in enumerate(value)}
        elif value is not None:
            arrays[name] = np.asarray(value)
    foreign = {name for name, array in arrays.items() if array.dtype.kind == "V" or array.dtype.isbuiltin == 2}
    plain_arrays = {name: array.astype(np.float32) if name in foreign else array for name, array in arrays.items()}
    output.write_file(path, lambda file: np.savez(file, **plain_arrays))  # type: ignore[arg-type]
