"""The measurements that plans rest on: listed, exchanged between machines, and removed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bricolage.backends import registry
from bricolage.backends.interface import Available
from bricolage.costs.database import Database, Entry, Imported
from bricolage.device.host import host
from bricolage.errors import MissingFile

_DAY_S = 86400.0


@dataclass(frozen=True)
class ListedCosts:
    """Measurements, the newest first."""

    entries: tuple[Entry, ...]
    more: bool
    """Whether there are others that would be listed."""


def read_costs(backend: str | None = None, region: str | None = None, *, failures: bool, limit: int) -> ListedCosts:
    """The newest measurements, at most `limit`: of a `backend` and of a `region` (by its key) where they are named, and failures
    alone where those are asked for.

    Raises:
        NewerCosts, UnreachableCosts, ...: the database cannot be opened, see `costs.connection`.
    """
    with Database() as database:
        entries = tuple(itertools.islice(database.entries(backend, region, failures), limit + 1))
    return ListedCosts(entries[:limit], len(entries) > limit)


def export_costs() -> Iterator[str]:
    """All measurements as lines of JSON, for `import_costs` on a machine of the same device class.

    Raises:
        NewerCosts, UnreachableCosts, ...: the database cannot be opened, see `costs.connection`.
    """
    with Database() as database:
        yield from database.export_lines()


def import_costs(path: Path) -> Imported:
    """Takes over the measurements in a file of `export_costs`; of two of the same, the one with more samples is kept.

    Raises:
        MissingFile: there is no such file.
        NewerCosts, UnreachableCosts, ...: the database cannot be opened, see `costs.connection`.
    """
    if not path.is_file():
        raise MissingFile(path=path)
    with path.open(errors="replace", encoding="utf-8") as lines, Database() as database:
        return database.import_lines(lines)


def prune_costs(older_than_days: float | None, *, other_versions: bool, other_hardware: bool, failures: bool) -> int:
    """Removes expired failures, measurements of older formats, and those that the arguments name: how many these were.

    Args:
        older_than_days: also what is older.
        other_versions: also what was measured with versions of backends that are not installed.
        other_hardware: also what other machines measured.
        failures: also every failure, so that it is tried again.

    Raises:
        NewerCosts, UnreachableCosts, ...: the database cannot be opened, see `costs.connection`.
    """
    with Database() as database:
        return database.prune(
            older_than_s=None if older_than_days is None else older_than_days * _DAY_S,
            versions=_installed_versions() if other_versions else None,
            device=host().fingerprint() if other_hardware else None,
            failures=failures,
        )


def _installed_versions() -> dict[str, str]:
    statuses = {name: registry.get(name).status() for name in registry.names()}
    return {name: status.version for name, status in statuses.items() if isinstance(status, Available)}
