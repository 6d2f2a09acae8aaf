"""Made-up backends for the tests that decide among them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bricolage.backends import registry
from tests.driver.made_up import REFERENCES


@pytest.fixture
def registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The made-up backends are known, and the cache is the test's own."""
    monkeypatch.setenv("BRICOLAGE_CACHE", str(tmp_path / "cache"))
    for name, reference in REFERENCES.items():
        registry.register(name, reference)
    yield
    registry._sources.cache_clear()
    registry.get.cache_clear()
