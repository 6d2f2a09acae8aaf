"""Arrays in files: what the format lacks, and files that are none."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from bricolage import errors
from bricolage.api.array_files import flatten_values, load_arrays
from bricolage.cli.output import write_arrays


def test_types_that_npz_lacks_become_float32(tmp_path: Path) -> None:
    write_arrays(tmp_path / "y.npz", {"y": np.array([1.5, -2], ml_dtypes.bfloat16)})
    assert load_arrays(tmp_path / "y.npz")["y"].tolist() == [1.5, -2]


def test_sequences_and_maps_become_arrays() -> None:
    values = {"s": [np.ones(2), np.zeros(3)], "m": [{"no": 0.25, "yes": 0.75}], "none": None}
    assert {name: array.tolist() for name, array in flatten_values(values).items()} == {
        "s.0": [1, 1],
        "s.1": [0, 0, 0],
        "m": [[0.25, 0.75]],
    }


def test_inputs_packed_in_an_unknown_way(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.ones(3, np.float32))
    packed = bytearray((tmp_path / "x.npz").read_bytes())
    for magic, at in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        place = packed.index(magic) + at
        packed[place : place + 2] = (99).to_bytes(2, "little")
    (tmp_path / "x.npz").write_bytes(packed)
    with pytest.raises(errors.BadOption, match="compression"):
        load_arrays(tmp_path / "x.npz")
