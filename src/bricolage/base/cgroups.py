"""How much processor time Linux lets this process have: the quotas of its control groups, as containers set them.

A group with a quota of 150 ms in each period of 100 ms may use one and a half processors. Its affinity mask says nothing of that,
and threads beyond it do not run slower but stop, all of them, until the period ends. Both versions of control groups are read
(Linux, Documentation/admin-guide/cgroup-v2.rst and scheduler/sched-bwc.rst), and all groups around the process's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def processor_limit(root: Path = Path("/")) -> float | None:
    """Processors that the quotas allow, 0.5 for half of one; None where there is no quota, and on other systems.

    Args:
        root: folder in which `proc` and `sys` are.
    """
    limits = [limit for group in _groups(root) if (limit := _limit(group)) is not None]
    return min(limits, default=None)


def _groups(root: Path) -> Iterator[Path]:
    """Folders of the process's group and of all around it, as far as they are mounted here."""
    mounts = _mounts(root)
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        for mounted, folder in mounts.get("cpu" if controllers else "", []):
            within = PurePosixPath(path)
            # In a container the path may be the host's, of which only the end, or nothing, is mounted.
            inside = within.relative_to(mounted) if within.is_relative_to(mounted) else PurePosixPath()
            relative_parts = [part for part in inside.parts if part not in ("/", "..")]
            for depth in range(len(relative_parts), -1, -1):
                yield folder.joinpath(*relative_parts[:depth])


def _mounts(root: Path) -> dict[str, list[tuple[PurePosixPath, Path]]]:
    """Which part of a hierarchy is mounted where: of version 2 under "", of version 1 with processors under "cpu"."""
    mounts: dict[str, list[tuple[PurePosixPath, Path]]] = {}
    for line in _text(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        if kind[0] == "cgroup" and "cpu" not in kind[2].split(","):
            continue
        name = "" if kind[0] == "cgroup2" else "cpu"
        mounts.setdefault(name, []).append((PurePosixPath(fields[3]), root / fields[4].lstrip("/")))
    return mounts


def _limit(group: Path) -> float | None:
    """Processors that one group may use; None without a quota."""
    words = _text(group / "cpu.max").split() or [
        _text(group / "cpu.cfs_quota_us").strip(),
        _text(group / "cpu.cfs_period_us").strip(),
    ]
    try:
        quota, period = int(words[0]), int(words[1])
    except (ValueError, IndexError):  # "max", or there are no such files
        return None
    return quota / period if quota > 0 and period > 0 else None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace", encoding="utf-8")
    except OSError:
        return ""
