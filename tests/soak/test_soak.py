"""A short soak for every change (`make soak` runs a million), and the check that it can fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bricolage.verify.reference import LIBRARY_VARIABLE
from tests.soak import soak

_ROOT = Path(__file__).parents[2]


class Leaking:
    """Keeps what it is given, and is wrong once in a while where it is told to be."""

    def __init__(self, wrong_at: int = 0) -> None:
        self.kept: list[np.ndarray] = []
        self._wrong_at = wrong_at

    def __call__(self, x: np.ndarray) -> np.ndarray:
        self.kept.append(np.ones(1 << 12, np.float32))
        return x + (len(self.kept) == self._wrong_at)


def test_a_short_soak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRICOLAGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(LIBRARY_VARIABLE, "onnx")  # the reference would import torch for each artifact
    command = [sys.executable, "-m", "tests.soak", "--inferences", "4000"]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False, encoding="utf-8")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4,000 inferences on native: 0 differ" in done.stdout.splitlines()[-1]


def test_a_leak_and_a_wrong_bit_are_found() -> None:
    leaking: Any = Leaking()
    leaked = soak.soak(leaking, "leaking", 4000, 2)
    assert not leaked.different and leaked.growth > 0.01 and not leaked.fine
    wrong: Any = Leaking(wrong_at=100)
    assert soak.soak(wrong, "wrong", 200, 2).different == 1
