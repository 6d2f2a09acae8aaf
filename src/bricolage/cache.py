"""Where bricolage keeps what it has learnt and compiled between runs."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import platformdirs

VARIABLE = "BRICOLAGE_CACHE"
"""Environment variable that names another cache folder."""


def cache_directory() -> Path:
    """The user's cache folder for bricolage, `$BRICOLAGE_CACHE` where that is set. It need not exist yet."""
    chosen = os.environ.get(VARIABLE)
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("bricolage", appauthor=False))


def compiled_directory(fingerprint: str, versions: Mapping[str, str]) -> Path:
    """Folder for compiled code, specific to the hardware and to the backends' versions (`Resources.cache`)."""
    text = "\n".join(f"{name} {version}" for name, version in sorted(versions.items()))
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return cache_directory() / "compiled" / f"{fingerprint}-{digest}"
