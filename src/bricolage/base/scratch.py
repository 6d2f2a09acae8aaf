"""Folders for a while: each is locked by the process that made it, so that what a killed process left behind is told from
what is in use, and goes when the next one starts.

The lock is `flock` on the folder itself. It ends with the process however that ends, and costs no file of its own.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bricolage.base.undo import undo_on_failure
from bricolage.errors import NotWritable

_LOG = logging.getLogger(__name__)
_TEMPORARY = "bricolage-scratch-"
_NO_MORE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_held: dict[Path, tuple[int, int]] = {}
"""Folders of this process: the descriptor that holds the lock, and the process that made it."""

_swept: set[tuple[Path, str]] = set()


@contextmanager
def write_whole(path: Path) -> Iterator[Path]:
    """Yields where to write a file that is to lie at `path`: in the same folder, under a name that no other thread and no other
    process takes. Without an error it replaces what is at `path`, at once; with one, nothing of it stays. Where nothing was
    written, nothing changes.

    Raises:
        OSError: it cannot be moved there.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident():x}.partial")
    try:
        yield partial
        if partial.exists():
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def make(parent: Path, prefix: str = "") -> Path:
    """A fresh, empty folder in `parent`, readable by its owner alone, after those of the same prefix that no process holds any
    more have been removed. It goes with `remove`, or after this process has ended, when `make` is called again.

    Raises:
        OSError: `parent` cannot be written.
    """
    sweep(parent, prefix)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # another process swept it before the lock
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another process is sweeping it
            os.close(descriptor)
            continue
        except OSError as error:
            _LOG.debug("%s cannot be locked (%s), so no process will sweep it either", folder, error)
        if not _is_at(descriptor, folder):
            os.close(descriptor)
            continue
        _held[folder] = (descriptor, os.getpid())
        return folder


def temporary() -> Path:
    """A folder of `make` where this system keeps temporary files.

    Raises:
        OSError: nothing can be written there.
    """
    return make(Path(tempfile.gettempdir()), _TEMPORARY)


def owns(folder: Path) -> bool:
    """Whether this process made a folder that is still there."""
    return folder in _held


def remove(folder: Path) -> None:
    """Removes a folder that this process made, with all that is in it. In a process that was forked since then, nothing
    happens: the folder is its parent's."""
    descriptor, owner = _held.get(folder, (-1, os.getpid()))
    if owner != os.getpid():
        return
    shutil.rmtree(folder, ignore_errors=True)
    if _held.pop(folder, None) is not None:
        os.close(descriptor)


@contextmanager
def using(folder: Path, *, keep: bool = False) -> Iterator[Path]:
    """Within it work goes on in a folder of `make`, which is removed at the end; with `keep` only where the work fails. A
    disk that takes no more is reported as such everywhere.

    Raises:
        NotWritable: the disk is full, or has become read-only.
    """
    try:
        with undo_on_failure(lambda: remove(folder)):
            yield folder
    except OSError as error:
        if error.errno not in _NO_MORE:
            raise
        raise NotWritable(path=error.filename or folder, reason=error.strerror) from error
    if not keep:
        remove(folder)


def sweep(parent: Path, prefix: str = "") -> None:
    """Removes the folders in `parent` whose names begin with `prefix`, which belong to this user and are not locked."""
    _swept.add((parent, prefix))
    try:
        folders = [Path(entry.path) for entry in os.scandir(parent) if entry.name.startswith(prefix)]
    except OSError:
        return
    for folder in folders:
        if folder not in _held:
            _sweep_one(folder)


def _sweep_one(folder: Path) -> None:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # gone, no folder, or another user's
        return
    try:
        if os.fstat(descriptor).st_uid != os.getuid():
            return
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(descriptor, folder):
            _LOG.info("removing %s, which a run that was killed has left behind", folder)
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:  # in use, or on a file system without locks
        _LOG.debug("%s stays: %s", folder, error)
    finally:
        os.close(descriptor)


@atexit.register
def _remove_all() -> None:
    """What is still held when the interpreter ends goes now rather than at the next start; and what could not be swept at ours,
    because processes of a run that was killed were still writing while they died."""
    for folder in list(_held):
        remove(folder)
    for parent, prefix in _swept:
        sweep(parent, prefix)


def _is_at(descriptor: int, folder: Path) -> bool:
    """Whether the open folder is still the one that has this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), folder.stat())
    except OSError:
        return False
