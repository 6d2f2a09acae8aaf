"""One process that answers for models: it listens, loads them, and ends when it is told to, without losing a request."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import grpc
import uvicorn
import uvloop

from bricolage.base.signal_handlers import keep_handlers
from bricolage.errors import PortTaken
from bricolage.runtime.inference_protocol.grpc_service import GrpcService
from bricolage.runtime.inference_protocol.http_application import HttpApplication
from bricolage.runtime.inference_protocol.model_metrics import ModelMetrics
from bricolage.runtime.inference_protocol.served_model import ServedModels
from bricolage.runtime.inference_protocol.server_settings import Listening, LoadOptions, ServerSettings

_ENDING = (signal.SIGTERM, signal.SIGINT)
_BACKLOG = 2048
_KEEP_ALIVE_S = 75
"""An idle connection stays open for longer than proxies and pools of clients keep theirs, so that none closes under a request."""
_HEADROOM = 65_536
"""Bytes of a message of gRPC beyond its tensors."""
_LOG = logging.getLogger(__name__)


class _HttpServer(uvicorn.Server):
    """Signals belong to the server of both protocols."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Takes none."""
        yield


class ModelServer:
    """Serves until it is told to end."""

    def __init__(self, paths: Mapping[str, Path], settings: ServerSettings, options: LoadOptions) -> None:
        """`paths`: of artifacts, by the names of the models."""
        self._settings, self._options = settings, options
        self._models = ServedModels(paths)
        self._metrics = ModelMetrics(self._models)
        self._ending = asyncio.Event()

    async def run(self, begun: Callable[[Listening], None]) -> None:
        """Listens at once, so that its health can be asked for; loads the models one after the other, calls `begun`, and answers
        until SIGTERM or SIGINT. Then new requests are refused, and those under way answered.

        Raises:
            PortTaken: it cannot listen there.
            NotServable, BadArtifact and others: a model cannot be loaded (see `ServedModel.load`).
        """
        loop = asyncio.get_running_loop()
        for number in _ENDING:
            loop.add_signal_handler(number, self._ending.set)
        listener = _listen(self._settings.host, self._settings.http_port)
        try:
            grpc_server, grpc_port = await self._start_grpc()
        except PortTaken:
            listener.close()
            raise
        http_server = self._http_server()
        answering = asyncio.create_task(http_server.serve(sockets=[listener]))
        try:
            if await self._load_models():
                names = tuple(model.name for model in self._models)
                begun(Listening(self._settings.host, listener.getsockname()[1], grpc_port, names))
                await self._ending.wait()
        finally:
            await self._drain(http_server, answering, grpc_server)

    async def _load_models(self) -> bool:
        """Loads all models; false where the server was told to end meanwhile."""
        for model in self._models:
            point, options = self._settings.point, self._options
            loading = asyncio.ensure_future(asyncio.to_thread(model.load, point, options.any_machine, options.target))
            ended = asyncio.ensure_future(self._ending.wait())
            await asyncio.wait((loading, ended), return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
            if not loading.done():
                await asyncio.wait((loading,))  # a thread cannot be ended; its streams are closed then
                return False
            loading.result()
        return True

    def _http_server(self) -> _HttpServer:
        application = HttpApplication(self._models, self._metrics, self._settings)
        config = uvicorn.Config(
            application,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            proxy_headers=False,
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=max(1, round(self._settings.grace_s)),
        )
        return _HttpServer(config)

    async def _start_grpc(self) -> tuple[grpc.aio.Server, int]:
        host = self._settings.host
        options = [
            ("grpc.max_receive_message_length", self._settings.request_limit + _HEADROOM),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),  # another server on the port is an error, not a companion
        ]
        server = grpc.aio.server(options=options)
        service = GrpcService(self._models, self._metrics, self._settings.time_limit_s)
        server.add_generic_rpc_handlers((service.handler(),))
        address = f"[{host}]" if ":" in host else host
        try:
            port = server.add_insecure_port(f"{address}:{self._settings.grpc_port}")
        except RuntimeError as error:
            raise PortTaken(port=self._settings.grpc_port, host=host, reason=error) from None
        await server.start()
        return server, port

    async def _drain(
        self, http_server: _HttpServer, answering: asyncio.Task[None], grpc_server: grpc.aio.Server
    ) -> None:
        """Refuses what comes, answers what is there."""
        self._models.draining = True
        http_server.should_exit = True
        await asyncio.gather(answering, grpc_server.stop(self._settings.grace_s))
        for model in self._models:
            await asyncio.to_thread(model.close)
        _LOG.info("all requests were answered")


def _listen(host: str, port: int) -> socket.socket:
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


def serve_models(
    paths: Mapping[str, Path],
    settings: ServerSettings,
    options: LoadOptions,
    begun: Callable[[Listening], None],
) -> None:
    """See `ModelServer.run`."""

    async def run() -> None:
        await ModelServer(paths, settings, options).run(begun)

    # The loop leaves its handlers when it closes: a later Ctrl-C would be lost.
    with keep_handlers(*_ENDING), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
