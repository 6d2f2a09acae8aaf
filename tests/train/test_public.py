"""What `bricolage.train` offers."""

from __future__ import annotations

import importlib
from types import ModuleType

import bricolage.train


def test_public_names_are_never_hidden_by_modules() -> None:
    for home in set(bricolage.train._HOMES.values()):
        importlib.import_module(home)
    for name in bricolage.train.__all__:
        assert not isinstance(getattr(bricolage.train, name), ModuleType), name
