"""Where one injection happens: a cache, a temporary folder and an artifact of its own, and victims that work there.

A victim is a fork of this process, which has imported bricolage but no framework: it runs the command line as a fresh process
does, without the seconds of importing. Whatever it says it has finished, it writes down the moment the database has it.
"""

from __future__ import annotations

import atexit
import os
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil
from onnx import TensorProto, helper

import bricolage.api.optimize
import bricolage.cli.progress_bars
import bricolage.report.tables
from bricolage.base.cache import VARIABLE
from bricolage.cli.main import app
from bricolage.costs.database import FILE, Database
from bricolage.costs.entries import UNSTORED, Cost, CostKey
from bricolage.verify.reference import LIBRARY_VARIABLE

_TOKEN = "BRICOLAGE_FAULTS"
_GRACE_S = 20.0
"""For processes to be gone after a fault: the machine may be busy."""
_LONGEST_S = 400.0
"""A victim that takes longer hangs."""
Before = Callable[[], object]
"""Done in a victim before it begins."""


class Broken(AssertionError):
    """Something did not hold after a fault."""


class Victim:
    """A forked process that runs a command."""

    def __init__(self, pid: int, log: Path) -> None:
        self.pid = pid
        self.log = log
        self.began = time.monotonic()
        self.status: int | None = None

    def wait(self, seconds: float = _LONGEST_S) -> int:
        """Its exit code, negative for a signal. A victim that does not end is broken."""
        end = time.monotonic() + seconds
        while self.status is None:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                self.status = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > end:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                raise Broken(f"it hangs: {self.words()}")
            else:
                time.sleep(0.02)
        return self.status

    def running_for(self, seconds: float) -> bool:
        """Waits until it has run for so long; False if it ended before."""
        while time.monotonic() < self.began + seconds:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                self.status = os.waitstatus_to_exitcode(status)
                return False
            time.sleep(0.01)
        return True

    def words(self) -> str:
        """The end of what it said."""
        return self.log.read_text(errors="replace", encoding="utf-8")[-1500:]


class Place:
    """One injection's folders and checks."""

    def __init__(self, root: Path, cache: Path | None = None) -> None:
        self.root, self.token = root, f"{root}-{os.getpid()}"
        self.cache = cache or root / "cache"
        self.temporary, self.acknowledged = root / "tmp", root / "acknowledged"
        for folder in (root, self.cache, self.temporary):
            folder.mkdir(parents=True, exist_ok=True)
        self.model = _model(root / "net.onnx")
        self._logs = 0

    @property
    def database(self) -> Path:
        """The cost database."""
        return self.cache / FILE

    def artifact(self, name: str = "out") -> Path:
        """Where a victim writes its artifact."""
        return self.root / f"{name}.bricolage"

    def optimize(self, *more: str, name: str = "out", before: Before | None = None) -> Victim:
        """A victim that optimises the model."""
        words = ["optimize", str(self.model), "-o", str(self.artifact(name)), "--backend", "onnxruntime"]
        return self.start([*words, "--threads", "1", "--budget", "1s", *more], before)

    def start(self, words: Sequence[str], before: Before | None = None) -> Victim:
        """A victim that runs a command."""
        return self.run(lambda: app(list(words), standalone_mode=True), before)

    def run(self, act: Callable[[], object], before: Before | None = None) -> Victim:
        """A victim that does something."""
        self._logs += 1
        log = self.root / f"log-{self._logs}"
        log.touch()
        pid = os.fork()
        if pid:
            return Victim(pid, log)
        code = 99
        try:
            self._settle(log)
            if before is not None:
                before()
            act()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _settle(self, log: Path) -> None:
        """In the victim: folders, streams, and a note of everything that is finished."""
        os.environ.update({VARIABLE: str(self.cache), "TMPDIR": str(self.temporary), _TOKEN: self.token})
        os.environ[LIBRARY_VARIABLE] = (
            "onnx"  # half of a run's life would be the import of torch, where little can be lost
        )
        tempfile.tempdir = None
        file = os.open(log, os.O_WRONLY | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        note = os.open(self.acknowledged, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        put = Database.put

        def noted(database: Database, key: CostKey, cost: Cost, machine: str | None = None) -> None:
            put(database, key, cost, machine)
            on_disk = database._storage.execute("PRAGMA database_list")[0][2]
            if cost.outcome not in UNSTORED and on_disk:
                os.write(note, f"{key.digest()}\n".encode())

        Database.put = noted  # type: ignore[method-assign]

    # --- what must hold ---------------------------------------------------------------------------------------------

    def check(self) -> None:
        """After a fault: no orphans, no damaged database, nothing lost, no torn artifact."""
        self._check_orphans()
        self._check_database()
        for artifact in self.root.glob("*.bricolage"):
            self._check_artifact(artifact)

    def check_next_start(self, *more: str) -> None:
        """The next run is clean, and after it nothing is left of it or of those before."""
        victim = self.optimize(*more)
        code = victim.wait()
        if code not in (0, 3):
            raise Broken(f"the next run ends with {code}: {victim.words()}")
        if "Traceback" in victim.words() or "broken" in victim.words():
            raise Broken(f"the next run complains: {victim.words()}")
        self.check()
        if not self.artifact().exists():
            raise Broken("the next run writes no artifact")
        left = [*self.cache.glob("work/*"), *self.temporary.iterdir()]
        left += [
            *self.cache.rglob(".making-*"),
            *self.cache.glob("crash-*"),
        ]
        left += self.root.glob(".*.partial")
        if left:
            raise Broken(f"left behind: {', '.join(str(path.relative_to(self.root)) for path in left)}")

    def _check_orphans(self) -> None:
        end = time.monotonic() + _GRACE_S
        while found := self.workers():
            if time.monotonic() > end:
                raise Broken(f"orphans: {[process.cmdline() for process in found]}")
            time.sleep(0.05)

    def workers(self) -> list[psutil.Process]:
        """Processes that victims have started and that still live."""
        token, found = f"{_TOKEN}={self.token}".encode(), []
        for folder in Path("/proc").iterdir():
            try:
                if folder.name.isdigit() and token in (folder / "environ").read_bytes().split(b"\0"):
                    process = psutil.Process(int(folder.name))
                    if process.status() != psutil.STATUS_ZOMBIE:
                        found.append(process)
            except (OSError, psutil.Error):
                continue
        return found

    def _check_database(self) -> None:
        noted = self.acknowledged.read_text(encoding="utf-8").split() if self.acknowledged.exists() else []
        if not self.database.exists():
            if noted:
                raise Broken("the database is gone")
            return
        try:
            with closing(sqlite3.connect(self.database)) as connection:
                (verdict,) = connection.execute("PRAGMA integrity_check").fetchone()
                tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
                known = (
                    {digest for (digest,) in connection.execute("SELECT digest FROM measured")}
                    if "measured" in tables
                    else set()
                )
        except sqlite3.DatabaseError as error:
            raise Broken(f"the database is damaged: {error}") from error
        if verdict != "ok" or list(self.cache.glob(f"{FILE}.corrupt-*")):
            raise Broken(f"the database is damaged: {verdict}")
        if lost := set(noted) - known:
            raise Broken(f"{len(lost)} of {len(set(noted))} finished measurements are lost")

    def _check_artifact(self, artifact: Path) -> None:
        victim = self.run(lambda: _right(artifact))
        if victim.wait() != 0:
            raise Broken(f"a torn artifact: {victim.words()}")


WEIGHTS = np.linspace(-1, 1, 256, dtype=np.float32).reshape(16, 16)


def _right(artifact: Path) -> None:
    """Loads an artifact and compares its answer."""
    x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(4, 16)
    found: Any = bricolage.load(artifact)(x)
    np.testing.assert_allclose(found, np.maximum(x @ WEIGHTS, 0), rtol=1e-5, atol=1e-5)


def _model(path: Path) -> Path:
    """y = relu(x · w) for x of 4 × 16."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Relu", ["m"], ["y"])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 16]) for name in "xy"]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], [onnx.numpy_helper.from_array(WEIGHTS, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), str(path))
    return path
