"""Sealed folders: whole or not at all, and never read when they are not what was written."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bricolage.base import sealed
from bricolage.base.cache import UNFINISHED

LARGE = b"w" * (sealed._SMALL + 1)


def fill(folder: Path) -> None:
    (folder / "small").write_bytes(b"code")
    (folder / "large").write_bytes(LARGE)
    (folder / "deep").mkdir()
    (folder / "deep" / "er").write_bytes(b"x")


@pytest.fixture
def made(tmp_path: Path) -> Path:
    with sealed.making(tmp_path / "cache" / "entry") as folder:
        fill(folder)
    return tmp_path / "cache" / "entry"


def test_what_was_made_is_whole(made: Path) -> None:
    assert sealed.intact(made)
    assert [path.name for path in made.parent.iterdir()] == ["entry"]
    assert (made / "deep" / "er").read_bytes() == b"x"


def keeping_its_times(path: Path, data: bytes) -> None:
    facts = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a cut small file": lambda folder: (folder / "small").write_bytes(b"co"),
    "a changed small file": lambda folder: keeping_its_times(folder / "small", b"cod3"),
    "a cut large file": lambda folder: os.truncate(folder / "large", 5),
    "a changed large file": lambda folder: keeping_its_times(folder / "large", LARGE[:-1] + b"v"),
    "a missing file": lambda folder: (folder / "deep" / "er").unlink(),
    "one more file": lambda folder: (folder / "deep" / "more").write_bytes(b""),
    "a link": lambda folder: (folder / "link").symlink_to(folder / "small"),
    "an empty folder": lambda folder: [shutil.rmtree(folder), folder.mkdir()],
    "no seal": lambda folder: (folder / sealed.SEAL).unlink(),
    "an empty seal": lambda folder: (folder / sealed.SEAL).write_bytes(b""),
    "a seal of something else": lambda folder: (folder / sealed.SEAL).write_text(
        '{"format": 1, "files": {}}', encoding="utf-8"
    ),
    "a folder that others may write to": lambda folder: folder.chmod(0o777),
    "nothing": lambda folder: shutil.rmtree(folder),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_damage_is_noticed_and_mended(made: Path, how: str) -> None:
    DAMAGE[how](made)
    assert not sealed.intact(made)
    assert sealed.keep_sealed(made, fill, lambda folder: (folder / "small").read_bytes()) == b"code"
    assert sealed.intact(made)
    assert [path.name for path in made.parent.iterdir()] == ["entry"]


def test_a_copy_is_read_through_once(made: Path) -> None:
    copy = made.with_name("copy")
    shutil.copytree(made, copy)
    before = (copy / sealed.SEAL).read_bytes()
    assert sealed.intact(copy)
    assert (copy / sealed.SEAL).read_bytes() != before, "it has its own stamps now"
    assert sealed.intact(copy)


def test_what_is_whole_is_not_made_again(made: Path) -> None:
    def never(folder: Path) -> None:
        raise AssertionError("it is there")

    assert sealed.keep_sealed(made, never, lambda folder: folder) == made


def test_what_cannot_be_loaded_is_made_again_once(made: Path) -> None:
    loads: list[Path] = []

    def load(folder: Path) -> str:
        loads.append(folder)
        if len(loads) == 1:
            raise OSError("invalid ELF header")
        return "loaded"

    assert sealed.keep_sealed(made, fill, load) == "loaded" and len(loads) == 2

    def useless(folder: Path) -> None:
        raise OSError("no system can load it")

    with pytest.raises(OSError, match="no system"):
        sealed.keep_sealed(made, fill, useless)


def test_beside_is_what_others_may_add(made: Path) -> None:
    (made / "region-1.onnx").write_bytes(b"")
    assert not sealed.intact(made)
    assert sealed.intact(made, ignored="region-")


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), sealed.making(tmp_path / "entry"):
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


def test_the_first_of_two_stays(made: Path) -> None:
    with sealed.making(made) as folder:
        (folder / "small").write_bytes(b"another")
    assert (made / "small").read_bytes() == b"code"
    (made / "small").write_bytes(b"torn")
    with sealed.making(made) as folder:
        fill(folder)
    assert (made / "small").read_bytes() == b"code", "but not when it is damaged"
    assert not list(made.parent.glob(f"{UNFINISHED}*"))
