"""Arrays in .npz files of users."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np

from bricolage.errors import BadOption, MissingFile

_ADVICE = "Give a file that numpy.savez wrote, with one array for each input and the input's name as its name"


def read_arrays(path: str | Path, option: str = "--input") -> dict[str, np.ndarray]:
    """The arrays of an .npz file, which an option names, by name. Pickled objects are refused, since loading them runs code.

    Raises:
        MissingFile, BadOption: there is no such file, or it is no .npz file of plain arrays.
    """
    path = Path(path)
    if not path.is_file():
        raise MissingFile(path=path)
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise BadOption(option=option, value=path, advice=_ADVICE)
        with archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        raise BadOption(option=option, value=path, advice=f"{_ADVICE} ({error})") from error
