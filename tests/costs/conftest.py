"""What the tests of the database share: a cache folder of their own, and a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.costs.postgresql_server import PostgresqlServer, programs


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BRICOLAGE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


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
