"""The routes `/v1/models`, `/v1/chat/completions` and `/v1/completions` as an ASGI application.

Chats and the list of models are routes of `fastapi-openai-compat`. It writes no `data: [DONE]`, has no route for completions, and
does not see that a client is gone who waits for a whole answer: these are here.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextvars import ContextVar

from fastapi import Body, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi_openai_compat import ChatCompletion, create_chat_completion_router
from starlette.exceptions import HTTPException as StarletteHTTPException

from bricolage.base.generation_options import GenerationOptions
from bricolage.errors import BadField, BricolageError, UnknownModel
from bricolage.language.chat_template import Message
from bricolage.language.language_model import LanguageModel
from bricolage.language.openai_routes.answer_objects import (
    AnswerHead,
    chat_chunk,
    completion_object,
    error_object,
    last_chat_chunk,
    usage_object,
    whole_chat,
)
from bricolage.language.openai_routes.async_generation import AsyncGeneration
from bricolage.language.openai_routes.request_fields import StreamRequest, read_options, read_prompt, read_stream
from bricolage.runtime.inference_protocol.http_application import HttpExchange, Receive, Send
from bricolage.runtime.inference_protocol.http_application import Message as AsgiMessage
from bricolage.runtime.inference_protocol.refusals import error_text, status_of
from bricolage.runtime.inference_protocol.server_settings import ServerSettings

_EVENTS = b"text/event-stream"
_DONE = b"data: [DONE]\n\n"
_texts: ContextVar[list[AsyncGeneration]] = ContextVar("texts")
"""That the request under way has begun: they are closed with it, however it ends."""


class OpenaiRoutes:
    """Answers requests by models that are loaded."""

    def __init__(self, models: Mapping[str, LanguageModel], stream_interval_s: float) -> None:
        """`models`: by name. `stream_interval_s`: between two chunks of a stream, at least."""
        self._models, self._stream_interval_s = models, stream_interval_s
        self.application = FastAPI(title="bricolage", docs_url=None, redoc_url=None, openapi_url=None)
        router = create_chat_completion_router(
            list_models=self.list_models, run_completion=self.answer_chat, owned_by="bricolage"
        )
        self.application.include_router(router)
        self.application.add_api_route("/v1/completions", self.complete_text, methods=["POST"], response_model=None)
        self.application.add_exception_handler(StarletteHTTPException, _answer_refusal)
        self.application.add_exception_handler(RequestValidationError, _answer_refusal)

    async def list_models(self) -> list[str]:
        """Names."""
        return list(self._models)

    async def answer_chat(
        self, model: str, messages: Sequence[Message], body: Mapping[str, object]
    ) -> ChatCompletion | AsyncIterator[ChatCompletion]:
        """An answer, or its chunks.

        Raises:
            HTTPException: it is refused.
        """
        try:
            language_model, sending = self._find(model), read_stream(body)
            options = read_options(body, chat=True, context_length=language_model.context_length)
            tokens = await asyncio.to_thread(language_model.encode_prompt, messages)
            head = AnswerHead(model, language_model.tokenizer, options.logprobs is not None, "chatcmpl")
            generation = self._begin(language_model, tokens, options, sending)
            if sending.stream:
                return _stream_chat(head, generation, sending)
            text = "".join([piece.text async for piece in generation.pieces()])
        except BricolageError as error:
            raise _refusal(error) from error
        return whole_chat(head, text, generation)

    async def complete_text(self, body: dict[str, object] = Body()) -> JSONResponse | StreamingResponse:  # noqa: B008
        """What follows a prompt as it is, or its chunks.

        Raises:
            HTTPException: it is refused.
        """
        try:
            name = body.get("model")
            if not isinstance(name, str):
                raise BadField(name="model", reason="it is no name")
            language_model, sending = self._find(name), read_stream(body)
            options = read_options(body, chat=False, context_length=language_model.context_length)
            prompt = read_prompt(body.get("prompt"), language_model.tokenizer.size)
            if isinstance(prompt, str):
                prompt = await asyncio.to_thread(language_model.encode_prompt, prompt, raw=True)
            head = AnswerHead(name, language_model.tokenizer, options.logprobs is not None, "cmpl")
            generation = self._begin(language_model, prompt, options, sending)
            if sending.stream:
                return StreamingResponse(_stream_completion(head, generation, sending), media_type=_EVENTS.decode())
            text = "".join([piece.text async for piece in generation.pieces()])
        except BricolageError as error:
            raise _refusal(error) from error
        answer = completion_object(head, text, generation.records, generation.finish_reason)
        return JSONResponse({**answer, "usage": usage_object(generation)})

    def _find(self, name: str) -> LanguageModel:
        if name not in self._models:
            raise UnknownModel(name=name, expected=", ".join(self._models))
        return self._models[name]

    def _begin(
        self, model: LanguageModel, tokens: Sequence[int], options: GenerationOptions, sending: StreamRequest
    ) -> AsyncGeneration:
        interval_s = self._stream_interval_s if sending.stream else None
        generation = AsyncGeneration(model, tokens, options, interval_s)
        _texts.get().append(generation)
        return generation


async def _stream_chat(
    head: AnswerHead, generation: AsyncGeneration, sending: StreamRequest
) -> AsyncIterator[ChatCompletion]:
    try:
        async for piece in generation.pieces():
            if piece.text or (head.with_logprobs and piece.tokens):
                yield chat_chunk(head, piece.text, piece.tokens)
    except BricolageError as error:
        yield last_chat_chunk(head, error=error_object(error_text(error), status_of(error)))
        return
    yield chat_chunk(head, "", (), generation.finish_reason)
    if sending.include_usage:
        yield last_chat_chunk(head, usage=usage_object(generation))


async def _stream_completion(
    head: AnswerHead, generation: AsyncGeneration, sending: StreamRequest
) -> AsyncIterator[str]:
    offset = 0
    try:
        async for piece in generation.pieces():
            if piece.text or (head.with_logprobs and piece.tokens):
                yield _event(completion_object(head, piece.text, piece.tokens, offset=offset))
                offset += sum(len(record.data.decode("utf-8", "replace")) for record in piece.tokens)
    except BricolageError as error:
        yield _event({"error": error_object(error_text(error), status_of(error))})
        return
    yield _event(completion_object(head, "", (), generation.finish_reason, offset))
    if sending.include_usage:
        yield _event({**completion_object(head, "", ()), "choices": [], "usage": usage_object(generation)})


def _event(value: Mapping[str, object]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"


def _refusal(error: BricolageError) -> HTTPException:
    status = status_of(error)
    param = error.facts.get("name", error.facts.get("option"))
    code = "model_not_found" if isinstance(error, UnknownModel) else None
    name = None if param is None or code else str(param).removeprefix("--").replace("-", "_")
    return HTTPException(status, error_object(error_text(error), status, "model" if code else name, code))


async def _answer_refusal(request: Request, error: Exception) -> JSONResponse:
    """What the framework refuses, and what was refused here, in one form."""
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        place = [str(part) for part in first["loc"] if part != "body"]
        message = f"{'.'.join(place) or 'the body'}: {first['msg']}"
        return JSONResponse({"error": error_object(message, 400, place[0] if place else None)}, 400)
    assert isinstance(error, StarletteHTTPException)
    detail: object = error.detail
    if not isinstance(detail, dict):
        detail = error_object(f"{detail}: {request.method} {request.url.path}", error.status_code)
    return JSONResponse({"error": detail}, error.status_code)


class OpenaiApplication:
    """The routes with limits of size and time, with the end of each stream, and for clients that may be gone."""

    def __init__(self, models: Mapping[str, LanguageModel], settings: ServerSettings) -> None:
        self._routes, self._settings = OpenaiRoutes(models, settings.stream_interval_s), settings

    async def __call__(self, scope: AsgiMessage, receive: Receive, send: Send) -> None:
        """See ASGI."""
        headers = scope["headers"]
        assert scope["type"] == "http" and isinstance(headers, list)
        exchange = HttpExchange(str(scope["method"]), str(scope["path"]), dict(headers), receive)
        try:
            body = await exchange.read(self._settings)
        except asyncio.CancelledError:
            return  # the client is gone
        except BricolageError as error:
            status = status_of(error)
            response = JSONResponse({"error": error_object(str(error), status)}, status)
            await response(scope, receive, send)
            return
        decided = (b"content-encoding", b"content-type")  # it is decompressed, and JSON whatever a client calls it
        scope["headers"] = [
            *(pair for pair in headers if pair[0] not in decided),
            (b"content-type", b"application/json"),
        ]
        texts: list[AsyncGeneration] = []
        _texts.set(texts)
        answering = asyncio.ensure_future(
            self._routes.application(scope, _replay(body), _end_streams(send))  # in a copy of this context
        )
        gone = asyncio.ensure_future(receive())  # there is nothing more to receive than the end
        gone.add_done_callback(lambda end: end.cancelled() or answering.cancel())
        try:
            await asyncio.wait((answering,))
            if not answering.cancelled():
                answering.result()
        finally:
            gone.cancel()
            answering.cancel()
            for text in texts:
                text.close()


def _replay(body: bytes) -> Receive:
    """The whole request once; then nothing, since the client's end is watched elsewhere."""
    parts: list[AsgiMessage] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> AsgiMessage:
        if parts:
            return parts.pop()
        await asyncio.Event().wait()
        raise AssertionError

    return receive


def _end_streams(send: Send) -> Send:
    """Adds the line with which clients know that a stream is whole."""
    streams = False

    async def forward(message: AsgiMessage) -> None:
        nonlocal streams
        if message["type"] == "http.response.start":
            headers = message.get("headers", [])
            assert isinstance(headers, list)
            streams = any(name == b"content-type" and value.startswith(_EVENTS) for name, value in headers)
        elif streams and not message.get("more_body", False):
            await send({**message, "body": _DONE, "more_body": True})
            message = {**message, "body": b""}
        await send(message)

    return forward
