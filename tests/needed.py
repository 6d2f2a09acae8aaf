"""Libraries that tests need, asked for without an import: each worker of pytest imports all modules of tests and runs some."""

from __future__ import annotations

import importlib.util

import pytest

from bricolage.device.host import host

needs_avx2 = pytest.mark.skipif("avx2" not in host().instructions, reason="this processor has no AVX2 to be kept to")
"""Of a test whose options name that instruction set, which is refused where there is none."""


def needs(name: str) -> None:
    """Skips the module that asks for it where a library is not installed."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed", allow_module_level=True)
