"""Files that users give: artifacts by their name, arrays in `.npz` files."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from bricolage.errors import BadOption, MissingFile
from bricolage.work.values import ModelValue

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

ARTIFACT_SUFFIX = ".bricolage"
_ADVICE = "Give a file that numpy.savez wrote, with one array for each input and the input's name as its name"


def is_artifact(path: Path) -> bool:
    """Whether a path names an artifact rather than a model."""
    return path.suffix == ARTIFACT_SUFFIX


def read_arrays(path: Path, option: str = "--input") -> dict[str, np.ndarray]:
    """The arrays of a `.npz` file. Pickled objects are refused, since loading them runs code.

    Raises:
        MissingFile, BadOption
    """
    import numpy as np

    if not path.is_file():
        raise MissingFile(path=path)
    try:
        loaded = np.load(path, allow_pickle=False)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise BadOption(option=option, value=path, advice=_ADVICE)
        with loaded:
            return {name: loaded[name] for name in loaded.files}
    except (ValueError, EOFError, OSError, NotImplementedError, zipfile.BadZipFile) as error:
        raise BadOption(option=option, value=path, advice=f"{_ADVICE} ({error})") from error


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
    known = {name: array.astype(np.float32) if name in foreign else array for name, array in arrays.items()}
    output.write(path, lambda file: np.savez(file, **known))  # type: ignore[arg-type]
