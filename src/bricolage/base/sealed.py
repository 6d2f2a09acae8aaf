"""Folders that are read back later and must be what was written: compiled code, unpacked artifacts.

A sealed folder holds a list of its files with their sizes and SHA-256 digests. It is filled under another name, flushed to the
disk, sealed and renamed into place, so it is there whole or not at all. Before anything of it is read, it is checked against its
seal; what does not fit is thrown away, to be made again.

Every file is read through and compared by digest, but for large ones that are as they were left when they were last found
right: same size, inode, time of modification and time of change (`_Stamp`). To write to a file, cut it or replace it
changes one of these. What a disk changes by itself, without any write, is noticed in small files, and not in large ones.
Against people who may write to the folder nothing of this protects: its owner and mode do (`cache.trespass`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

from bricolage.base import scratch
from bricolage.base.cache import UNFINISHED, Hold, discard, trespass
from bricolage.base.codec import DecodeError, Matching, Within, decode, encode, parse

T = TypeVar("T")

SEAL = ".seal"
_FORMAT = 1
_SMALL = 4 << 20  # bytes: what is not larger is read in some milliseconds
_LARGEST_SEAL = 1 << 24


@dataclass(frozen=True)
class _Stamp:
    """What the file system says of a file that was found right. Any write changes it."""

    inode: int
    modified_ns: int
    changed_ns: int


@dataclass(frozen=True)
class _File:
    size: Annotated[int, Within(0, 2**60)]
    sha256: Annotated[str, Matching(r"[0-9a-f]{64}", "SHA-256 digest")]
    stamp: _Stamp


@dataclass(frozen=True)
class _Seal:
    format: Annotated[int, Within(_FORMAT, _FORMAT)]
    files: Mapping[str, _File]
    """By name relative to the folder, with / between the parts."""


def intact(folder: Path, ignored: str = "") -> bool:
    """Whether a folder is there and exactly what was sealed: no file is missing, other than it was, or added (but those whose names
    begin with `ignored`, where that is given), and only this user may write to it."""
    if trespass(folder) is not None:
        return False
    try:
        raw = (folder / SEAL).open("rb")
        with raw:
            seal = decode(_Seal, parse(raw.read(_LARGEST_SEAL)))
        present_files = {
            name for name in _files(folder) if name in seal.files or not (ignored and name.startswith(ignored))
        }
        if present_files != set(seal.files):
            return False
        restamped = dict(seal.files)
        for name, sealed_file in seal.files.items():
            with (folder / name).open("rb") as file:
                facts = os.fstat(file.fileno())
                if facts.st_size != sealed_file.size:
                    return False
                if sealed_file.size > _SMALL and _stamp(facts) == sealed_file.stamp:
                    continue
                if hashlib.file_digest(file, "sha256").hexdigest() != sealed_file.sha256:
                    return False
                if sealed_file.size > _SMALL:
                    restamped[name] = _File(sealed_file.size, sealed_file.sha256, _stamp(facts))
    except (OSError, DecodeError):
        return False
    if restamped != seal.files:
        with contextlib.suppress(OSError):  # a copy of a cache, say: next time it need not be read again
            _write(folder / SEAL, _Seal(_FORMAT, restamped))
    return True


@contextlib.contextmanager
def making(target: Path) -> Iterator[Path]:
    """A fresh folder to be filled. At the end it is sealed and becomes `target`; a folder that is there already was made by another
    process meanwhile, is as good and stays, unless it is damaged. After an exception nothing is left.

    Raises:
        OSError: the disk is full or the folder is not writable.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=target.parent))
    held = Hold(staging)
    try:
        yield staging
        _seal(staging)
        for _ in range(2):
            try:
                staging.rename(target)
                _flush(target.parent)
                return
            except OSError:
                if not target.exists():
                    raise
            if intact(target):
                return
            discard(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        held.release()


def keep_sealed(target: Path, make: Callable[[Path], object], load: Callable[[Path], T]) -> T:
    """What `load` makes of the folder `target`, which `make` fills where it is missing, damaged or cannot be loaded.

    Raises:
        OSError: the disk is full or the folder is not writable.
        Whatever `make` raises, and `load` of a folder that was just made.
    """
    if intact(target):
        try:
            return load(target)
        except Exception:
            discard(target)  # right as it was made, and useless all the same: of another system, perhaps
    else:
        discard(target)
    with making(target) as folder:
        make(folder)
    return load(target)


def _seal(folder: Path) -> None:
    files: dict[str, _File] = {}
    for name in sorted(_files(folder)):
        with (folder / name).open("rb") as file:
            os.fsync(file.fileno())
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            facts = os.fstat(file.fileno())
        files[name] = _File(facts.st_size, digest, _stamp(facts))
    _write(folder / SEAL, _Seal(_FORMAT, files))
    for path in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        _flush(path)


def _files(folder: Path) -> Iterator[str]:
    """Names of everything in a folder that is not a folder itself."""
    for path in folder.rglob("*"):
        if path.is_symlink() or not path.is_dir():
            name = path.relative_to(folder).as_posix()
            if name != SEAL:
                yield name


def _stamp(facts: os.stat_result) -> _Stamp:
    return _Stamp(facts.st_ino, facts.st_mtime_ns, facts.st_ctime_ns)


def _write(path: Path, seal: _Seal) -> None:
    with scratch.write_whole(path) as partial, partial.open("w", encoding="utf-8") as file:
        json.dump(encode(seal), file)
        file.flush()
        os.fsync(file.fileno())


def _flush(folder: Path) -> None:
    """Makes the names in a folder last, where the system has that."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
