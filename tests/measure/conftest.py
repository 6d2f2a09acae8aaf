"""What the tests of the cost layer share: a cache folder of their own, a pool, and a tiny region."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bricolage.backends import registry
from bricolage.measure.pool import Pool
from tests.measure import rogues


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("BRICOLAGE_CACHE", str(tmp_path / "cache"))
    rogues.register_all()
    yield tmp_path / "cache"
    registry._sources.cache_clear()  # other tests must not meet the rogues
    registry.get.cache_clear()


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool(memory_limit=1 << 30) as made:
        yield made
