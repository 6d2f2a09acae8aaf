"""Requests to whoever serves a cluster, as files in a folder that only its owner may write to: the file system says who may ask.

A request is a file in `requests`, its answer one of the same name in `answers`; both come whole, by renaming. Who serves
holds a lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from bricolage import errors
from bricolage.base import scratch
from bricolage.base.cache import trespass
from bricolage.base.codec import DecodeError, JsonObject, parse

_LOCK = "serving"
_LARGEST = 1 << 24
_LOOK_S = 0.05
_TRIES = 10
_FORGOTTEN_S = 600.0
"""After so long an answer goes that was not fetched."""


def check_state(folder: Path) -> None:
    """Makes the folder where there is none, for its owner alone.

    Raises:
        UnsafeState: others may write to it, or it cannot be made.
    """
    try:
        for path in (folder, folder / "requests", folder / "answers", folder / "jobs"):
            path.mkdir(mode=0o700, parents=path == folder, exist_ok=True)
    except OSError as error:
        raise errors.UnsafeState(folder=folder, reason=error.strerror or str(error)) from error
    if reason := trespass(folder):
        raise errors.UnsafeState(folder=folder, reason=reason)


class Counter:
    """The side that serves: only one process for a folder.

    Raises:
        AlreadyServed: another process does.
        UnsafeState: others may write to the folder.
    """

    def __init__(self, folder: Path) -> None:
        check_state(folder)
        self.folder = folder
        self._lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        for attempt in range(_TRIES):
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:  # who asks whether anybody serves holds it for a moment
                if attempt + 1 < _TRIES:
                    time.sleep(_LOOK_S)
                    continue
                os.close(self._lock)
                raise errors.AlreadyServed(folder=folder) from error
        self._swept = 0.0

    def __enter__(self) -> Counter:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)

    def requests(self) -> Iterator[tuple[str, JsonObject]]:
        """What is asked, oldest first. A request stays until it is answered."""
        self._sweep()
        waiting: list[tuple[int, str]] = []
        for entry in os.scandir(self.folder / "requests"):
            with contextlib.suppress(FileNotFoundError):  # taken back
                waiting.append((entry.stat().st_mtime_ns, entry.name))
        for _, name in sorted(pair for pair in waiting if not pair[1].startswith(".")):
            path = self.folder / "requests" / name
            try:
                if path.stat().st_size > _LARGEST:
                    raise DecodeError("it is too large")
                request = parse(path.read_bytes())
                if not isinstance(request, dict):
                    raise DecodeError("it is no table")
            except OSError:
                continue  # taken back
            except DecodeError as error:
                self.refuse(name, errors.BadJob(path=path, reason=str(error)))
                continue
            yield name, request

    def answer(self, name: str, answer: JsonObject) -> None:
        """Answers a request; it is over then."""
        with scratch.write_whole(self.folder / "answers" / name) as partial:
            partial.write_text(json.dumps(answer), encoding="utf-8")
        (self.folder / "requests" / name).unlink(missing_ok=True)

    def refuse(self, name: str, error: errors.BricolageError) -> None:
        """Answers with an error."""
        facts = {key: value if isinstance(value, int | float) else str(value) for key, value in error.facts.items()}
        self.answer(name, {"error": type(error).__name__, "facts": facts})

    def _sweep(self) -> None:
        now = time.time()
        if now < self._swept + _FORGOTTEN_S:
            return
        self._swept = now
        for entry in os.scandir(self.folder / "answers"):
            with contextlib.suppress(FileNotFoundError):  # fetched
                if entry.stat().st_mtime < now - _FORGOTTEN_S:
                    Path(entry.path).unlink()


def is_served(folder: Path) -> bool:
    """Whether a process serves from a folder."""
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(lock)


def ask(folder: Path, request: JsonObject, timeout_s: float = 60.0) -> JsonObject:
    """Asks whoever serves from a folder, and waits for the answer.

    Raises:
        NotServed: no process does; or the one that does ends meanwhile.
        NoAnswer: it takes longer than `timeout_s`.
        BricolageError: the answer is an error.
    """
    if not is_served(folder):
        raise errors.NotServed(folder=folder)
    name = uuid.uuid4().hex
    request_path, answer_path = folder / "requests" / name, folder / "answers" / name
    try:
        with scratch.write_whole(request_path) as partial:
            partial.write_text(json.dumps(request), encoding="utf-8")
    except OSError as error:
        raise errors.UnsafeState(folder=folder, reason=error.strerror or str(error)) from error
    end = time.monotonic() + timeout_s
    while not answer_path.exists():
        time.sleep(_LOOK_S)
        if time.monotonic() > end or not is_served(folder):
            request_path.unlink(missing_ok=True)
            if answer_path.exists():
                break
            if time.monotonic() > end:
                raise errors.NoAnswer(folder=folder, seconds=f"{timeout_s:.0f}")
            raise errors.NotServed(folder=folder)
    answer: JsonObject = parse(answer_path.read_bytes())
    answer_path.unlink(missing_ok=True)
    if "error" in answer:
        kind, facts = getattr(errors, str(answer["error"]), None), answer.get("facts")
        if isinstance(kind, type) and issubclass(kind, errors.BricolageError) and isinstance(facts, dict):
            raise kind(**facts)
        raise errors.JobRefused(name="?", reason=str(answer))
    return answer
