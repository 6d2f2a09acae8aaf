"""Answers in OpenAI's form."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from fastapi_openai_compat import ChatCompletion, Choice, Message
from pydantic import PrivateAttr

from bricolage.language.language_model import TextGeneration
from bricolage.language.sequence import TokenRecord
from bricolage.language.token_model import TextTokens, token_data


@dataclass(frozen=True)
class AnswerHead:
    """What all chunks of an answer have in common."""

    model: str
    tokenizer: TextTokens
    with_logprobs: bool
    kind: str
    """`chatcmpl` or `cmpl`."""
    created: int = field(default_factory=lambda: int(time.time()))
    number: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def id(self) -> str:
        """Of the answer."""
        return f"{self.kind}-{self.number}"

    @cached_property
    def chunk_beginning(self) -> str:
        """JSON of a chat's chunk, up to its choices."""
        fixed = {"id": self.id, "object": "chat.completion.chunk", "created": self.created, "model": self.model}
        return f'{json.dumps(fixed, ensure_ascii=False)[:-1]}, "choices": '


def usage_object(generation: TextGeneration) -> dict[str, object]:
    """Numbers of tokens."""
    figures = generation.figures
    return {
        "prompt_tokens": figures.prompt_tokens,
        "completion_tokens": figures.tokens,
        "total_tokens": figures.prompt_tokens + figures.tokens,
        "prompt_tokens_details": {"cached_tokens": figures.restored_tokens},
    }


class ChatChunk(ChatCompletion):  # type: ignore[misc]  # of a package without types
    """A part of a chat's answer that has its JSON only. With objects of fields, checked and written one by one, a chat took the
    loop a half longer than a completion."""

    _json: str = PrivateAttr()

    def model_dump_json(self, *_: object, **__: object) -> str:
        """See `pydantic`."""
        return self._json


def chat_chunk(
    head: AnswerHead, text: str, records: Sequence[TokenRecord], finish_reason: str | None = None
) -> ChatCompletion:
    """A part of a chat's answer."""
    choice = {
        "index": 0,
        "delta": {"role": "assistant", "content": text},
        "finish_reason": finish_reason,
        "logprobs": _chat_logprobs(head, records),
    }
    chunk = ChatChunk.model_construct()
    chunk._json = f"{head.chunk_beginning}{json.dumps([choice], ensure_ascii=False)}}}"
    return chunk


def last_chat_chunk(head: AnswerHead, **fields: object) -> ChatCompletion:
    """A chunk without a choice: of `usage`, or of an `error`."""
    kind, fixed = "chat.completion.chunk", {"id": head.id, "created": head.created, "model": head.model}
    return ChatCompletion.model_validate({**fixed, "object": kind, "choices": [], **fields})


def whole_chat(head: AnswerHead, text: str, generation: TextGeneration) -> ChatCompletion:
    """A chat's answer."""
    choice = Choice(
        index=0,
        message=Message(role="assistant", content=text),
        finish_reason=generation.finish_reason,
        logprobs=_chat_logprobs(head, generation.records),
    )
    return ChatCompletion(
        id=head.id,
        object="chat.completion",
        created=head.created,
        model=head.model,
        choices=[choice],
        usage=usage_object(generation),
    )


def completion_object(
    head: AnswerHead, text: str, records: Sequence[TokenRecord], finish_reason: str | None = None, offset: int = 0
) -> dict[str, object]:
    """A completion, or a part of one whose text begins at letter `offset`."""
    choice = {
        "index": 0,
        "text": text,
        "finish_reason": finish_reason,
        "logprobs": _completion_logprobs(head, records, offset),
    }
    return {
        "id": head.id,
        "object": "text_completion",
        "created": head.created,
        "model": head.model,
        "choices": [choice],
    }


def error_object(message: str, status: int, param: str | None = None, code: str | None = None) -> dict[str, object]:
    """The value of `error`."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"message": message, "type": kind, "param": param, "code": code}


def _token_object(data: bytes, logprob: float | None) -> dict[str, object]:
    return {"token": data.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(data)}


def _chat_logprobs(head: AnswerHead, records: Sequence[TokenRecord]) -> dict[str, object] | None:
    if not head.with_logprobs:
        return None
    content = []
    for record in records:
        likeliest = [_token_object(token_data(head.tokenizer, token), value) for token, value in record.likeliest]
        content.append({**_token_object(record.data, record.logprob), "top_logprobs": likeliest})
    return {"content": content, "refusal": None}


def _completion_logprobs(head: AnswerHead, records: Sequence[TokenRecord], offset: int) -> dict[str, object] | None:
    if not head.with_logprobs:
        return None
    texts = [record.data.decode("utf-8", "replace") for record in records]
    offsets, likeliest = [], []
    for record, text in zip(records, texts, strict=True):
        offsets.append(offset)
        offset += len(text)
        pairs = ((token_data(head.tokenizer, token), value) for token, value in record.likeliest)
        likeliest.append({data.decode("utf-8", "replace"): value for data, value in pairs})
    return {
        "tokens": texts,
        "token_logprobs": [record.logprob for record in records],
        "top_logprobs": likeliest,
        "text_offset": offsets,
    }
