"""Libraries that tests need, asked for without an import: each worker of pytest imports all modules of tests and runs some."""

from __future__ import annotations

import importlib.util

import pytest


def needs(name: str) -> None:
    """Skips the module that asks for it where a library is not installed."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed", allow_module_level=True)
