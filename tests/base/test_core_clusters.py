"""Clusters of unequal cores: who shares a kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from bricolage.base.core_clusters import count_fast_cores


def write_capacities(cpus: Path, *capacities: str) -> None:
    for number, capacity in enumerate(capacities):
        (cpus / f"cpu{number}").mkdir()
        (cpus / f"cpu{number}" / "cpu_capacity").write_text(capacity, encoding="ascii")


@pytest.mark.parametrize(
    ("capacities", "fast"),
    [
        (("1024",) * 4, 4),
        (("324\n", "324\n", "324\n", "324\n", "871\n", "871\n", "871\n", "1024\n"), 4),
        (("512", "1024"), 2),
        (("511", "1024"), 1),
        (("1024", "?"), 2),
    ],
)
def test_slow_clusters_do_not_count(capacities: tuple[str, ...], fast: int, tmp_path: Path) -> None:
    write_capacities(tmp_path, *capacities)
    assert count_fast_cores(range(len(capacities)), tmp_path) == fast


def test_the_fastest_of_those_that_may_be_used_is_the_measure(tmp_path: Path) -> None:
    write_capacities(tmp_path, "300", "300", "1024")
    assert count_fast_cores({0, 1}, tmp_path) == 2
    assert count_fast_cores({0, 1}, tmp_path / "none") == 2
