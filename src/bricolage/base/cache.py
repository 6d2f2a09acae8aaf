"""The folder with measurements and compiled code that are kept between runs; only its user may access it."""

from __future__ import annotations

import contextlib
import fcntl
import grp
import hashlib
import os
import pwd
import secrets
import shutil
import stat
import sys
import threading
import weakref
from pathlib import Path

from bricolage.errors import UnsafeCache

VARIABLE = "BRICOLAGE_CACHE"
"""Environment variable that names another cache folder."""


LIMIT_VARIABLE = "BRICOLAGE_CACHE_LIMIT"
"""Environment variable with the size in GiB that compiled code and unpacked artifacts may take up together."""
UNFINISHED = ".making-"
"""How the names of folders begin that are being filled or removed."""
_LIMIT_GIB = 10.0
_MACHINE = "machine"
_MACHINE_LETTERS = 16
_OF_THIS_PROCESS = secrets.token_hex(_MACHINE_LETTERS // 2)


def cache_directory() -> Path:
    """The user's cache folder for bricolage, `$BRICOLAGE_CACHE` where that is set. It is made, for this user alone, where that is
    possible; one that others may only read is closed to them.

    Raises:
        UnsafeCache: it belongs to another user, or others may write to it: code is loaded from there.
    """
    chosen = os.environ.get(VARIABLE)
    folder = Path(chosen).expanduser() if chosen else _default_folder()
    with contextlib.suppress(OSError):
        if not folder.exists():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    reason = trespass(folder)
    if reason is not None:
        raise UnsafeCache(path=folder, reason=reason)
    with contextlib.suppress(OSError):
        if stat.S_IMODE(folder.stat().st_mode) & 0o077:
            folder.chmod(0o700)
    return folder


def _default_folder() -> Path:
    """Where the system keeps a user's caches: by the XDG base directories, or as macOS has it."""
    if sys.platform == "darwin":
        return Path("~/Library/Caches/bricolage").expanduser()
    home = os.environ.get("XDG_CACHE_HOME", "").strip()
    return Path(home or "~/.cache").expanduser() / "bricolage"


def machine_id() -> str:
    """A random text that identifies this machine, as long as its cache folder is kept; for this process alone where the folder
    cannot be written."""
    file = cache_directory() / _MACHINE
    for _ in range(2):
        with contextlib.suppress(OSError):
            identifier = file.read_text(encoding="utf-8").strip()
            if identifier:
                return identifier[:_MACHINE_LETTERS]
        draft = file.with_name(f"{UNFINISHED}machine-{os.getpid()}-{threading.get_ident()}")
        with contextlib.suppress(OSError):
            draft.write_text(secrets.token_hex(_MACHINE_LETTERS // 2) + "\n", encoding="utf-8")
            try:
                os.link(draft, file)  # the first process wins
            finally:
                draft.unlink()
    return _OF_THIS_PROCESS


def trespass(folder: Path) -> str | None:
    """Why a folder cannot be trusted to hold only what this user put there: who else may write to it. None where no one may, and
    where it does not exist."""
    try:
        facts = folder.stat()
    except OSError:
        return None
    if facts.st_uid != os.geteuid():
        return f"it belongs to the user with number {facts.st_uid}"
    if facts.st_mode & stat.S_IWOTH:
        return "every user may write to it"
    if facts.st_mode & stat.S_IWGRP and not _own_group(facts.st_gid):
        return f"the group with number {facts.st_gid} may write to it"
    return None


def _own_group(number: int) -> bool:
    """Whether a group is the user's private one, as many systems give one to each user: of the user's name, without other
    members."""
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(number)
    except KeyError:
        return False
    return (group.gr_name, group.gr_gid) == (user.pw_name, user.pw_gid) and not set(group.gr_mem) - {user.pw_name}


def compiled_directory(fingerprint: str, backend: str, version: str) -> Path:
    """Folder for code that a backend of that version compiled for a device (`Resources.cache`): what was compiled
    while measuring is found when running, whatever else is installed."""
    digest = hashlib.sha256(version.encode()).hexdigest()[:12]
    return cache_directory() / "compiled" / fingerprint / f"{backend}-{digest}"


class Hold:
    """Keeps a folder of the cache from being trimmed by any process, as long as the object lives or until it is released. Not a
    lock among those who hold it."""

    def __init__(self, folder: Path) -> None:
        """Raises FileNotFoundError: the folder is gone, or about to go."""
        descriptor = os.open(folder, os.O_RDONLY)
        self.release = weakref.finalize(self, os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), folder.stat()):
                return
        except BlockingIOError:
            pass
        except OSError:  # a file system without locks: then nothing is held, and trimming finds nothing held
            return
        self.release()
        raise FileNotFoundError(f"'{folder}' is being removed")


def discard(entry: Path) -> None:
    """Removes a file or a folder of the cache; a folder under another name first, so that no process meets half of it. What
    processes have open of it stays readable to them."""
    with contextlib.suppress(OSError):
        if entry.is_dir() and not entry.name.startswith(UNFINISHED):
            entry = entry.rename(entry.with_name(f"{UNFINISHED}{os.getpid()}-{entry.name}"))
        elif not entry.is_dir():
            entry.unlink(missing_ok=True)
    shutil.rmtree(entry, ignore_errors=True)


def trim() -> None:
    """Deletes compiled code and unpacked artifacts, those first that were used longest ago, until they fit the limit, and what
    processes that were killed left unfinished.

    Artifacts that a process has loaded stay. What it has open of compiled code stays readable to it; what it looks for later, it
    compiles again.
    """
    try:
        limit = float(os.environ.get(LIMIT_VARIABLE, _LIMIT_GIB)) * 2**30
    except ValueError:
        limit = _LIMIT_GIB * 2**30
    root = cache_directory()
    entries = [_measure_use(entry) for entry in (*root.glob("compiled/*/*/*"), *root.glob("artifacts/*"))]
    total = sum(size for _, size, _ in entries)
    for _, size, entry in sorted(entries, key=lambda item: item[0]):
        if (total > limit or entry.name.startswith(UNFINISHED)) and _remove_entry(entry):
            total -= size


def _remove_entry(entry: Path) -> bool:
    """Removes something of the cache, unless it is held."""
    if not entry.is_dir():
        discard(entry)
        return True
    try:
        descriptor = os.open(entry, os.O_RDONLY)
    except OSError:
        return False
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        discard(entry)
        return True
    finally:
        os.close(descriptor)


def _measure_use(entry: Path) -> tuple[float, int, Path]:
    """When something was last used, its bytes, and its path. What vanishes meanwhile counts nothing."""
    last, size = 0.0, 0
    for path in (entry, *(entry.rglob("*") if entry.is_dir() else ())):
        try:
            facts = path.stat()
        except OSError:
            continue
        last = max(last, facts.st_mtime, facts.st_atime if path.is_file() else 0.0)
        size += facts.st_size if path.is_file() else 0
    return last, size, entry
