"""How worker processes are started: by a fork server, which is started when the first is asked for, or one by one."""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from bricolage.backends import registry
from bricolage.backends.interface import Resources
from bricolage.measure import fork_server
from bricolage.measure.fork_server import ForkRequest
from bricolage.runtime.process_environment import environment

_LOG = logging.getLogger(__name__)
_READ_AT_START = (
    *("PYTHON", "LD_", "MALLOC_", "GLIBC_", "LC_", "LANG"),
    *("OMP_", "MKL_", "OPENBLAS_", "VECLIB_", "BLIS_", "NPY_", "KMP_"),
)
"""Prefixes of variables that take effect when an interpreter or a library of numpy's starts: for others there is another server."""


@dataclass(frozen=True)
class EntryPoint:
    """What worker processes do: the loop of `measure.worker_loop` with these commands."""

    commands: str
    """Place of the function that makes them for a device and what tells the parent something: "module:name"."""
    modules: tuple[str, ...]
    """What a fork server imports for them. None of these may start a thread when it is imported."""


PROGRAMS = EntryPoint("bricolage.measure.worker:commands", ("bricolage.measure.worker",))
"""Compiling, running and timing programs."""


def launch(
    backends: Sequence[str],
    resources: Resources,
    log: Path,
    variables: Mapping[str, str],
    *,
    entry: EntryPoint = PROGRAMS,
    fresh: bool = False,
) -> Process:
    """A worker, which reads commands and writes answers through pipes.

    Args:
        backends: names of those that it hosts.
        resources: what they may take.
        log: file to which its standard error is added.
        variables: environment variables in addition to those of `environment`.
        entry: what it does.
        fresh: an interpreter of its own, so that its memory lies otherwise than that of other workers; else it may be forked
            from a process that has imported what workers import.
    """
    given = {**environment(backends, resources), **variables}
    arguments = ["--entry", entry.commands, "--cores", ",".join(map(str, resources.device.cores))]
    for name, reference in registry.registered_references().items():
        arguments += ["--register", f"{name}={reference}"]
    with log.open("ab") as file:
        process: Process | None = None
        if not fresh and sys.platform.startswith("linux"):
            try:
                process = _fork_worker(arguments, given, file.fileno(), entry.modules)
            except OSError as error:
                _LOG.warning("workers are started one by one: %s", error)
        if process is None:
            pipe = subprocess.PIPE
            process = _start_interpreter(["--parent", str(os.getpid()), *arguments], given, pipe, pipe, file.fileno())
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    return process


def _start_interpreter(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    commands: int,
    answers: int,
    log: int,
    passed: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """An interpreter that runs `bricolage.measure`: the only one that this product starts and goes on speaking to."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "bricolage.measure", *arguments],
        stdin=commands,
        stdout=answers,
        stderr=log,
        env=environment,
        pass_fds=passed,
        start_new_session=True,  # Ctrl-C in the terminal is for us; it must not kill a worker half-way
        bufsize=0,
    )


class ForkedWorker:
    """A worker that a fork server became, with what `subprocess.Popen` has of that name."""

    def __init__(self, told: int, commands: IO[bytes], answers: IO[bytes]) -> None:
        """`told`: where the server writes.

        Raises:
            OSError: the server is gone.
        """
        self._told = told
        pid = self._number()
        if pid is None:
            os.close(told)
            raise ConnectionResetError("the fork server is gone")
        self.pid = pid
        self.stdin: IO[bytes] | None = commands
        self.stdout: IO[bytes] | None = answers
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """How it ended, as `subprocess.Popen` says it; None while it runs."""
        if self.returncode is None:
            self._end(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end.

        Raises:
            subprocess.TimeoutExpired: it runs longer than `timeout` seconds.
        """
        if self.returncode is None:
            self._end(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("worker", timeout or 0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _end(self, timeout: float | None) -> None:
        if timeout is not None:
            waiting = select.poll()
            waiting.register(self._told, select.POLLIN)
            if not waiting.poll(timeout * 1e3):
                return
        code = self._number()
        if code is None:  # the server is gone, and Linux is about to end its workers
            code = -signal.SIGKILL
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        self.returncode = code
        os.close(self._told)

    def _number(self) -> int | None:
        """What the server says next; None where it is gone."""
        data = os.read(self._told, 8)
        return int(struct.unpack("<q", data)[0]) if len(data) == 8 else None


Process = subprocess.Popen[bytes] | ForkedWorker


class _ForkServer:
    """One that runs, and the socket to it."""

    def __init__(self, environment: Mapping[str, str], modules: Sequence[str]) -> None:
        self.socket, theirs = socket.socketpair()
        self.owner = os.getpid()
        try:
            nothing = subprocess.DEVNULL
            arguments = [fork_server.FLAG, str(theirs.fileno()), *modules]
            self.process = _start_interpreter(arguments, environment, nothing, nothing, nothing, [theirs.fileno()])
        finally:
            theirs.close()

    @property
    def usable(self) -> bool:
        """Whether it is this process's, and lives."""
        return self.owner == os.getpid() and self.process.poll() is None

    def close(self) -> None:
        """Lets it end, and its workers."""
        self.socket.close()
        if self.owner == os.getpid():
            self.process.wait()

    def fork(self, arguments: Sequence[str], environment: Mapping[str, str], log: int) -> ForkedWorker:
        """A worker.

        Raises:
            OSError: the server is gone.
        """
        request = ForkRequest(arguments=list(arguments), environment=dict(environment), folder=str(Path.cwd()))
        text = json.dumps(request).encode()
        given, commands = os.pipe()
        answers, written = os.pipe()
        status_pipe, telling = os.pipe()
        theirs = [given, written, log, telling]
        try:
            socket.send_fds(self.socket, [struct.pack("<Q", len(text))], theirs)
            self.socket.sendall(text)
        except OSError:
            for descriptor in (commands, answers, status_pipe):
                os.close(descriptor)
            raise
        finally:
            for descriptor in (given, written, telling):
                os.close(descriptor)
        files = os.fdopen(commands, "wb", buffering=0), os.fdopen(answers, "rb", buffering=0)
        try:
            return ForkedWorker(status_pipe, *files)
        except OSError:
            for file in files:
                file.close()
            raise


_lock = threading.Lock()
_servers: dict[tuple[object, ...], _ForkServer] = {}
"""By the modules that they have imported, and those variables that take effect at the start."""


def _fork_worker(arguments: Sequence[str], environment: Mapping[str, str], log: int, modules: Sequence[str]) -> Process:
    """A worker from a server that has imported `modules`, which is started where none runs.

    Raises:
        OSError: there is no server, and none starts.
    """
    at_start = sorted((name, value) for name, value in environment.items() if name.startswith(_READ_AT_START))
    key = (*modules, *at_start)
    with _lock:
        for _ in range(2):  # one that has just ended is met once
            server = _servers.get(key)
            if server is None or not server.usable:
                if server is not None:
                    server.close()
                server = _servers[key] = _ForkServer(environment, modules)
            try:
                return server.fork(arguments, environment, log)
            except OSError:
                server.close()
                del _servers[key]
        raise ConnectionRefusedError("no fork server starts")


@atexit.register
def close() -> None:
    """Ends the servers of this process with their workers; the next worker starts another."""
    with _lock:
        for server in _servers.values():
            server.close()
        _servers.clear()
