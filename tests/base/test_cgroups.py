"""Quotas of control groups, from trees as Linux shows them in and outside of containers."""

from __future__ import annotations

from pathlib import Path

import pytest

from bricolage.base.cgroups import processor_limit
from bricolage.base.options import Options, available_cores

_V2 = "31 23 0:26 {root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
_V1 = "33 25 0:28 {root} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n34 25 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"  # noqa: E501


def tree(root: Path, groups: str, mounts: str, files: dict[str, str]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups, encoding="utf-8")
    (root / "proc/self/mountinfo").write_text(mounts, encoding="utf-8")
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


@pytest.mark.parametrize(("text", "limit"), [("150000 100000\n", 1.5), ("max 100000\n", None), ("50000 100000", 0.5)])
def test_version_2(tmp_path: Path, text: str, limit: float | None) -> None:
    made = tree(tmp_path, "0::/a/b\n", _V2.format(root="/"), {"a/b/cpu.max": text})
    assert processor_limit(made) == limit


def test_the_narrowest_of_all_groups_around_the_process_counts(tmp_path: Path) -> None:
    files = {"a/b/cpu.max": "400000 100000\n", "a/cpu.max": "200000 100000\n", "c/cpu.max": "100000 100000\n"}
    assert processor_limit(tree(tmp_path, "0::/a/b\n", _V2.format(root="/"), files)) == 2.0


def test_in_a_container_of_version_2_its_own_group_is_the_root(tmp_path: Path) -> None:
    made = tree(tmp_path, "0::/\n", _V2.format(root="/"), {"cpu.max": "300000 100000\n"})
    assert processor_limit(made) == 3.0


@pytest.mark.parametrize(("quota", "limit"), [("250000", 2.5), ("-1", None)])
def test_version_1(tmp_path: Path, quota: str, limit: float | None) -> None:
    files = {"cpu,cpuacct/a/cpu.cfs_quota_us": f"{quota}\n", "cpu,cpuacct/a/cpu.cfs_period_us": "100000\n"}
    groups = "5:memory:/other\n4:cpu,cpuacct:/a\n0::/\n"
    assert processor_limit(tree(tmp_path, groups, _V1.format(root="/"), files)) == limit


def test_in_a_container_of_version_1_the_path_is_the_hosts(tmp_path: Path) -> None:
    files = {"cpu,cpuacct/cpu.cfs_quota_us": "100000\n", "cpu,cpuacct/cpu.cfs_period_us": "50000\n"}
    groups, mounts = "4:cpu,cpuacct:/docker/1234\n", _V1.format(root="/docker/1234")
    assert processor_limit(tree(tmp_path / "inside", groups, mounts, files)) == 2.0
    assert processor_limit(tree(tmp_path / "namespace", "4:cpu,cpuacct:/\n", mounts, files)) == 2.0


@pytest.mark.parametrize("text", ["", "x y\n", "100000\n", "100000 0\n", "\x00"])
def test_what_is_not_a_quota_is_none(tmp_path: Path, text: str) -> None:
    assert (
        processor_limit(tree(tmp_path, "0::/\nnonsense\n", f"{_V2.format(root='/')}junk\n", {"cpu.max": text})) is None
    )
    assert processor_limit(tmp_path / "no such folder") is None


def test_threads_follow_the_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bricolage.base.options.os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    for limit, threads in ((None, 8), (2.9, 2), (0.5, 1), (64.0, 8)):
        monkeypatch.setattr("bricolage.base.options.processor_limit", lambda limit=limit: limit)
        assert available_cores() == threads == Options().threads
