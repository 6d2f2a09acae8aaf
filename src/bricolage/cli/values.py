"""Files that users give: artifacts by their name, arrays in `.npz` files."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from bricolage.errors import BadOption, MissingFile

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

ARTIFACT_SUFFIX = ".bricolage"
_ADVICE = "Give a file that numpy.savez wrote, with one array for each input and the input's name as its name"


def is_artifact(path: Path) -> bool:
    """Whether a path names an artifact rather than a model."""
    return path.suffix == ARTIFACT_SUFFIX


def read_arrays(path: Path) -> dict[str, np.ndarray]:
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
            raise BadOption(option="--input", value=path, advice=_ADVICE)
        with loaded:
            return {name: loaded[name] for name in loaded.files}
    except (ValueError, EOFError, OSError, NotImplementedError, zipfile.BadZipFile) as error:
        raise BadOption(option="--input", value=path, advice=f"{_ADVICE} ({error})") from error


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes a `.npz` file. Types that the format lacks (bfloat16, 8-bit floats) become float32.

    Raises:
        NotWritable
    """
    import numpy as np

    from bricolage.cli import output

    known = {name: array.astype(np.float32) if array.dtype.kind == "V" else array for name, array in arrays.items()}
    output.write(path, lambda file: np.savez(file, **known))  # type: ignore[arg-type]
