"""A process that has imported what every worker imports, and becomes a worker by forking whenever one is asked for: that takes
some milliseconds, starting an interpreter and importing takes half a second. As `multiprocessing`'s fork server; Linux only.

It hosts no framework and computes nothing, so that no thread is lost by forking. Requests come through a socket: the length of the
rest (8 bytes), a JSON object of arguments, environment and working directory, and four descriptors, which become the worker's
standard input, output and error; into the fourth it writes the worker's number at once, and later how that ended. It ends with
its last client, or after `_IDLE_S` without workers and requests.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, NoReturn, TypedDict

FLAG = "--fork-server"
_TICK_S = 5.0
"""How often it looks whether its client lives, should somebody else hold the other end of the socket."""
_IDLE_S = 60.0
_READ_AT_START = (
    *("PYTHON", "LD_", "MALLOC_", "GLIBC_", "LC_", "LANG"),
    *("OMP_", "MKL_", "OPENBLAS_", "VECLIB_", "BLIS_", "NPY_", "KMP_"),
)
"""Prefixes of variables that take effect when an interpreter or a library of numpy's starts: for others there is another server."""


class _Request(TypedDict):
    arguments: list[str]
    environment: dict[str, str]
    folder: str
    """In which it works."""


# --- the server -------------------------------------------------------------------------------------------------------


def serve(descriptor: int, run: Callable[[list[str]], object]) -> NoReturn:
    """Forks for whoever holds the other end of the socket, until there is nobody. `run` is what a worker does."""
    client = socket.socket(fileno=descriptor)
    parent = os.getppid()
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # with a handler, the descriptor below is written to
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    os.set_blocking(wake, False)
    running: dict[int, int] = {}
    gc.collect()
    gc.freeze()  # a collection in a worker would copy every page that it looks at
    busy = time.monotonic()
    while True:
        ready, _, _ = select.select([descriptor, wake], [], [], _TICK_S)
        if wake in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(wake, 4096)
            _reap(running)
        if descriptor in ready:
            request = _receive(client)
            if request is None:
                break
            asked, descriptors = request
            _fork(asked, descriptors, running, [descriptor, wake, woken], run)
        if ready or running:
            busy = time.monotonic()
        if os.getppid() != parent or time.monotonic() - busy > _IDLE_S:
            break
    for worker in running:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(worker, signal.SIGKILL)
    os._exit(0)


def _receive(client: socket.socket) -> tuple[_Request, list[int]] | None:
    """A request with its descriptors; None at the end."""
    try:
        data, descriptors, _, _ = socket.recv_fds(client, 8, 4)
        if len(data) < 8 or len(descriptors) < 4:
            return None
        (left,) = struct.unpack("<Q", data)
        text = b""
        while len(text) < left:
            more = client.recv(left - len(text))
            if not more:
                return None
            text += more
    except OSError:
        return None
    asked: _Request = json.loads(text)
    return asked, descriptors


def _fork(
    asked: _Request,
    descriptors: Sequence[int],
    running: dict[int, int],
    own: Sequence[int],
    run: Callable[[list[str]], object],
) -> None:
    told = descriptors[3]
    process = os.fork()
    if process == 0:
        try:
            _become(asked, descriptors, [*own, *running.values()])
            run(asked["arguments"])
        except BaseException:  # whatever it is: another process must not go on as the server
            sys.excepthook(*sys.exc_info())
        os._exit(1)
    while os.getpgid(process) != process:  # whoever is told of it may end its group at once
        time.sleep(0)
    for one in descriptors[:3]:
        os.close(one)
    running[process] = told
    _tell(told, process)


def _become(asked: _Request, descriptors: Sequence[int], foreign: Sequence[int]) -> None:
    """What a fresh process has: a session of its own (by which Linux shares out processors), its descriptors, variables and folder,
    no handlers."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for target, one in enumerate(descriptors[:3]):
        os.dup2(one, target)
    for one in {*descriptors, *foreign} - {0, 1, 2}:
        os.close(one)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])


def _reap(running: dict[int, int]) -> None:
    """Tells how the workers ended that have."""
    while True:
        try:
            process, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if process == 0:
            return
        told = running.pop(process, None)
        if told is not None:
            _tell(told, os.waitstatus_to_exitcode(status))
            os.close(told)


def _tell(descriptor: int, number: int) -> None:
    with contextlib.suppress(OSError):  # nobody waits for it any more
        os.write(descriptor, struct.pack("<q", number))


# --- its clients ------------------------------------------------------------------------------------------------------


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


class _Server:
    """One that runs, and the socket to it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.socket, theirs = socket.socketpair()
        self.owner = os.getpid()
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "bricolage.measure", FLAG, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C in the terminal is for us
            )
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
        request = _Request(arguments=list(arguments), environment=dict(environment), folder=str(Path.cwd()))
        text = json.dumps(request).encode()
        given, commands = os.pipe()
        answers, written = os.pipe()
        told, telling = os.pipe()
        theirs = [given, written, log, telling]
        try:
            socket.send_fds(self.socket, [struct.pack("<Q", len(text))], theirs)
            self.socket.sendall(text)
        except OSError:
            for one in (commands, answers, told):
                os.close(one)
            raise
        finally:
            for one in (given, written, telling):
                os.close(one)
        files = os.fdopen(commands, "wb", buffering=0), os.fdopen(answers, "rb", buffering=0)
        try:
            return ForkedWorker(told, *files)
        except OSError:
            for file in files:
                file.close()
            raise


_lock = threading.Lock()
_servers: dict[tuple[tuple[str, str], ...], _Server] = {}
"""By those variables that take effect at the start."""


def fork(arguments: Sequence[str], environment: Mapping[str, str], log: int) -> ForkedWorker:
    """A worker with arguments and environment, whose standard error is the descriptor `log`; from a server, which is started
    where none runs.

    Raises:
        OSError: there is no server, and none starts.
    """
    key = tuple(sorted((name, value) for name, value in environment.items() if name.startswith(_READ_AT_START)))
    with _lock:
        for _ in range(2):  # one that has just ended is met once
            server = _servers.get(key)
            if server is None or not server.usable:
                if server is not None:
                    server.close()
                server = _servers[key] = _Server(environment)
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
