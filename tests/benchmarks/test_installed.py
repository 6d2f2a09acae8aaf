"""What a wheel holds, and what the turns of processes become."""

from __future__ import annotations

import csv
import zipfile
from pathlib import Path

import pytest

from benchmarks.installed import (
    ROOT,
    WheelSize,
    build_wheel,
    format_table,
    measure_wheel,
    summarise_turns,
    tabulate_rows,
)
from benchmarks.tools.output import keep_table


@pytest.mark.slow
def test_the_wheel_holds_what_the_sources_hold(tmp_path: Path) -> None:
    """Every module, and every file that a module reads: a checkout has them whatever the wheel has."""
    pytest.importorskip("setuptools", minversion="77")
    wheel = build_wheel(tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("bricolage/")}
    source = ROOT / "src"
    files = {path.relative_to(source).as_posix() for path in (source / "bricolage").rglob("*") if path.is_file()}
    assert packed == {name for name in files if "__pycache__" not in name and not Path(name).name.startswith(".")}
    size = measure_wheel(wheel)
    assert 0 < size.wheel_mb < size.installed_mb


def test_a_start_is_the_median_of_its_turns(tmp_path: Path) -> None:
    turns = [(float(ms), {"load_ms": ms / 2.0, "modules": 170.0, "packages": 0.0}) for ms in (30, 10, 20)]
    start = summarise_turns("kept", turns)
    assert (start.process_ms, start.load_ms, start.modules, start.packages) == (20.0, 10.0, 170, 0)
    table = format_table(WheelSize(2.5, 9.0), [start, summarise_turns("numpy", [(5.0, {})])]).splitlines()
    assert table[0] == "wheel 2.5 MB, installed 9.0 MB"
    assert table[-2] == "| kept | 20 |  | 10 |  | 170 | 0 |  |" and table[-1].startswith("| numpy | 5 |  |")
    keep_table(tabulate_rows(WheelSize(2.5, 9.0), [start]), tmp_path / "rows.csv")
    with (tmp_path / "rows.csv").open(encoding="utf-8", newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["contestant"], row["process_ms"], row["import_ms"], row["wheel_mb"]) == ("kept", "20", "", "2.5")
