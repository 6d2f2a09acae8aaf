"""Where bricolage keeps what it has learnt and compiled between runs."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import platformdirs

VARIABLE = "BRICOLAGE_CACHE"
"""Environment variable that names another cache folder."""


LIMIT_VARIABLE = "BRICOLAGE_CACHE_LIMIT"
"""Environment variable with the size in GiB that compiled code and unpacked artifacts may take up together."""
_LIMIT_GIB = 10.0


def cache_directory() -> Path:
    """The user's cache folder for bricolage, `$BRICOLAGE_CACHE` where that is set. It need not exist yet."""
    chosen = os.environ.get(VARIABLE)
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("bricolage", appauthor=False))


def compiled_directory(fingerprint: str, backend: str, version: str) -> Path:
    """Folder for code that a backend of that version compiled for a device (`Resources.cache`): what was compiled
    while measuring is found when running, whatever else is installed."""
    digest = hashlib.sha256(version.encode()).hexdigest()[:12]
    return cache_directory() / "compiled" / fingerprint / f"{backend}-{digest}"


def trim() -> None:
    """Deletes compiled code and unpacked artifacts, those first that were used longest ago, until they fit the limit.

    What another process has open stays readable to it; what it looks for later, it compiles again.
    """
    try:
        limit = float(os.environ.get(LIMIT_VARIABLE, _LIMIT_GIB)) * 2**30
    except ValueError:
        limit = _LIMIT_GIB * 2**30
    root = cache_directory()
    found = [_used(entry) for entry in (*root.glob("compiled/*/*/*"), *root.glob("artifacts/*"))]
    total = sum(size for _, size, _ in found)
    for _, size, entry in sorted(found, key=lambda item: item[0]):
        if total <= limit:
            return
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
        total -= size


def _used(entry: Path) -> tuple[float, int, Path]:
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
