"""Small facts of models' files that take long to compute: kept in the cache, and computed again where they are damaged."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from bricolage.base import scratch
from bricolage.base.cache import cache_directory

_DIGEST_BYTES = 32


def read_note(kind: str, name: str) -> bytes | None:
    """What was kept of this name; None where nothing was, or it is not any more what was written."""
    try:
        raw = _place_note(kind, name).read_bytes()
    except OSError:
        return None
    content = raw[_DIGEST_BYTES:]
    return content if hashlib.sha256(content).digest() == raw[:_DIGEST_BYTES] else None


def write_note(kind: str, name: str, content: bytes) -> None:
    """Keeps it, where the cache can be written: it can be computed again."""
    path = _place_note(kind, name)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with scratch.write_whole(path) as partial:
            partial.write_bytes(hashlib.sha256(content).digest() + content)


def _place_note(kind: str, name: str) -> Path:
    """Among what the cache's limit of size is for (`base.cache.trim`)."""
    return cache_directory() / "compiled" / "models" / kind / hashlib.sha256(name.encode()).hexdigest()[:32]
