"""Caches as Linux describes them, and what is taken for granted where it does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bricolage.device.caches import Cache, Caches, caches_of, host_caches, read_caches
from bricolage.device.host import host


def described(cpu: Path, number: int, **facts: str) -> None:
    folder = cpu / "cache" / f"index{number}"
    folder.mkdir(parents=True)
    for name, value in facts.items():
        (folder / name).write_text(value + "\n", encoding="utf-8")


def test_what_linux_says(tmp_path: Path) -> None:
    (tmp_path / "topology").mkdir()
    (tmp_path / "topology" / "thread_siblings_list").write_text("0,8\n", encoding="utf-8")
    line = {"coherency_line_size": "64"}
    described(tmp_path, 0, level="1", type="Data", size="48K", shared_cpu_list="0,8", **line)
    described(tmp_path, 1, level="1", type="Instruction", size="32K", shared_cpu_list="0,8", **line)
    described(tmp_path, 2, level="2", type="Unified", size="1024K", shared_cpu_list="0,8", **line)
    described(tmp_path, 3, level="3", type="Unified", size="32M", shared_cpu_list="0-15", **line)
    found = read_caches(tmp_path)
    assert found.levels == (Cache(1, 48 << 10), Cache(2, 1 << 20), Cache(3, 32 << 20, shared_by=8))
    assert (found.l1_bytes, found.l2_bytes, found.l3_bytes) == (48 << 10, 1 << 20, 32 << 20)


def test_a_cluster_shares_its_second_level(tmp_path: Path) -> None:
    described(tmp_path, 2, level="2", type="Unified", size="4096K", shared_cpu_list="0-3", coherency_line_size="128")
    assert read_caches(tmp_path).levels == (Cache(2, 4 << 20, 128, 4),)
    assert read_caches(tmp_path).l2_bytes == 1 << 20


def test_what_is_not_known(tmp_path: Path) -> None:
    described(tmp_path, 0, level="1", type="Data", size="odd")
    described(tmp_path, 1, level="", type="Data", size="32K")
    found = read_caches(tmp_path)
    assert found == Caches() == read_caches(tmp_path / "nothing")
    assert (found.l1_bytes, found.l2_bytes, found.l3_bytes) == (32 << 10, 1 << 20, None)


def test_this_machine() -> None:
    assert host_caches() is host_caches()
    assert all(cache.bytes > 0 and cache.shared_by >= 1 for cache in host_caches().levels)


def test_what_is_taken_where_nothing_is_stated_is_said() -> None:
    arm, other = caches_of((), "aarch64"), caches_of((), "x86_64")
    assert (arm.l2_bytes, other.l2_bytes) == (256 << 10, 1 << 20)
    assert arm.assumption == "caches are not stated, taken are 32 KiB for L1 and 256 KiB for L2"
    first = caches_of((Cache(1, 64 << 10),), "arm64")
    assert first.assumption == "caches are not stated, taken are 256 KiB for L2"
    assert caches_of((Cache(1, 64 << 10), Cache(2, 1 << 20)), "arm64").assumption == ""
    assert arm.assumption in str(replace(host(), caches=arm)) and "not stated" not in str(
        replace(host(), caches=caches_of((Cache(1, 64 << 10), Cache(2, 1 << 20)), "arm64"))
    )
