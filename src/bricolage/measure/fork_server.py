"""A process that has imported what its workers import, and becomes a worker by forking whenever one is asked for: that takes
some milliseconds, starting an interpreter and importing takes half a second, with PyTorch several. As `multiprocessing`'s fork
server; Linux only. Its client's side is in `launch`.

It computes nothing, so that no thread is lost by forking. Requests come through a socket: the length of the
rest (8 bytes), a JSON object of arguments, environment and working directory, and four descriptors, which become the worker's
standard input, output and error; into the fourth it writes the worker's number at once, and later how that ended. It ends with
its last client, or after `_IDLE_S` without workers and requests.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import NoReturn, TypedDict

FLAG = "--fork-server"
_TICK_S = 5.0
"""How often it looks whether its client lives, should another process hold the other end of the socket."""
_IDLE_S = 60.0


class ForkRequest(TypedDict):
    """What a worker is given."""

    arguments: list[str]
    environment: dict[str, str]
    folder: str
    """In which it works."""


def serve_forks(descriptor: int, modules: Sequence[str], run: Callable[[list[str]], object]) -> NoReturn:
    """Forks for the process at the other end of the socket, until there is none. `modules` are imported before; `run` is what a
    worker does."""
    client = socket.socket(fileno=descriptor)
    parent = os.getppid()
    for name in modules:
        with contextlib.suppress(ImportError):  # a worker that needs it says what is missing
            importlib.import_module(name)
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


def _receive(client: socket.socket) -> tuple[ForkRequest, list[int]] | None:
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
    asked: ForkRequest = json.loads(text)
    return asked, descriptors


def _fork(
    asked: ForkRequest,
    descriptors: Sequence[int],
    running: dict[int, int],
    own: Sequence[int],
    run: Callable[[list[str]], object],
) -> None:
    status_pipe = descriptors[3]
    process = os.fork()
    if process == 0:
        try:
            _become(asked, descriptors, [*own, *running.values()])
            run(asked["arguments"])
        except BaseException:  # whatever it is: another process must not go on as the server
            sys.excepthook(*sys.exc_info())
        os._exit(1)
    while os.getpgid(process) != process:  # the client may end its group at once
        time.sleep(0)
    for descriptor in descriptors[:3]:
        os.close(descriptor)
    running[process] = status_pipe
    _tell(status_pipe, process)


def _become(asked: ForkRequest, descriptors: Sequence[int], foreign: Sequence[int]) -> None:
    """What a fresh process has: a session of its own (by which Linux shares out processors), its descriptors, variables and folder,
    no handlers, and its own folder of temporary files."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for target, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, target)
    for descriptor in {*descriptors, *foreign} - {0, 1, 2}:
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(asked["environment"])
    tempfile.tempdir = None  # an import may have asked for it in the server, whose folder it was and may be gone
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
        status_pipe = running.pop(process, None)
        if status_pipe is not None:
            _tell(status_pipe, os.waitstatus_to_exitcode(status))
            os.close(status_pipe)


def _tell(descriptor: int, number: int) -> None:
    with contextlib.suppress(OSError):  # its client is gone
        os.write(descriptor, struct.pack("<q", number))
