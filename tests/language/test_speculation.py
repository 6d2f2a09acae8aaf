"""Guesses change no text at temperature 0 and no distribution above, and are made where they gain."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from bricolage.base.generation_options import GenerationOptions
from bricolage.errors import OtherVocabulary
from bricolage.language.draft_model import ModelDrafter, check_same_tokens
from bricolage.language.language_model import LanguageModel
from bricolage.language.sequence_scheduler import DrafterFactory, SchedulerSettings
from bricolage.language.speculation import (
    Draft,
    NgramDrafter,
    SequenceSpeculation,
    StepSeconds,
    choose_guesses,
    expected_tokens,
    measure_steps,
)
from bricolage.language.token_sampling import certain
from tests.language.small_models import ByteTokens, RecurrentModel

CHEAP = dict.fromkeys((1, 2, 4, 8), 1.0)
"""v(n) of a step that is bound by memory: guesses always gain."""


def drafting(name: str, draft_model: RecurrentModel) -> DrafterFactory:
    if name == "ngram":
        return lambda _: NgramDrafter()
    return lambda options: ModelDrafter(draft_model, options)


def near_model(noise: float = 0.05) -> RecurrentModel:
    return RecurrentModel(noise=noise)


@pytest.mark.parametrize("name", ["ngram", "model"])
@pytest.mark.parametrize("penalty", [1.0, 1.2])
def test_at_temperature_0_the_text_is_the_same(name: str, penalty: float) -> None:
    """The penalty depends on what was drawn before, guesses that were refused left out."""
    options = GenerationOptions(max_tokens=150, repetition_penalty=penalty)
    prompts = ["ababababab", "to be or not to be, that is", "x"]
    accepted = 0
    plain, draft_model, model = RecurrentModel(), near_model(), RecurrentModel()
    with (
        LanguageModel(plain, ByteTokens()) as expected,
        LanguageModel(model, ByteTokens(), None, (StepSeconds(dict(CHEAP)), drafting(name, draft_model))) as guessing,
    ):
        streams = [guessing.generate(prompt, options, raw=True) for prompt in prompts]
        for prompt, stream in zip(prompts, streams, strict=True):
            list(stream)
            alone = expected.generate(prompt, options, raw=True)
            list(alone)
            assert stream.records == alone.records
            assert stream.figures.accepted_tokens <= stream.figures.guessed_tokens
            accepted += stream.figures.accepted_tokens
    if penalty == 1.0:  # texts that repeat, and a draft model that is near
        assert accepted > 20 and len(model.calls) < len(plain.calls)
    assert model.open_states == 0 and draft_model.open_states == 0


@pytest.mark.parametrize("name", ["ngram", "model"])
def test_above_temperature_0_the_distribution_is_the_same(name: str) -> None:
    """Of the first three tokens together, counted over many seeds, against the product of the model's own probabilities."""
    options = GenerationOptions(max_tokens=3, temperature=1.2, top_k=3)
    prompt, runs = "abcabcab", 1200
    counts: Counter[tuple[int, ...]] = Counter()
    model, draft_model = RecurrentModel(sharpness=0.3), RecurrentModel(sharpness=0.3, noise=0.3)
    drafts = (StepSeconds(dict(CHEAP)), drafting(name, draft_model))
    guessed = accepted = 0
    with LanguageModel(model, ByteTokens(), SchedulerSettings(prefix_bytes=0), drafts) as opened:
        for first in range(0, runs, 8):
            drawn = [
                opened.generate(prompt, GenerationOptions(max_tokens=3, temperature=1.2, top_k=3, seed=seed), raw=True)
                for seed in range(first, min(first + 8, runs))
            ]
            for stream in drawn:
                list(stream)
                counts[tuple(record.token for record in stream.records)] += 1
                guessed += stream.figures.guessed_tokens
                accepted += stream.figures.accepted_tokens
    expected = text_probabilities(prompt, options)
    assert set(counts) <= set(expected)
    for text, probability in expected.items():
        assert abs(counts[text] - runs * probability) < 5 * np.sqrt(runs * probability) + 1, text
    if name == "model":
        assert runs / 20 < accepted < guessed, "some were accepted, and some were not"


def text_probabilities(prompt: str, options: GenerationOptions) -> dict[tuple[int, ...], float]:
    from bricolage.language.token_sampling import next_distribution

    model, texts = RecurrentModel(sharpness=0.3), {(): 1.0}
    for _ in range(options.max_tokens):
        longer: dict[tuple[int, ...], float] = {}
        for text, probability in texts.items():
            (logits,) = model.extend([(model.open_sequence(), [*ByteTokens().encode(prompt), *text])])
            distribution = next_distribution(logits[0], (), options)
            for token, share in zip(distribution.tokens, distribution.probabilities, strict=True):
                longer[*text, int(token)] = probability * float(share)
        texts = longer
    return texts


def test_n_grams_go_on_as_the_text_did() -> None:
    drafter = NgramDrafter()
    assert drafter.guess([1, 2, 3, 4, 1, 2], 3).tokens == (3, 4, 1)
    assert drafter.guess([1, 2, 3, 4, 1, 2, 9, 1, 2], 2).tokens == (9, 1), "the last place counts"
    assert drafter.guess([1, 2, 3, 4, 1, 2, 9, 1, 2, 7, 3, 4, 1, 2], 2).tokens == (9, 1), "the longest n-gram counts"
    assert drafter.guess([1, 2, 3, 4, 1, 2, 9, 1, 2, 7, 3, 4, 1, 2, 50], 2).tokens == ()
    draws, tokens, grown = np.random.default_rng(3), list[int](), NgramDrafter()
    for _ in range(300):
        tokens.append(int(draws.integers(4)))
        assert grown.guess(tokens, 3).tokens == NgramDrafter().guess(tokens, 3).tokens, "as from the whole text at once"


def test_the_number_of_guesses_is_the_best_of_all() -> None:
    draws = np.random.default_rng(5)
    for _ in range(200):
        times = StepSeconds(dict(zip((1, 2, 3, 4, 6, 8), np.sort(draws.uniform(1, 4, 6)), strict=True)))
        acceptance, sequences = float(draws.uniform(0, 1)), int(draws.integers(1, 4))
        guess_s = float(draws.uniform(0, 0.3))
        gains = {
            guesses: sum(acceptance**power for power in range(guesses + 1))
            * times.predict(sequences)
            / (times.predict(sequences * (1 + guesses)) + guesses * guess_s * sequences)
            for guesses in range(1, 8 // sequences)
        }
        best = max(gains, key=gains.__getitem__)
        chosen = choose_guesses(times, acceptance, sequences, 8, guess_s)
        assert chosen == (best if gains[best] > 1.03 else 0)
    assert expected_tokens(0.5, 2) == 1.75 and expected_tokens(1.0, 4) == 5
    assert choose_guesses(StepSeconds(dict(CHEAP)), 0.9, 8, 8, 0.0) == 0, "no row is left"


def test_times_of_steps_between_and_beyond_what_was_measured() -> None:
    times = StepSeconds({1: 1.0, 2: 1.5, 4: 2.0})
    assert [times.predict(rows) for rows in (1, 2, 3, 4, 8)] == [1.0, 1.5, 1.75, 2.0, 4.0]
    for _ in range(200):
        times.observe(1, 2.0, guessed=False)  # a longer context
    assert times.predict(1) == pytest.approx(2.0) and times.predict(4) == pytest.approx(6.0), "as much for each row"
    for _ in range(200):
        times.observe(4, 9.0, guessed=True)  # guesses that do not pay
    assert times.predict(4) == pytest.approx(9.0) and times.predict(1) == pytest.approx(2.0)


def test_steps_are_measured_and_leave_nothing() -> None:
    model = RecurrentModel()
    model.seconds_a_row = 0.002
    seconds = measure_steps(model, 4)
    assert set(seconds) == {1, 2, 3, 4} and seconds[4] > seconds[1] >= 0.002
    assert model.open_states == 0


def test_guesses_end_where_they_lose() -> None:
    """Steps of a processor without power to spare: n rows take n times as long. Nothing is guessed, and the guesses of n-grams are
    still watched."""
    linear = StepSeconds({rows: float(rows) for rows in (1, 2, 3, 4, 8)})
    watching = SequenceSpeculation(NgramDrafter(), linear, 8)
    repeated = [1, 2, 3, 4] * 20
    for end in range(10, len(repeated)):
        draft = watching.guess(repeated[:end], 1, 8)
        assert draft.tokens == ()
        watching.observe(draft, 0, repeated[end])
    assert watching.acceptance > 0.95 and watching.counts["guessed"] == 0


def test_guesses_begin_where_the_text_begins_to_repeat() -> None:
    times = StepSeconds({1: 1.0, 2: 1.3, 4: 1.8, 8: 3.0})
    speculation = SequenceSpeculation(NgramDrafter(), times, 8, acceptance=0.1)
    text = [*range(100, 140), *([1, 2, 3, 4, 5] * 20)]
    numbers = []
    for end in range(20, len(text)):
        draft = speculation.guess(text[:end], 1, 8)
        numbers.append(len(draft.tokens))
        pairs = zip(draft.tokens, text[end:], strict=False)
        accepted = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
        speculation.observe(draft, accepted, text[end])
    assert not any(numbers[:30]) and all(numbers[-30:])


@pytest.mark.parametrize("attention_s", [0.0, 0.4])
@pytest.mark.parametrize("accepted_of_seven", [0, 1])
def test_guesses_lose_two_hundredths_of_a_text_at_most(attention_s: float, accepted_of_seven: int) -> None:
    """Each guess repeats what the text never does again, or now and then. A context that is longer than at load takes `attention_s`
    a row, which only the steps themselves tell."""
    times = StepSeconds({1: 1.0, 2: 1.2, 4: 1.6, 8: 2.4})
    real = dict(times.seconds)
    speculation = SequenceSpeculation(_Prompted(), times, 8, acceptance=0.8)
    taken, written = 0.0, 0
    for step in range(400):
        draft = speculation.guess([0] * (written + 1), 1, 7)
        rows = 1 + len(draft.tokens)
        seconds = StepSeconds(dict(real)).predict(rows) + attention_s * rows
        if draft.tokens:
            speculation.bear(seconds - times.predict(1))
        times.observe(rows, seconds, guessed=bool(draft.tokens))
        accepted = min(len(draft.tokens), 1) if step % 7 < accepted_of_seven else 0
        speculation.observe(draft, accepted, 1)
        taken, written = taken + seconds, written + 1 + accepted
        if written >= 64:
            assert taken <= written * (1.0 + attention_s) / 0.98
    assert speculation.counts["guessed"] > 0


class _Prompted:
    """Always guesses."""

    watches = True

    def guess(self, tokens: Sequence[int], count: int) -> Draft:
        del tokens
        return Draft((1,) * count, (certain(1),) * count)

    def close(self) -> None:
        pass


def test_a_draft_model_that_is_always_wrong_is_asked_less_and_less() -> None:
    model = RecurrentModel()
    times = StepSeconds({1: 1.0, 2: 1.2, 4: 1.6, 8: 2.4})
    speculation = SequenceSpeculation(ModelDrafter(model, GenerationOptions()), times, 8)
    asked = []
    for step in range(2000):
        draft = speculation.guess([1, 2, 3], 1, 8)
        asked.append(step) if draft.tokens else None
        speculation.observe(draft, 0, 0)
    assert 8 <= len(asked) < 120
    assert np.count_nonzero(np.array(asked) >= 1000) < np.count_nonzero(np.array(asked) < 1000)
    speculation.drafter.close()


def test_a_draft_model_of_other_tokens() -> None:
    check_same_tokens(ByteTokens(), ByteTokens())
    with pytest.raises(OtherVocabulary, match="259 and 260 tokens"):
        check_same_tokens(ByteTokens(), ByteTokens(size=260))
    other = ByteTokens()
    other.token_bytes = lambda token: b"?" if token == 65 else ByteTokens().token_bytes(token)  # type: ignore[method-assign]
    with pytest.raises(OtherVocabulary, match="token 65 is another text"):
        check_same_tokens(ByteTokens(), other)


def test_a_text_beyond_the_draft_model_s_context_is_written_all_the_same() -> None:
    draft_model = RecurrentModel(context_length=30)
    drafts = (StepSeconds(dict(CHEAP)), drafting("model", draft_model))
    with LanguageModel(RecurrentModel(), ByteTokens(), None, drafts) as opened:
        stream = opened.generate("a text of ten", GenerationOptions(max_tokens=60), raw=True)
        list(stream)
        assert len(stream.records) == 60 and stream.figures.guessed_tokens > 0
