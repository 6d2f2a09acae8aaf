"""Made-up backends for the tests that run plans on them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime import made_plans


@pytest.fixture
def backends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The made-up backends are known, and the cache is the test's own."""
    monkeypatch.setenv("BRICOLAGE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    made_plans.register_all()
    yield
    made_plans.forget_all()
