"""The cache folder stays within its limit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bricolage.cache import LIMIT_VARIABLE, VARIABLE, trim


def fill(path: Path, size: int, used: float) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\0" * size)
    os.utime(path, (used, used))
    return path


def test_what_was_used_longest_ago_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setenv(LIMIT_VARIABLE, str(2.5 * 2**20 / 2**30))
    old = fill(tmp_path / "compiled" / "here" / "openvino-1" / "old.blob", 2**20, 1_000)
    folder = fill(tmp_path / "compiled" / "here" / "native-1" / "native-2" / "region.so", 2**20, 3_000)
    artifact = fill(tmp_path / "artifacts" / "a" / "weights.data", 2**20, 2_000)
    costs = fill(tmp_path / "costs.sqlite", 5 * 2**20, 10)
    trim()
    assert not old.exists()
    assert folder.exists() and artifact.exists() and costs.exists()


def test_within_the_limit_nothing_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setenv(LIMIT_VARIABLE, "not a number")
    kept = fill(tmp_path / "compiled" / "here" / "openvino-1" / "old.blob", 2**20, 1_000)
    trim()
    assert kept.exists()
