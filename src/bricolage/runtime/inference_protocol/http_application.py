"""The protocol over HTTP, as an ASGI application."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field

import orjson

from bricolage.errors import RequestTooLarge, ServerDraining, SlowRequest, UnknownPath
from bricolage.runtime.inference_protocol import model_metrics
from bricolage.runtime.inference_protocol.http_messages import (
    LENGTH_HEADER,
    decode_request,
    decompress,
    encode_response,
)
from bricolage.runtime.inference_protocol.model_metrics import ModelMetrics
from bricolage.runtime.inference_protocol.refusals import OK, error_text, status_of, wait_for_outcome
from bricolage.runtime.inference_protocol.served_model import ServedModel, ServedModels, server_metadata
from bricolage.runtime.inference_protocol.server_settings import ServerSettings

Message = MutableMapping[str, object]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
_JSON = b"application/json"
_BINARY = b"application/octet-stream"


@dataclass(frozen=True)
class _Response:
    body: bytes
    status: int = OK
    kind: bytes = _JSON
    json_length: int | None = None

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Of HTTP."""
        headers = [(b"content-type", self.kind), (b"content-length", str(len(self.body)).encode())]
        if self.json_length is not None:
            headers.append((LENGTH_HEADER, str(self.json_length).encode()))
        return headers


@dataclass
class HttpExchange:
    """A request that arrives."""

    method: str
    path: str
    headers: dict[bytes, bytes]
    receive: Receive
    model: str = ""
    """Of the request, where there is one."""
    begun_s: float = field(default_factory=time.perf_counter)

    async def read(self, settings: ServerSettings) -> bytes:
        """The body.

        Raises:
            RequestTooLarge, SlowRequest, BadRequest: it is refused.
        """
        limit = settings.request_limit
        length = self.headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > limit:
            raise RequestTooLarge(limit=f"{limit:,} bytes")
        try:
            async with asyncio.timeout(settings.time_limit_s):
                body = await self._read_parts(limit)
        except TimeoutError:
            raise SlowRequest(limit=f"{settings.time_limit_s:g} s") from None
        self.begun_s = time.perf_counter()
        encoding = self.headers.get(b"content-encoding", b"").decode("latin-1").strip().lower()
        return decompress(body, encoding, limit)

    async def _read_parts(self, limit: int) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise asyncio.CancelledError
            part = message.get("body", b"")
            assert isinstance(part, bytes)
            parts.append(part)
            size += len(part)
            if size > limit:
                raise RequestTooLarge(limit=f"{limit:,} bytes")
            if not message.get("more_body", False):
                return parts[0] if len(parts) == 1 else b"".join(parts)


class HttpApplication:
    """Answers `GET` of health, metadata and metrics, and `POST` of inference."""

    def __init__(self, models: ServedModels, metrics: ModelMetrics, settings: ServerSettings) -> None:
        self._models, self._metrics, self._settings = models, metrics, settings

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """See ASGI."""
        headers = scope["headers"]
        assert scope["type"] == "http" and isinstance(headers, list)
        exchange = HttpExchange(str(scope["method"]), str(scope["path"]), dict(headers), receive)
        answering = asyncio.ensure_future(self._answer(exchange))
        error = await wait_for_outcome(answering)
        if isinstance(error, asyncio.CancelledError):
            return  # the client is gone
        if error is None:
            response = answering.result()
        else:
            response = _Response(orjson.dumps({"error": error_text(error)}), status_of(error))
        start: Message = {"type": "http.response.start", "status": response.status, "headers": response.headers}
        await send(start)
        await send({"type": "http.response.body", "body": response.body})
        if exchange.method == "POST":
            seconds = time.perf_counter() - exchange.begun_s
            self._metrics.record(exchange.model, "http", response.status, seconds)

    async def _answer(self, exchange: HttpExchange) -> _Response:
        parts = exchange.path.strip("/").split("/")
        version = ""
        if len(parts) >= 5 and parts[:2] == ["v2", "models"] and parts[3] == "versions":
            version = parts[4]
            del parts[3:5]
        match (exchange.method, parts):
            case ("GET", ["v2"]):
                return _json(server_metadata())
            case ("GET", ["v2", "health", "live"]):
                return _json({"live": True})
            case ("GET", ["v2", "health", "ready"]):
                ready = self._models.ready
                return _json({"ready": ready}, OK if ready else 503)
            case ("GET", ["metrics"]):
                return _Response(self._metrics.text(), kind=model_metrics.CONTENT_TYPE.encode())
            case ("GET", ["v2", "models", name]):
                return _json(self._models.find(name, version).metadata())
            case ("GET", ["v2", "models", name, "ready"]):
                ready = self._models.find(name, version).ready and not self._models.draining
                return _json({"name": name, "ready": ready}, OK if ready else 503)
            case ("POST", ["v2", "models", name, "infer"]):
                return await self._infer(exchange, self._models.find(name, version))
        raise UnknownPath(method=exchange.method, path=exchange.path)

    async def _infer(self, exchange: HttpExchange, model: ServedModel) -> _Response:
        exchange.model = model.name
        if self._models.draining:
            raise ServerDraining
        body = await exchange.read(self._settings)
        length = exchange.headers.get(LENGTH_HEADER)
        request = decode_request(body, None if length is None else length.decode("latin-1"), model.signature)
        gone = asyncio.ensure_future(exchange.receive())  # there is nothing more to receive than the end
        answering = asyncio.current_task()
        assert answering is not None
        gone.add_done_callback(lambda end: end.cancelled() or answering.cancel())
        try:
            outputs = await model.infer(request, self._settings.time_limit_s)
        finally:
            gone.cancel()
        answer, json_length = encode_response(model.name, request.id, outputs)
        return _Response(answer, OK, _JSON if json_length is None else _BINARY, json_length)


def _json(value: object, status: int = OK) -> _Response:
    return _Response(orjson.dumps(value), status)
