"""The cache folder stays within its limit, is its user's alone, and leaves alone what processes use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bricolage.base import sealed
from bricolage.base.cache import LIMIT_VARIABLE, UNFINISHED, VARIABLE, Hold, cache_directory, trespass, trim
from bricolage.errors import UnsafeCache


def fill(path: Path, size: int, used: float) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\0" * size)
    os.utime(path, (used, used))
    return path


def test_what_was_used_longest_ago_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setenv(LIMIT_VARIABLE, str(2.5 * 2**20 / 2**30))
    old = fill(tmp_path / "compiled" / "here" / "openvino-1" / "old.blob", 2**20, 1_000)
    folder = fill(tmp_path / "compiled" / "here" / "native-1" / "native-2" / "region.so", 2**20, 3_000)
    artifact = fill(tmp_path / "artifacts" / "a" / "weights.data", 2**20, 2_000)
    costs = fill(tmp_path / "costs.sqlite", 5 * 2**20, 10)
    trim()
    assert not old.exists()
    assert folder.exists() and artifact.exists() and costs.exists()


def test_within_the_limit_nothing_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setenv(LIMIT_VARIABLE, "not a number")
    kept = fill(tmp_path / "compiled" / "here" / "openvino-1" / "old.blob", 2**20, 1_000)
    trim()
    assert kept.exists()


TRIM = "from bricolage.base.cache import trim; trim()"


def trimmed_elsewhere(cache: Path) -> None:
    """Another process trims to nothing."""
    environment = {**os.environ, VARIABLE: str(cache), LIMIT_VARIABLE: "0"}
    subprocess.run([sys.executable, "-c", TRIM], env=environment, check=True, timeout=60)


def test_another_process_leaves_alone_what_is_held(tmp_path: Path) -> None:
    held = fill(tmp_path / "artifacts" / "held" / "weights.data", 10, 1_000)
    other = fill(tmp_path / "artifacts" / "other" / "weights.data", 10, 1_000)
    kept = Hold(held.parent)
    trimmed_elsewhere(tmp_path)
    assert held.exists() and not other.exists()
    kept.release()
    trimmed_elsewhere(tmp_path)
    assert not list((tmp_path / "artifacts").iterdir())


def test_a_hold_ends_with_its_owner_and_is_not_had_of_what_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "artifacts" / "a"
    folder.mkdir(parents=True)
    open_before = len(os.listdir("/proc/self/fd"))
    kept = Hold(folder)
    assert len(os.listdir("/proc/self/fd")) == open_before + 1
    del kept
    assert len(os.listdir("/proc/self/fd")) == open_before
    folder.rmdir()
    with pytest.raises(FileNotFoundError):
        Hold(folder)


def test_what_killed_processes_left_unfinished_goes_and_what_is_being_made_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    place = tmp_path / "compiled" / "here" / "native-1"
    left = fill(place / f"{UNFINISHED}abc" / "region.c", 10, 1_000)
    with sealed.making(place / "native-2") as folder:
        (folder / "region.c").write_text("int x;", encoding="utf-8")
        trim()
        assert folder.exists() and not left.parent.exists()
    assert sealed.intact(place / "native-2")


def test_a_new_cache_is_its_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "new"))
    before = os.umask(0)
    try:
        assert cache_directory().stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(before)


def test_a_cache_that_others_may_read_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "old"))
    (tmp_path / "old").mkdir()
    (tmp_path / "old").chmod(0o755)
    assert cache_directory().stat().st_mode & 0o777 == 0o700


def test_a_cache_that_others_may_write_to_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "shared"))
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    with pytest.raises(UnsafeCache, match=r"every user may write to it\. Name another folder with BRICOLAGE_CACHE"):
        cache_directory()


def test_a_cache_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "theirs"))
    (tmp_path / "theirs").mkdir(mode=0o700)
    owner = os.geteuid()
    monkeypatch.setattr("bricolage.base.cache.os.geteuid", lambda: owner + 1)
    with pytest.raises(UnsafeCache, match=f"it belongs to the user with number {owner}"):
        cache_directory()


def test_a_group_of_others_is_trespass_and_the_users_private_one_is_not(tmp_path: Path) -> None:
    tmp_path.chmod(0o770)
    facts = tmp_path.stat()
    import grp
    import pwd

    own = pwd.getpwuid(os.geteuid())
    private = facts.st_gid == own.pw_gid and grp.getgrgid(facts.st_gid).gr_name == own.pw_name
    assert (trespass(tmp_path) is None) == private
    if os.geteuid() == 0:
        os.chown(tmp_path, 0, 12345)
        assert trespass(tmp_path) == "the group with number 12345 may write to it"


def test_the_default_folder_is_that_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    monkeypatch.setattr(sys, "platform", "linux")
    assert cache_directory() == tmp_path / "elsewhere" / "bricolage"
    monkeypatch.setenv("XDG_CACHE_HOME", " ")
    assert cache_directory() == tmp_path / ".cache" / "bricolage"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_directory() == tmp_path / "Library" / "Caches" / "bricolage"
