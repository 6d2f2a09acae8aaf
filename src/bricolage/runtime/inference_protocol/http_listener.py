"""What servers over HTTP share: a socket, a loop with signals of its own, and the server that runs an ASGI application."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterator

import uvicorn
import uvloop

from bricolage.base.signal_handlers import keep_handlers
from bricolage.errors import PortTaken

_ENDING = (signal.SIGTERM, signal.SIGINT)
_BACKLOG = 2048
_KEEP_ALIVE_S = 75
"""An idle connection stays open for longer than proxies and pools of clients keep theirs, so that none closes under a request."""


class HttpServer(uvicorn.Server):
    """Signals belong to the process that has it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Takes none."""
        yield


def build_http_server(application: Callable[..., Awaitable[None]], grace_s: float) -> HttpServer:
    """A server that gives requests under way `grace_s` seconds at its end."""
    config = uvicorn.Config(
        application,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        proxy_headers=False,
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, round(grace_s)),
    )
    return HttpServer(config)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        PortTaken: it cannot.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise PortTaken(port=port, host=host, reason=error.strerror or error) from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise PortTaken(port=port, host=host, reason=error.strerror or error) from None
    return listener


def run_until_signal(serve: Callable[[asyncio.Event], Coroutine[None, None, None]]) -> None:
    """Runs a server in a loop of its own; the event that it gets is set by SIGTERM and SIGINT."""

    async def run() -> None:
        ending = asyncio.Event()
        for number in _ENDING:
            asyncio.get_running_loop().add_signal_handler(number, ending.set)
        await serve(ending)

    # The loop leaves its handlers when it closes: a later Ctrl-C would be lost.
    with keep_handlers(*_ENDING), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


async def finish_unless(ending: asyncio.Event, work: asyncio.Future[None]) -> bool:
    """Waits for work in a thread, or for the end; whether it was done before the end. A thread cannot be ended: it is waited for in
    any case.

    Raises:
        What the work raised, unless the end came first.
    """
    ended = asyncio.ensure_future(ending.wait())
    await asyncio.wait((work, ended), return_when=asyncio.FIRST_COMPLETED)
    ended.cancel()
    if not work.done():
        await asyncio.wait((work,))
        return False
    work.result()
    return True
