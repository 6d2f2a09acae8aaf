"""Texts that are written together, and what each of them is alone."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from bricolage.base.generation_options import GenerationOptions
from bricolage.errors import (
    BadOption,
    ContextFull,
    EmptyPrompt,
    ExecutableClosed,
    MissingTemplate,
    OtherVocabulary,
    UndefinedLogits,
)
from bricolage.language.language_model import GenerationStream, LanguageModel
from bricolage.language.prefix_store import PrefixStore
from bricolage.language.sequence import SequenceEvent
from bricolage.language.sequence_scheduler import SchedulerSettings
from bricolage.language.token_sampling import log_probabilities
from tests.language.small_models import BEGIN, END, ByteTokens, RecurrentModel

PATIENCE_S = 60.0
DRAWN = GenerationOptions(max_tokens=40, temperature=0.8, top_p=0.95, repetition_penalty=1.1, seed=5)


@contextmanager
def language_model(model: RecurrentModel | None = None, **settings: Any) -> Iterator[LanguageModel]:
    with LanguageModel(model or RecurrentModel(), ByteTokens(), SchedulerSettings(**settings)) as opened:
        yield opened


def tokens_of(opened: LanguageModel, prompt: str, options: GenerationOptions) -> list[int]:
    stream = opened.generate(prompt, options, raw=True)
    list(stream)
    return [record.token for record in stream.records]


def alone(prompt: str, options: GenerationOptions) -> list[int]:
    with language_model(prefix_bytes=0) as opened:
        return tokens_of(opened, prompt, options)


def wait_until(holds: Any) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.002)


def test_the_likeliest_tokens_are_those_of_the_model() -> None:
    """Against the model itself, run in one call over the whole text."""
    written = alone("a first text", GenerationOptions(max_tokens=30))
    model = RecurrentModel()
    prompt = ByteTokens().encode("a first text")
    (logits,) = model.extend([(model.open_sequence(), [*prompt, *written])], every_row=True)
    assert written == [int(row.argmax()) for row in logits[len(prompt) - 1 : -1]]


def test_a_seed_gives_its_text_and_another_one_another() -> None:
    texts = [alone("abc", GenerationOptions(max_tokens=30, temperature=1.5, seed=seed)) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("chunk", [1, 7, 128])
@pytest.mark.parametrize("most_sequences", [1, 2, 8])
def test_neither_mates_nor_chunks_change_a_text(chunk: int, most_sequences: int) -> None:
    """Sequences of all lengths join while others write, with steps of at most three rows."""
    prompts = [
        word * length for word, length in (("x", 1), ("yz", 40), ("a b ", 30), ("q", 5), ("long ", 50), ("r", 2))
    ]
    options = [
        GenerationOptions(max_tokens=5 + 7 * place, temperature=0.9 * (place % 2), seed=place) for place in range(6)
    ]
    with language_model(chunk=chunk, most_sequences=most_sequences, most_rows=3, prefix_bytes=0) as opened:
        streams = []
        for prompt, option in zip(prompts, options, strict=True):
            streams.append(opened.generate(prompt, option, raw=True))
            next(iter(streams[0].pieces()), None)
        for stream in streams:
            list(stream)
    for prompt, option, stream in zip(prompts, options, streams, strict=True):
        assert [record.token for record in stream.records] == alone(prompt, option)
        assert stream.finish_reason == "length" and stream.figures.tokens == option.max_tokens


def test_a_long_prompt_does_not_stop_who_writes() -> None:
    model = RecurrentModel(context_length=4096)
    with language_model(model, chunk=16) as opened:
        writing = opened.generate("w", GenerationOptions(max_tokens=4000), raw=True)
        next(writing.pieces())
        reading = opened.generate("p" * 800, GenerationOptions(max_tokens=1), raw=True)
        list(reading)
        calls = model.calls[:]
    first = next(place for place, call in enumerate(calls) if call == [16])
    last = max(place for place, call in enumerate(calls) if call == [16])
    between = calls[first : last + 1]
    assert between.count([16]) == 50 and between.count([1]) == 49, "a step between any two chunks"


def test_two_long_prompts_take_turns() -> None:
    model = RecurrentModel(context_length=4096)
    model.seconds_a_call = 0.001
    with language_model(model, chunk=8) as opened:
        long = opened.generate("l" * 2000, GenerationOptions(max_tokens=1), raw=True)
        wait_until(lambda: model.calls)
        short = opened.generate("s" * 30, GenerationOptions(max_tokens=1), raw=True)
        list(short)
        assert long.figures.tokens == 0, "it is still being read"


def test_a_kept_prefix_changes_nothing_and_saves_its_tokens() -> None:
    model = RecurrentModel()
    turns = ["a common instruction of more than a block of tokens. First", " question", " and an answer, once more"]
    with language_model(model) as opened:
        prompt, earlier = "", 0
        for turn in turns:
            prompt += turn
            stream = opened.generate(prompt, DRAWN, raw=True)
            text = stream.text
            assert [record.token for record in stream.records] == alone(prompt, DRAWN)
            assert stream.figures.restored_tokens >= earlier - 32
            earlier = stream.figures.prompt_tokens
            prompt += "" if "\ufffd" in text else text
        calls = len(model.calls)
        again = opened.generate(turns[0] + " other", DRAWN, raw=True)
        list(again)
        shared = len(ByteTokens().encode(turns[0]))
        assert again.figures.restored_tokens >= shared - 32 and len(model.calls[calls]) == 1
        assert model.calls[calls] == [again.figures.prompt_tokens - again.figures.restored_tokens]
    assert model.open_states == 0, "all memory is given back"


def test_prefixes_stay_within_their_limit_and_the_oldest_goes() -> None:
    model, rows = RecurrentModel(), {name: [place] * 64 for place, name in enumerate("abcd")}
    size = 64 * model.width * 8
    store = PrefixStore(2 * size)

    def put(tokens: Sequence[int]) -> None:
        state = model.open_sequence()
        model.extend([(state, tokens)])
        store.put(tokens, state)

    def restored(tokens: Sequence[int]) -> int:
        state = model.open_sequence()
        length = store.restore(tokens, state)
        assert state.length == length
        state.close()
        return length

    for name in "abc":
        put(rows[name])
    assert store.nbytes == 2 * size == 128 * model.open_states * model.width * 8 / 2
    assert [restored([*rows[name], 9]) for name in "abc"] == [0, 64, 64]
    assert restored(rows["b"]) == 63, "the last token is always run"
    put(rows["d"])
    assert [restored([*rows[name], 9]) for name in "bcd"] == [64, 0, 64], "c was used longest ago"
    put([*rows["b"], *rows["a"]])
    assert store.nbytes == 2 * size and restored([*rows["b"], 9]) == 64, "what it continues is gone"
    put([5] * 31)
    put([5] * 200)
    assert restored([5] * 32) == 0, "too short, or too long, to be kept"
    store.clear()
    assert model.open_states == 0 and store.nbytes == 0


def test_a_reader_who_stands_still_holds_nobody_up() -> None:
    with language_model() as opened:
        still = opened.generate("still", GenerationOptions(max_tokens=200), raw=True)
        assert len(tokens_of(opened, "quick", GenerationOptions(max_tokens=200))) == 200
        assert len([record for piece in still.pieces() for record in piece.tokens]) == 200


def test_a_reader_who_leaves_frees_its_place() -> None:
    model = RecurrentModel(context_length=100_000)
    model.seconds_a_call = 0.001
    with language_model(model, most_sequences=1, prefix_bytes=0) as opened:
        with opened.generate("x", GenerationOptions(max_tokens=90_000), raw=True) as left:
            next(left.pieces())
        waiting = opened.generate("y", GenerationOptions(max_tokens=90_000), raw=True)
        waiting.close()
        assert len(tokens_of(opened, "z", GenerationOptions(max_tokens=5))) == 5
        assert opened.drain(PATIENCE_S)
        assert model.open_states == 0
        forgotten = opened.generate("x", GenerationOptions(max_tokens=90_000), raw=True)
        next(forgotten.pieces())
        del forgotten
        assert opened.drain(PATIENCE_S)


def test_a_failure_is_its_own_sequence_s() -> None:
    model = RecurrentModel()
    model.fails_on, model.undefined_behind = ord("!"), ord("?")
    with language_model(model) as opened:
        good = opened.generate("good", GenerationOptions(max_tokens=60), raw=True)
        with pytest.raises(MemoryError, match="no memory for a token"):
            list(opened.generate("a bad one!", GenerationOptions(), raw=True))
        with pytest.raises(UndefinedLogits, match="behind token 8"):
            list(opened.generate("really?", GenerationOptions(), raw=True))
        list(good)
        assert len(good.records) == 60
    assert model.open_states == 0


def test_prompts_that_cannot_be_gone_on_with() -> None:
    with language_model(RecurrentModel(context_length=20)) as opened:
        with pytest.raises(EmptyPrompt):
            opened.generate("", raw=True)
        with pytest.raises(ContextFull, match="21 tokens do not fit the model, which was trained for 20"):
            opened.generate("x" * 19, raw=True)
        assert len(tokens_of(opened, "x" * 18, GenerationOptions())) == 1, "the context is full then"
        stream = opened.generate("x" * 19, GenerationOptions(max_tokens=0), raw=True)
        assert stream.text == "" and stream.finish_reason == "length" and stream.figures.first_token_s is None
        events: queue.SimpleQueue[SequenceEvent] = queue.SimpleQueue()
        single = GenerationStream(*opened.submit([BEGIN], GenerationOptions(max_tokens=3), events), events)
        assert len(list(single.pieces())) == 3 and single.figures.prompt_tokens == 1
        with pytest.raises(BadOption, match="tokens 0 to 258"):
            opened.generate("x", GenerationOptions(logit_bias=((259, 1.0),)), raw=True)
        with pytest.raises(BadOption, match="Messages need the model's template"):
            opened.generate([{"role": "user", "content": "x"}], raw=True)
    with pytest.raises(ExecutableClosed):
        opened.generate("x", raw=True)


def test_chats_become_prompts_that_begin_once() -> None:
    tokenizer = ByteTokens()
    with language_model() as opened:
        prompt = opened.encode_prompt("Hi <|end|>")
        assert prompt == opened.encode_prompt([{"role": "user", "content": "Hi <|end|>"}])
        assert prompt.count(BEGIN) == 1 and prompt[0] == BEGIN and prompt[1] == 258
        assert opened.encode_prompt("<|end|>", raw=True) == [BEGIN, *b"<|end|>"], "names in a raw text are text"
    with LanguageModel(RecurrentModel(), ByteTokens(None)) as bare:
        assert bare.encode_prompt("Hi") == tokenizer.encode("Hi")
        with pytest.raises(MissingTemplate):
            bare.encode_prompt([{"role": "user", "content": "Hi"}])


def test_a_tokenizer_of_other_ids() -> None:
    with pytest.raises(OtherVocabulary, match="300 ids, and logits of 260"):
        LanguageModel(RecurrentModel(), ByteTokens(size=300))


def test_stop_strings_end_a_text_in_front_of_them() -> None:
    with language_model() as opened:
        text = opened.generate("story", GenerationOptions(max_tokens=40), raw=True).text
        stop = text[5:8]
        stream = opened.generate("story", GenerationOptions(max_tokens=40, stop=(stop,)), raw=True)
        assert stream.text == text[: text.index(stop)] and stream.finish_reason == "stop"


def test_the_model_ends_its_text() -> None:
    model = RecurrentModel(never_ends=False)
    with language_model(model) as opened:
        stream = opened.generate("end", GenerationOptions(max_tokens=400, logit_bias=((END, 100.0),)), raw=True)
        assert stream.text == "" and stream.finish_reason == "stop" and stream.figures.tokens == 0


def test_log_probabilities_are_the_model_s() -> None:
    options = GenerationOptions(max_tokens=6, temperature=1.0, logprobs=3, repetition_penalty=1.5, seed=2)
    with language_model() as opened:
        stream = opened.generate("logs", options, raw=True)
        list(stream)
    model, prompt = RecurrentModel(), ByteTokens().encode("logs")
    written = [record.token for record in stream.records]
    (logits,) = model.extend([(model.open_sequence(), [*prompt, *written])], every_row=True)
    for record, row in zip(stream.records, logits[len(prompt) - 1 :], strict=False):
        expected = log_probabilities(row)
        assert record.logprob == expected[record.token]
        assert [token for token, _ in record.likeliest] == list(np.argsort(-expected, kind="stable")[:3])


def test_a_fault_of_the_program_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    model = RecurrentModel()
    opened = LanguageModel(model, ByteTokens())
    writing = opened.generate("x", GenerationOptions(max_tokens=400), raw=True)
    monkeypatch.setattr(model, "_output", None)
    with pytest.raises(ValueError, match="matmul"):
        list(writing)
    with pytest.raises(ExecutableClosed):
        opened.generate("y", raw=True)
    opened.close()
