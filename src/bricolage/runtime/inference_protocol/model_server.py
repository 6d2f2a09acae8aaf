"""One process that answers for models: it listens, loads them, and ends when it is told to, without losing a request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import grpc

from bricolage.errors import PortTaken
from bricolage.runtime.inference_protocol.grpc_service import GrpcService
from bricolage.runtime.inference_protocol.http_application import HttpApplication
from bricolage.runtime.inference_protocol.http_listener import (
    HttpServer,
    build_http_server,
    finish_unless,
    listen,
    run_until_signal,
)
from bricolage.runtime.inference_protocol.model_metrics import ModelMetrics
from bricolage.runtime.inference_protocol.served_model import ServedModels
from bricolage.runtime.inference_protocol.server_settings import Listening, LoadOptions, ServerSettings

_HEADROOM = 65_536
"""Bytes of a message of gRPC beyond its tensors."""
_LOG = logging.getLogger(__name__)


class ModelServer:
    """Serves until it is told to end."""

    def __init__(self, paths: Mapping[str, Path], settings: ServerSettings, options: LoadOptions) -> None:
        """`paths`: of artifacts, by the names of the models."""
        self._settings, self._options = settings, options
        self._models = ServedModels(paths)
        self._metrics = ModelMetrics(self._models)

    async def run(self, ending: asyncio.Event, begun: Callable[[Listening], None]) -> None:
        """Listens at once, so that its health can be asked for; loads the models one after the other, calls `begun`, and answers
        until the event `ending`. Then new requests are refused, and those under way answered.

        Raises:
            PortTaken: it cannot listen there.
            NotServable, BadArtifact and others: a model cannot be loaded (see `ServedModel.load`).
        """
        listener = listen(self._settings.host, self._settings.http_port)
        try:
            grpc_server, grpc_port = await self._start_grpc()
        except PortTaken:
            listener.close()
            raise
        application = HttpApplication(self._models, self._metrics, self._settings)
        http_server = build_http_server(application, self._settings.grace_s)
        answering = asyncio.create_task(http_server.serve(sockets=[listener]))
        try:
            if await self._load_models(ending):
                names = tuple(model.name for model in self._models)
                begun(Listening(self._settings.host, listener.getsockname()[1], grpc_port, names))
                await ending.wait()
        finally:
            await self._drain(http_server, answering, grpc_server)

    async def _load_models(self, ending: asyncio.Event) -> bool:
        """Loads all models; false where the server was told to end meanwhile."""
        point, options = self._settings.point, self._options
        for model in self._models:
            load = asyncio.to_thread(model.load, point, options.any_machine, options.target)
            if not await finish_unless(ending, asyncio.ensure_future(load)):
                return False
        return True

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
        self, http_server: HttpServer, answering: asyncio.Task[None], grpc_server: grpc.aio.Server
    ) -> None:
        """Refuses what comes, answers what is there."""
        self._models.draining = True
        http_server.should_exit = True
        await asyncio.gather(answering, grpc_server.stop(self._settings.grace_s))
        for model in self._models:
            await asyncio.to_thread(model.close)
        _LOG.info("all requests were answered")


def serve_models(
    paths: Mapping[str, Path],
    settings: ServerSettings,
    options: LoadOptions,
    begun: Callable[[Listening], None],
) -> None:
    """See `ModelServer.run`."""

    server = ModelServer(paths, settings, options)
    run_until_signal(lambda ending: server.run(ending, begun))
