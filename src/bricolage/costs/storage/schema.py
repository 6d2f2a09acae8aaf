"""The tables of the cost database, and how those of earlier versions become today's. One text for SQLite and PostgreSQL."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

from bricolage.costs.storage.protocol import CostStorage
from bricolage.errors import NewerCosts

Migration: TypeAlias = Callable[[CostStorage, str], None]
"""Turns the tables of the version before into its own; the text is this machine."""


def migrate(storage: CostStorage, machine: str) -> None:
    """Brings the tables to today's version, each step whole or not at all, once however many processes open them.

    Raises:
        NewerCosts: a later version of bricolage has made them.
    """
    with storage.transaction():
        storage.execute(
            "CREATE TABLE IF NOT EXISTS versions (version INTEGER PRIMARY KEY, date DOUBLE PRECISION NOT NULL)"
        )
        stored_version = int(str(storage.execute("SELECT COALESCE(MAX(version), 0) FROM versions")[0][0]))
        if stored_version > len(_MIGRATIONS):
            raise NewerCosts(place=storage.place, found=stored_version, known=len(_MIGRATIONS))
        for version, step in enumerate(_MIGRATIONS[stored_version:], stored_version + 1):
            step(storage, machine)
            storage.execute("INSERT INTO versions VALUES (?, ?)", (version, time.time()))


def _times(storage: CostStorage, _machine: str) -> None:
    """What bricolage 0.1 had; the first three tables are of versions before, which measured otherwise."""
    for name in ("costs", "boundaries", "latencies", "accuracies"):
        storage.execute(f"DROP TABLE IF EXISTS {name}")
    storage.execute(
        """CREATE TABLE IF NOT EXISTS times (
            digest TEXT PRIMARY KEY, region TEXT NOT NULL, backend TEXT NOT NULL, version TEXT NOT NULL, config TEXT NOT NULL,
            device TEXT NOT NULL, threads INTEGER NOT NULL, alone INTEGER NOT NULL, schema INTEGER NOT NULL,
            outcome TEXT NOT NULL, median_ms DOUBLE PRECISION, low_ms DOUBLE PRECISION, high_ms DOUBLE PRECISION, samples INTEGER,
            compile_s DOUBLE PRECISION NOT NULL, reason TEXT NOT NULL, noisy INTEGER NOT NULL,
            disturbed INTEGER NOT NULL, date DOUBLE PRECISION NOT NULL)"""
    )
    storage.execute(
        """CREATE TABLE IF NOT EXISTS deviations (
            digest TEXT NOT NULL, data TEXT NOT NULL, error DOUBLE PRECISION NOT NULL, excess DOUBLE PRECISION NOT NULL,
            date DOUBLE PRECISION NOT NULL, PRIMARY KEY (digest, data))"""
    )
    for name in ("races", "configs", "transfers"):
        storage.execute(
            f"CREATE TABLE IF NOT EXISTS {name} (key TEXT PRIMARY KEY, value TEXT NOT NULL, date DOUBLE PRECISION NOT NULL)"
        )


def _by_machine(storage: CostStorage, machine: str) -> None:
    """Times and errors by the machine that measured them: several may share a database."""
    storage.execute(
        """CREATE TABLE measured (
            digest TEXT NOT NULL, machine TEXT NOT NULL, region TEXT NOT NULL, backend TEXT NOT NULL, version TEXT NOT NULL,
            config TEXT NOT NULL, device TEXT NOT NULL, threads INTEGER NOT NULL, alone INTEGER NOT NULL, schema INTEGER NOT NULL,
            outcome TEXT NOT NULL, median_ms DOUBLE PRECISION, low_ms DOUBLE PRECISION, high_ms DOUBLE PRECISION, samples INTEGER,
            compile_s DOUBLE PRECISION NOT NULL, reason TEXT NOT NULL, noisy INTEGER NOT NULL,
            disturbed INTEGER NOT NULL, date DOUBLE PRECISION NOT NULL, PRIMARY KEY (digest, machine))"""
    )
    columns = (
        "region, backend, version, config, device, threads, alone, schema, outcome, median_ms, low_ms, high_ms, samples, "
        "compile_s, reason, noisy, disturbed, date"
    )
    storage.execute(
        f"INSERT INTO measured (digest, machine, {columns}) SELECT digest, CAST(? AS TEXT), {columns} FROM times",
        (machine,),
    )
    storage.execute("DROP TABLE times")
    storage.execute("CREATE INDEX measured_by_backend ON measured (backend, version)")
    storage.execute(
        """CREATE TABLE compared (
            digest TEXT NOT NULL, machine TEXT NOT NULL, data TEXT NOT NULL, error DOUBLE PRECISION NOT NULL,
            excess DOUBLE PRECISION NOT NULL, date DOUBLE PRECISION NOT NULL, PRIMARY KEY (digest, machine, data))"""
    )
    storage.execute(
        """INSERT INTO compared (digest, machine, data, error, excess, date)
           SELECT digest, CAST(? AS TEXT), data, error, excess, date FROM deviations""",
        (machine,),
    )
    storage.execute("DROP TABLE deviations")
    for name in ("races", "transfers"):
        storage.execute(f"UPDATE {name} SET key = CAST(? AS TEXT) || ' ' || key", (machine,))


def _descriptions(storage: CostStorage, _machine: str) -> None:
    """What the hashes in keys are of: what measured regions compute, and what the devices are."""
    for name in ("workloads", "devices"):
        storage.execute(
            f"CREATE TABLE {name} (key TEXT PRIMARY KEY, value TEXT NOT NULL, date DOUBLE PRECISION NOT NULL)"
        )


def _trials(storage: CostStorage, _machine: str) -> None:
    """What came of choices for single kernels."""
    storage.execute(
        """CREATE TABLE trials (
            task TEXT NOT NULL, machine TEXT NOT NULL, choice TEXT NOT NULL, workload TEXT NOT NULL, kind TEXT NOT NULL,
            backend TEXT NOT NULL, version TEXT NOT NULL, config TEXT NOT NULL, device TEXT NOT NULL,
            threads INTEGER NOT NULL, sizes TEXT NOT NULL,
            share DOUBLE PRECISION, ms DOUBLE PRECISION, rounds INTEGER NOT NULL, reason TEXT NOT NULL,
            date DOUBLE PRECISION NOT NULL, PRIMARY KEY (task, machine, choice))"""
    )
    storage.execute("CREATE INDEX trials_by_kind ON trials (kind, backend, config)")


def _decisions(storage: CostStorage, _machine: str) -> None:
    """Lines of the log of decisions, by their hashes."""
    storage.execute(
        "CREATE TABLE decisions (key TEXT PRIMARY KEY, value TEXT NOT NULL, date DOUBLE PRECISION NOT NULL)"
    )


_MIGRATIONS: tuple[Migration, ...] = (_times, _by_machine, _descriptions, _trials, _decisions)
"""In order; the version of a database is how many it has seen."""
