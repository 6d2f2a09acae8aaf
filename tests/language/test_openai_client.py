"""OpenAI's own client against our routes: answers, streams, errors, and clients that hang up."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from bricolage.base.generation_options import GenerationOptions
from bricolage.language.language_model import LanguageModel
from bricolage.language.sequence_scheduler import SchedulerSettings
from bricolage.runtime.inference_protocol.server_settings import ServerSettings
from tests.language.small_models import ByteTokens, RecurrentModel
from tests.needed import needs

for library_name in ("openai", "fastapi", "fastapi_openai_compat", "uvicorn", "uvloop", "orjson", "grpc"):
    needs(library_name)

import openai  # noqa: E402

from tests.language.openai_server import serving_models  # noqa: E402

PATIENCE_S = 60.0
CHAT: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]


class Small:
    """The server, its model, and a client."""

    def __init__(self, port: int, model: RecurrentModel, language_model: LanguageModel) -> None:
        self.port, self.model, self.language_model = port, model, language_model
        self.client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)

    def text(self, prompt: Any, **options: Any) -> str:
        return self.language_model.generate(prompt, GenerationOptions(**options), raw=isinstance(prompt, str)).text

    def post(self, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        connection.request("POST", path, body, {"content-type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())


@pytest.fixture(scope="module")
def small() -> Iterator[Small]:
    model = RecurrentModel(context_length=3000)
    with (
        LanguageModel(model, ByteTokens(), SchedulerSettings(most_sequences=4, prefix_bytes=0)) as language_model,
        serving_models({"small": language_model}, ServerSettings(request_limit=20_000, time_limit_s=2.0)) as port,
    ):
        yield Small(port, model, language_model)


def test_models_are_listed(small: Small) -> None:
    (model,) = small.client.models.list().data
    assert model.id == "small" and model.owned_by == "bricolage"


def test_a_chat(small: Small) -> None:
    answer = small.client.chat.completions.create(model="small", messages=CHAT, temperature=0, max_completion_tokens=20)
    (choice,) = answer.choices
    assert choice.message.content == small.text(CHAT, max_tokens=20) and choice.message.role == "assistant"
    assert choice.finish_reason == "length" and answer.object == "chat.completion"
    assert answer.usage is not None
    prompt = len(small.language_model.encode_prompt(CHAT))
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (
        prompt,
        20,
        prompt + 20,
    )


def test_a_seed_gives_its_text_again_and_none_gives_another(small: Small) -> None:
    def ask(**options: Any) -> str | None:
        answer = small.client.chat.completions.create(model="small", messages=CHAT, max_tokens=40, **options)
        return answer.choices[0].message.content

    assert ask(seed=3) == ask(seed=3) == small.text(CHAT, max_tokens=40, temperature=1.0, seed=3)
    assert ask(seed=4) != ask(seed=3) and ask() != ask()


def test_a_stream_is_the_same_text_in_pieces(small: Small) -> None:
    small.model.seconds_a_call = 0.004
    try:
        chunks = list(
            small.client.chat.completions.create(
                model="small",
                messages=CHAT,
                temperature=0,
                max_tokens=50,
                stream=True,
                stream_options={"include_usage": True},
            )
        )
    finally:
        small.model.seconds_a_call = 0.0
    *pieces, last, usage = chunks
    texts = [chunk.choices[0].delta.content for chunk in pieces]
    assert "".join(texts) == small.text(CHAT, max_tokens=50) and len(texts) > 2
    assert last.choices[0].finish_reason == "length" and last.choices[0].delta.content == ""
    assert usage.choices == [] and usage.usage is not None and usage.usage.completion_tokens == 50
    assert len({chunk.id for chunk in chunks}) == 1 and pieces[0].object == "chat.completion.chunk"
    assert all(chunk.usage is None for chunk in pieces)


@pytest.mark.parametrize("route", ["chat/completions", "completions"])
def test_a_stream_ends_with_done(small: Small, route: str) -> None:
    body = {"model": "small", "messages": CHAT} if route.startswith("chat") else {"model": "small", "prompt": "x"}
    connection = http.client.HTTPConnection("127.0.0.1", small.port, timeout=PATIENCE_S)
    connection.request("POST", f"/v1/{route}", json.dumps({**body, "max_tokens": 3, "stream": True}))
    response = connection.getresponse()
    assert response.headers["content-type"].startswith("text/event-stream")
    events = response.read().decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""] and all(event.startswith("data: {") for event in events[:-2])


def test_stop_strings(small: Small) -> None:
    whole = small.text(CHAT, max_tokens=60)
    stop = whole[8:11]
    answer = small.client.chat.completions.create(
        model="small", messages=CHAT, temperature=0, max_tokens=60, stop=["never there", stop]
    )
    assert answer.choices[0].message.content == whole[: whole.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


def test_log_probabilities_of_a_chat(small: Small) -> None:
    options: dict[str, Any] = {"model": "small", "messages": CHAT, "temperature": 0, "max_tokens": 5}
    answer = small.client.chat.completions.create(**options, logprobs=True, top_logprobs=3)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None and len(logprobs.content) == 5
    stream = small.language_model.generate(CHAT, GenerationOptions(max_tokens=5, logprobs=3))
    list(stream)
    for content, record in zip(logprobs.content, stream.records, strict=True):
        assert content.bytes == list(record.data) and content.logprob == record.logprob
        assert [top.logprob for top in content.top_logprobs] == [value for _, value in record.likeliest]
    pieces = list(small.client.chat.completions.create(**options, logprobs=True, stream=True))
    streamed = [
        content for piece in pieces if piece.choices[0].logprobs for content in piece.choices[0].logprobs.content
    ]
    assert [content.logprob for content in streamed] == [record.logprob for record in stream.records]


def test_a_completion(small: Small) -> None:
    answer = small.client.completions.create(model="small", prompt="Once", temperature=0, logprobs=2)
    assert answer.choices[0].text == small.text("Once", max_tokens=16) and answer.object == "text_completion"
    assert answer.usage is not None and answer.usage.completion_tokens == 16
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.tokens is not None and logprobs.text_offset is not None
    assert len(logprobs.tokens) == 16 and logprobs.text_offset[:2] == [0, len(logprobs.tokens[0])]
    tokens = small.language_model.encode_prompt("Once", raw=True)
    again = small.client.completions.create(model="small", prompt=tokens, temperature=0)
    assert again.choices[0].text == answer.choices[0].text
    pieces = list(
        small.client.completions.create(
            model="small", prompt=["Once"], temperature=0, stream=True, stream_options={"include_usage": True}
        )
    )
    assert "".join(piece.choices[0].text for piece in pieces[:-1]) == answer.choices[0].text
    assert pieces[-1].usage == answer.usage and pieces[-2].choices[0].finish_reason == "length"


def test_a_bias_and_what_is_not_openai_s(small: Small) -> None:
    answer = small.client.chat.completions.create(
        model="small",
        messages=CHAT,
        max_tokens=4,
        logit_bias={"65": 100},
        extra_body={"top_k": 1, "min_p": 0.1, "repetition_penalty": 1.0},
    )
    assert answer.choices[0].message.content == "AAAA"


def test_clients_at_the_same_time_get_what_they_get_alone(small: Small) -> None:
    prompts = [f"client {number} " * (1 + number) for number in range(10)]

    def ask(prompt: str) -> str:
        return (
            small.client.completions.create(model="small", prompt=prompt, temperature=0, max_tokens=60).choices[0].text
        )

    with ThreadPoolExecutor(10) as pool:
        assert list(pool.map(ask, prompts)) == [small.text(prompt, max_tokens=60) for prompt in prompts]


@pytest.mark.parametrize(
    ("changes", "param", "said"),
    [
        ({"temperature": 3}, "temperature", "no number from 0 to 2"),
        ({"temperature": "hot"}, "temperature", "no number"),
        ({"top_p": 0}, "top_p", "above 0"),
        ({"max_tokens": -1}, "max_tokens", "no whole number"),
        ({"max_tokens": 1.5}, "max_tokens", "no whole number"),
        ({"max_tokens": 3001}, "max_tokens", "higher than 3000"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop", "up to 4"),
        ({"stop": [""]}, "stop", "up to 4"),
        ({"n": 2}, "n", "not done here"),
        ({"tools": [{"type": "function"}]}, "tools", "not done here"),
        ({"response_format": {"type": "json_object"}}, "response_format", "not done here"),
        ({"frequency_penalty": 0.5}, "frequency_penalty", "not done here"),
        ({"top_logprobs": 2}, "top_logprobs", "needs logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "higher than 20"),
        ({"logprobs": 3}, "logprobs", "neither true nor false"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "numbers of tokens"),
        ({"logit_bias": [1]}, "logit_bias", "no object"),
        ({"logit_bias": {"5000": 1}}, "logit_bias", "tokens 0 to 258"),
        ({"stream": "perhaps"}, "stream", ""),
        ({"stream_options": 3}, "stream_options", "no object"),
        ({"colour": "blue"}, "colour", "not known"),
        ({"messages": "Hi"}, "messages", ""),
        ({"messages": [{"role": "user"}]}, None, "message 0 cannot be used"),
        ({"messages": [{"role": "user", "content": "x" * 4000}]}, None, "do not fit the model"),
    ],
    ids=str,
)
def test_what_cannot_be_answered(small: Small, changes: dict[str, Any], param: str | None, said: str) -> None:
    status, answer = small.post(
        "/v1/chat/completions", json.dumps({"model": "small", "messages": CHAT, **changes}).encode()
    )
    error = answer["error"]
    assert status == 400 and error["type"] == "invalid_request_error"
    assert error["param"] == param and said in error["message"]


def test_the_shortest_prompts_and_answers(small: Small) -> None:
    create = small.client.completions.create
    single = create(model="small", prompt=[65], temperature=0, max_tokens=2)
    assert single.usage is not None and (single.usage.prompt_tokens, single.usage.completion_tokens) == (1, 2)
    for stream in (False, True):
        answer: Any = create(model="small", prompt="x", max_tokens=0, stream=stream)
        choices = [part.choices[0] for part in answer] if stream else answer.choices
        assert "".join(choice.text for choice in choices) == "" and choices[-1].finish_reason == "length"
    cut = create(model="small", prompt="x", temperature=0, max_tokens=1, logit_bias={"195": 100})
    assert cut.choices[0].text == "" and cut.usage is not None and cut.usage.completion_tokens == 1, "half a character"


def test_errors_are_the_client_s_own(small: Small) -> None:
    with pytest.raises(openai.NotFoundError, match="there is no model 'large'") as caught:
        small.client.chat.completions.create(model="large", messages=CHAT)
    assert caught.value.code == "model_not_found" and caught.value.param == "model"
    with pytest.raises(openai.BadRequestError, match="neither one text nor a list"):
        small.client.completions.create(model="small", prompt=["a", "b"])
    with pytest.raises(openai.BadRequestError, match="has no tokens"):
        small.client.completions.create(model="small", prompt="")
    with pytest.raises(openai.NotFoundError, match="/v1/embeddings"):
        small.client.embeddings.create(model="small", input="x")
    with pytest.raises(openai.APIStatusError, match="longer than 20,000 bytes") as large:
        small.client.completions.create(model="small", prompt="x" * 30_000)
    assert large.value.status_code == 413


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"3", b'{"model": 1}', b'{"model": "small"}', b"\xff"])
@pytest.mark.parametrize("route", ["chat/completions", "completions"])
def test_bodies_that_are_no_request(small: Small, route: str, body: bytes) -> None:
    status, answer = small.post(f"/v1/{route}", body)
    assert status == 400 and answer["error"]["message"] and answer["error"]["type"] == "invalid_request_error"


def test_a_failure_in_the_middle_of_a_stream(small: Small) -> None:
    small.model.undefined_behind = ord("Z")
    try:
        stream = small.client.chat.completions.create(
            model="small", messages=CHAT, temperature=0, logit_bias={"90": 100}, stream=True
        )
        with pytest.raises(openai.APIError, match="a number that is undefined"):
            list(stream)
        with pytest.raises(openai.InternalServerError, match="a number that is undefined"):
            small.client.completions.create(model="small", prompt="Z")
    finally:
        small.model.undefined_behind = None


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_hangs_up_frees_its_place(small: Small, stream: bool) -> None:
    small.model.seconds_a_call = 0.002
    try:
        body = json.dumps({"model": "small", "messages": CHAT, "max_tokens": 2900, "stream": stream}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        begun = time.monotonic()
        with socket.create_connection(("127.0.0.1", small.port), PATIENCE_S) as connection:
            connection.sendall(head + body)
            while not small.model.open_states:
                assert time.monotonic() - begun < PATIENCE_S
                time.sleep(0.002)
        assert small.language_model.drain(PATIENCE_S) and small.model.open_states == 0
        assert time.monotonic() - begun < 2900 * 0.002, "before its text would have been whole"
    finally:
        small.model.seconds_a_call = 0.0


def test_a_client_that_does_not_read_stops_no_other_one(small: Small) -> None:
    body = json.dumps({"model": "small", "prompt": "still", "max_tokens": 2900, "logprobs": 5, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", small.port), PATIENCE_S) as connection:
        connection.sendall(head + body)
        for _ in range(3):
            assert small.client.completions.create(model="small", prompt="quick", max_tokens=30).usage is not None
