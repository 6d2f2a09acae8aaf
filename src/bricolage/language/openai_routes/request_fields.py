"""Requests in OpenAI's form, field by field. What is not done here is refused by its name; nothing is silently left out."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from bricolage.base.generation_options import MOST_LOGPROBS, MOST_SEED, GenerationOptions
from bricolage.errors import BadField

Body = Mapping[str, object]

_DRAWING = {"temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "stop", "logit_bias", "logprobs"}
_COMMON = {"model", "stream", "stream_options", "max_tokens"} | _DRAWING
CHAT_FIELDS = frozenset(_COMMON | {"messages", "max_completion_tokens", "top_logprobs"})
COMPLETION_FIELDS = frozenset(_COMMON | {"prompt"})
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
}
"""Fields that may be there with a value that asks for nothing."""
_REMARKS = frozenset(
    {"user", "metadata", "store", "service_tier", "parallel_tool_calls", "prompt_cache_key", "safety_identifier"}
)
"""Fields that say nothing about the text."""
_MOST_STOPS = 4
_MOST_COMPLETION_LOGPROBS = 5
_COMPLETION_TOKENS = 16
"""New tokens of a completion where the request names no number, as in OpenAI's API."""


@dataclass(frozen=True)
class StreamRequest:
    """How an answer is sent."""

    stream: bool
    include_usage: bool
    """Whether a last chunk has the numbers of tokens."""


def read_stream(body: Body) -> StreamRequest:
    """`stream` and `stream_options`.

    Raises:
        BadField
    """
    stream, options = body.get("stream"), body.get("stream_options")
    if stream not in (None, True, False):
        raise BadField(name="stream", reason="it is neither true nor false")
    if options is not None and not isinstance(options, Mapping):
        raise BadField(name="stream_options", reason="it is no object")
    return StreamRequest(bool(stream), bool(options and options.get("include_usage")))


def read_options(body: Body, *, chat: bool, context_length: int) -> GenerationOptions:
    """How tokens are drawn. A chat's answer may be as long as the context, where the request says nothing; without a seed each
    request has another one.

    Raises:
        BadField: a field that is not known, asks for what is not done here, or has a value out of its range.
        BadOption: likewise.
    """
    _check_names(body, CHAT_FIELDS if chat else COMPLETION_FIELDS)
    longest = _integer(body, "max_tokens", 0, context_length)
    if chat:
        longest = _integer(body, "max_completion_tokens", 0, context_length) if longest is None else longest
    seed = _integer(body, "seed", -MOST_SEED, MOST_SEED)
    top_k = _integer(body, "top_k", -1, None)
    return GenerationOptions(
        max_tokens=(context_length if chat else _COMPLETION_TOKENS) if longest is None else longest,
        temperature=_number(body, "temperature", 0, 2, 1.0),
        top_k=max(top_k or 0, 0),
        top_p=_number(body, "top_p", 0, 1, 1.0),
        min_p=_number(body, "min_p", 0, 1, 0.0),
        repetition_penalty=_number(body, "repetition_penalty", 0, 10, 1.0),
        seed=secrets.randbits(63) if seed is None else seed % (MOST_SEED + 1),
        stop=_read_stops(body.get("stop")),
        logprobs=_read_chat_logprobs(body) if chat else _integer(body, "logprobs", 0, _MOST_COMPLETION_LOGPROBS),
        logit_bias=_read_bias(body.get("logit_bias")),
    )


def _check_names(body: Body, fields: frozenset[str]) -> None:
    for name, value in body.items():
        if name in fields or name in _REMARKS or value is None:
            continue
        if name not in _NEUTRAL:
            raise BadField(name=name, reason="it is not known here")
        if value not in _NEUTRAL[name]:
            raise BadField(name=name, reason="what it asks for is not done here")


def _integer(body: Body, name: str, least: int, most: int | None) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise BadField(name=name, reason=f"it is no whole number from {least}")
    if most is not None and value > most:
        raise BadField(name=name, reason=f"it is higher than {most}")
    return value


def _number(body: Body, name: str, least: float, most: float, default: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise BadField(name=name, reason=f"it is no number from {least} to {most}")
    return float(value)


def _read_stops(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if (
        not isinstance(stops, list)
        or len(stops) > _MOST_STOPS
        or not all(isinstance(stop, str) and stop for stop in stops)
    ):
        raise BadField(name="stop", reason=f"it is neither a text nor a list of up to {_MOST_STOPS} texts")
    return tuple(stops)


def _read_chat_logprobs(body: Body) -> int | None:
    asked, count = body.get("logprobs"), _integer(body, "top_logprobs", 0, MOST_LOGPROBS)
    if asked not in (None, True, False):
        raise BadField(name="logprobs", reason="it is neither true nor false")
    if count is not None and not asked:
        raise BadField(name="top_logprobs", reason="it needs logprobs")
    return (count or 0) if asked else None


def _read_bias(value: object) -> tuple[tuple[int, float], ...]:
    if value is None:
        return ()
    if not isinstance(value, Mapping):
        raise BadField(name="logit_bias", reason="it is no object")
    pairs: list[tuple[int, float]] = []
    for token, bias in value.items():
        if not str(token).isdecimal() or isinstance(bias, bool) or not isinstance(bias, int | float):
            raise BadField(name="logit_bias", reason="it has to give numbers of tokens numbers")
        pairs.append((int(token), float(bias)))
    return tuple(pairs)


def read_prompt(value: object, size: int) -> str | list[int]:
    """`prompt` of a completion: a text, a list of one, or tokens below `size`.

    Raises:
        BadField
    """
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(type(token) is int and 0 <= token < size for token in value):
        return [int(token) for token in value]
    raise BadField(name="prompt", reason=f"it is neither one text nor a list of tokens below {size}")
