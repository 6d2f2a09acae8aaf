"""Keys of compiled code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from bricolage.backends.content import content_key
from bricolage.backends.interface import RegionModel
from tests.backends import regions


def _product(folder: Path, weight: float, name: str = "w", **others: np.ndarray) -> RegionModel:
    folder.mkdir()
    w = np.full((32, 32), weight, np.float32)
    body = f"y = MatMul (x, {name})"
    return regions.region(folder, body, "float[1, 32] x", "float[1, 32] y", **others, **{name: w})


def test_the_key_follows_weights_operators_and_context(tmp_path: Path) -> None:
    key = content_key(_product(tmp_path / "a", 1.0), "-O3")
    assert key == content_key(_product(tmp_path / "b", 1.0), "-O3")
    assert key != content_key(_product(tmp_path / "c", 2.0), "-O3")
    assert key != content_key(_product(tmp_path / "d", 1.0, name="v"), "-O3")
    assert key != content_key(_product(tmp_path / "e", 1.0), "-O2")


def test_the_place_in_the_weights_file_does_not_matter(tmp_path: Path) -> None:
    alone = _product(tmp_path / "a", 1.0)
    behind = _product(tmp_path / "b", 1.0)
    weights = tmp_path / "b" / "weights.data"
    weights.write_bytes(bytes(64) + weights.read_bytes())
    moved = onnx.load(str(behind.path), load_external_data=False)
    for entry in moved.graph.initializer[0].external_data:
        if entry.key == "offset":
            entry.value = "64"
    onnx.save(moved, str(behind.path))
    assert content_key(RegionModel(behind.path)) == content_key(alone)
