"""What the tests of the cost layer share: a cache folder of their own, a pool, and a tiny region."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bricolage.backends import registry
from bricolage.measure.pool import Pool
from tests.measure import rogues
from tests.measure.postgresql_server import PostgresqlServer, programs


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("BRICOLAGE_CACHE", str(tmp_path / "cache"))
    rogues.register_all()
    yield tmp_path / "cache"
    registry._sources.cache_clear()  # other tests must not meet the rogues
    registry.get.cache_clear()


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[PostgresqlServer]:
    """A private server; the test is skipped where none is installed."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    found = programs()
    if found is None:
        pytest.skip("no PostgreSQL server is installed (Debian's package is `postgresql`)")
    server = PostgresqlServer(found)
    try:
        yield server
    finally:
        server.remove()


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool(memory_limit=1 << 30) as made:
        yield made
