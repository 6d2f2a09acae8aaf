"""Tests marked `apart`: their bodies run in a process of their own, one for all such tests of a pytest worker.

What other compilers generate may hold an instruction that this processor lacks: a process that dies of it fails the one test that
ran it. Fixtures stay with pytest; what they give goes over by pickle.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any

import pytest

_LIMIT_S = 600.0
"""For one test, at most."""


class Apart:
    """The process, started when the first test asks for it and again after a death."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def run(self, module: str, name: str, arguments: dict[str, Any]) -> None:
        """Calls a module's function there.

        Raises:
            pytest.fail.Exception: it raised, it took too long, or its process died.
            pytest.skip.Exception: it was skipped.
        """
        message = pickle.dumps((module, name, arguments))
        connection = self._ready()
        connection.send_bytes(message)
        try:
            if not connection.poll(_LIMIT_S):
                self.close()
                pytest.fail(f"took more than {_LIMIT_S:.0f} s in its own process", pytrace=False)
            outcome, text = connection.recv()
        except (EOFError, ConnectionError):
            assert self._process is not None
            status = self._process.wait()
            self.close()
            told = signal.Signals(-status).name if status < 0 else f"exit status {status}"
            pytest.fail(f"its own process died: {told}", pytrace=False)
        if outcome == "skipped":
            pytest.skip(text)
        if outcome == "failed":
            pytest.fail(text, pytrace=False)

    def _ready(self) -> Connection:
        if self._connection is None:
            self._connection, theirs = multiprocessing.Pipe()
            command = [sys.executable, "-m", "tests.apart", str(theirs.fileno())]
            paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], env={**os.environ, "PYTHONPATH": paths}, stdin=subprocess.DEVNULL
            )
            theirs.close()
        return self._connection

    def close(self) -> None:
        """Ends it."""
        if self._process is not None and self._connection is not None:
            self._connection.close()
            self._process.kill()
            self._process.wait()
        self._process = self._connection = None


def _serve(connection: Connection) -> None:
    while True:
        try:
            module, name, arguments = pickle.loads(connection.recv_bytes())
        except (EOFError, ConnectionError):  # who asked is gone
            return
        try:
            getattr(importlib.import_module(module), name)(**arguments)
        except pytest.skip.Exception as skipped:
            connection.send(("skipped", str(skipped)))
        except BaseException:
            connection.send(("failed", traceback.format_exc()))
        else:
            connection.send(("passed", ""))


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[1])))
