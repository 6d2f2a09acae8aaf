"""Sizes that were never tried: a program for them is run in a process of its own before it is run in the caller's.

A plan is measured and checked at its sizes. At others a runtime may be wrong, or end the whole process: an empty tensor overruns
a buffer, a larger one a table. So for each open dimension there are four classes of sizes: 0, 1, larger than planned, and
others; and the first time that a combination of classes is asked for, a trial (`bricolage.runtime.trial`) compiles, runs and
frees the program, and compares a small model's answer with the float64 reference. If that fails the next backend is tried. Who
was right is remembered, by this process and in the cache.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from bricolage.backends import registry
from bricolage.backends.interface import Resources
from bricolage.base import scratch
from bricolage.base.cache import cache_directory
from bricolage.base.codec import encode
from bricolage.plan.plan import Plan
from bricolage.plan.program_step import Step
from bricolage.runtime.process_environment import TRY_SIZES, environment
from bricolage.work.values import ModelValue

_LOG = logging.getLogger(__name__)
LIMIT_S = 120.0
"""Seconds for one trial, with the time that its backend takes to be loaded."""

_WAYS = 2
"""Raised whenever the ways to run a plan, or their order, change (`Programs._ways`)."""

Class = tuple[tuple[str, str], ...]
"""For each open dimension that of its size."""


def size_class(sizes: Mapping[str, int], planned: Sequence[Mapping[str, int]]) -> Class:
    """The class of sizes, given those of the buckets of a plan."""

    def one(name: str, size: int) -> str:
        if size in (0, 1):
            return str(size)
        return "larger" if size > max((bucket.get(name, 0) for bucket in planned), default=0) else "other"

    return tuple((name, one(name, size)) for name, size in sorted(sizes.items()))


class Tried:
    """Which of the ways to run a plan is right for a class of sizes, as far as that was tried. Safe to use from several threads."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._known: dict[Class, int] | None = None
        self._lock = threading.Lock()

    def get(self, which: Class) -> int | None:
        """The number of the way that is right."""
        with self._lock:
            return self._read().get(which)

    def put(self, which: Class, way: int) -> None:
        """Remembers it, for other processes too where the cache can be written."""
        with self._lock:
            ways = self._read()
            ways[which] = way
            try:
                self._file.parent.mkdir(parents=True, exist_ok=True)
                with scratch.write_whole(self._file) as draft:
                    draft.write_text(json.dumps([[list(key), value] for key, value in ways.items()]), encoding="utf-8")
            except OSError as error:
                _LOG.debug("what was tried is not kept: %s", error)

    def _read(self) -> dict[Class, int]:
        if self._known is None:
            self._known = {}
            facts = [
                _WAYS,
                encode(self._plan),
                {backend.name: backend.table_version() for backend in registry.available()},
            ]
            digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]
            self._file = cache_directory() / "sizes" / f"{digest}.json"
            try:
                stored = json.loads(self._file.read_text(encoding="utf-8"))
                self._known = {tuple((str(n), str(c)) for n, c in key): int(way) for key, way in stored}
            except FileNotFoundError:
                pass
            except (OSError, ValueError, TypeError) as error:
                _LOG.debug("%s is not used: %s", self._file, error)
        return self._known


def trying() -> bool:
    """Whether sizes are tried in another process first."""
    return os.environ.get(TRY_SIZES, "1") != "0"


def trial(
    model: Path,
    steps: Sequence[Step],
    ends: tuple[Sequence[str], Sequence[str]],
    resources: Resources,
    bound: float,
    arrays: Mapping[str, ModelValue] | None,
) -> str:
    """Runs a program in a process of its own; why it may not be run here, empty where it may.

    Args:
        model: the whole graph at these sizes.
        steps: the program.
        ends: names of its inputs and outputs.
        resources: what it may use.
        bound: relative error accepted.
        arrays: inputs; random ones are drawn where there are none.
    """
    from bricolage.verify.named_arrays import save_tensors

    folder = scratch.temporary()
    try:
        if arrays is not None:
            save_tensors(folder / "inputs.npz", arrays)
        request = {
            "model": str(model),
            "steps": [encode(step) for step in steps],
            "inputs": list(ends[0]),
            "outputs": list(ends[1]),
            "threads": resources.threads,
            "alone": resources.alone,
            "device": encode(resources.device),
            "bound": bound,
            "arrays": None if arrays is None else str(folder / "inputs.npz"),
            "register": registry.registered_references(),
            "parent": os.getpid(),
        }
        (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
        used = {step.implementation.backend for step in steps}
        return _run(folder, {**environment(used, resources), "TMPDIR": str(folder)})
    finally:
        scratch.remove(folder)


def _run(folder: Path, variables: Mapping[str, str]) -> str:
    command = [sys.executable, "-P", "-m", "bricolage.runtime.trial", str(folder)]
    log = folder / "log"
    try:
        with log.open("wb") as file:
            ended = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=dict(variables),
                timeout=LIMIT_S,
                start_new_session=True,
                check=False,
            )
    except subprocess.TimeoutExpired:
        return f"it took longer than {LIMIT_S:.0f} s"
    except OSError as error:  # where no process may be started, there is no other way than to run it here
        _LOG.warning("sizes that were never tried run in this process, since no other can be started (%s)", error)
        return ""
    answer = folder / "answer.json"
    if answer.exists():
        return str(json.loads(answer.read_text(encoding="utf-8"))["reason"])
    if ended.returncode < 0:
        return f"its process died ({signal.Signals(-ended.returncode).name})"
    log_lines = log.read_text(errors="replace", encoding="utf-8").strip().splitlines()
    return f"its process ended with code {ended.returncode}" + (f": {log_lines[-1][:200]}" if log_lines else "")
