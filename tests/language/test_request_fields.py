"""Fields of requests in OpenAI's form, without a server."""

from __future__ import annotations

import pytest

from bricolage.base.generation_options import GenerationOptions
from bricolage.errors import BadField
from bricolage.language.openai_routes.request_fields import StreamRequest, read_options, read_prompt, read_stream


def test_what_a_request_leaves_out_is_openai_s_default() -> None:
    chat = read_options({"model": "m", "messages": [], "seed": 7}, chat=True, context_length=99)
    assert chat == GenerationOptions(max_tokens=99, temperature=1.0, seed=7)
    completion = read_options({"model": "m", "prompt": "x", "seed": 7}, chat=False, context_length=99)
    assert completion == GenerationOptions(max_tokens=16, temperature=1.0, seed=7)
    drawn = {read_options({"model": "m"}, chat=True, context_length=9).seed for _ in range(4)}
    assert len(drawn) == 4, "without a seed each request has another one"


def test_what_asks_for_nothing_is_taken() -> None:
    body = {"n": 1, "tools": [], "presence_penalty": 0, "response_format": {"type": "text"}, "user": "me", "seed": 1}
    assert read_options(body, chat=True, context_length=9) == GenerationOptions(9, temperature=1.0, seed=1)
    assert read_options({"seed": -1}, chat=True, context_length=9).seed == 2**64 - 1
    assert read_options({"top_k": -1, "seed": 1}, chat=True, context_length=9).top_k == 0


@pytest.mark.parametrize("body", [{"n": 2}, {"colour": 1}, {"max_tokens": True}, {"logit_bias": {"1": "x"}}], ids=str)
def test_fields_that_cannot_be_used(body: dict[str, object]) -> None:
    with pytest.raises(BadField, match=f"the field '{next(iter(body))}' of the request cannot be used"):
        read_options(body, chat=True, context_length=9)


def test_prompts_and_streams() -> None:
    assert read_prompt("x", 5) == read_prompt(["x"], 5) == "x" and read_prompt([[1, 2]], 5) == [1, 2]
    for prompt in ([], [5], ["a", "b"], 3, None, [True, "x"]):
        with pytest.raises(BadField):
            read_prompt(prompt, 5)
    assert read_stream({"stream": True, "stream_options": {"include_usage": True}}) == StreamRequest(True, True)
    assert read_stream({}) == StreamRequest(False, False)
