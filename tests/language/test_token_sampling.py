"""Distributions against Transformers' own processors, draws by their counts."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from bricolage.base.generation_options import GenerationOptions
from bricolage.errors import BadOption, UndefinedLogits
from bricolage.language.token_sampling import Distribution, likeliest, log_probabilities, next_distribution

SIZE = 300


def scores(seed: int, scale: float = 2.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(scale=scale, size=SIZE).astype(np.float32)


def dense(distribution: Distribution, size: int = SIZE) -> np.ndarray:
    probabilities = np.zeros(size)
    probabilities[distribution.tokens] = distribution.probabilities
    return probabilities


@pytest.mark.parametrize("seed", range(4))
def test_the_order_and_the_sets_are_those_of_transformers(seed: int) -> None:
    torch = pytest.importorskip("torch")
    processors = pytest.importorskip("transformers.generation.logits_process")
    seen, logits = [1, 5, 9, 9, 200], scores(seed)
    for penalty, heat, top_k, top_p, min_p in itertools.product(
        (1.0, 1.3), (0.5, 1.0, 1.7), (0, 1, 7, 1000), (0.05, 0.9, 1.0), (0.0, 0.1)
    ):
        options = GenerationOptions(
            temperature=heat, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=penalty, logit_bias=((5, 1.5),)
        )
        chain = [processors.SequenceBiasLogitsProcessor({(5,): 1.5})]
        chain += [processors.RepetitionPenaltyLogitsProcessor(penalty)] if penalty != 1.0 else []
        chain += [processors.TemperatureLogitsWarper(heat)]
        chain += [processors.TopKLogitsWarper(top_k)] if top_k else []
        chain += [processors.TopPLogitsWarper(top_p)] if top_p < 1.0 else []
        chain += [processors.MinPLogitsWarper(min_p)] if min_p else []
        values = torch.from_numpy(logits.copy())[None]
        for processor in chain:
            values = processor(torch.tensor([seen]), values)
        expected = values.double().softmax(-1)[0].numpy()
        computed = next_distribution(logits, set(seen), options)
        assert set(computed.tokens) == set(np.flatnonzero(expected)), options
        np.testing.assert_allclose(dense(computed), expected, rtol=2e-6, atol=1e-12)
        greedy = next_distribution(
            logits, set(seen), GenerationOptions(repetition_penalty=penalty, logit_bias=((5, 1.5),))
        )
        assert list(greedy.tokens) == [int(expected.argmax())]


def test_of_equal_tokens_the_lowest_is_taken() -> None:
    logits = np.zeros(SIZE, np.float32)
    logits[[7, 3, 250]] = 2.0
    assert list(next_distribution(logits, (), GenerationOptions()).tokens) == [3]
    kept = next_distribution(logits, (), GenerationOptions(temperature=1.0, top_k=2))
    assert list(kept.tokens) == [3, 7, 250], "top-k keeps what is equal to the last one, as Transformers does"


def test_draws_have_the_probabilities() -> None:
    distribution = next_distribution(scores(1), (), GenerationOptions(temperature=1.0, top_k=6))
    generator, count = np.random.default_rng(4), 20_000
    drawn = Counter(distribution.draw(generator) for _ in range(count))
    for token, probability in zip(distribution.tokens, distribution.probabilities, strict=True):
        assert abs(drawn[int(token)] - count * probability) < 5 * np.sqrt(count * probability)
        assert distribution.probability(int(token)) == probability
    assert distribution.probability(int(np.setdiff1d(np.arange(SIZE), distribution.tokens)[0])) == 0.0


def test_the_rest_of_two_distributions() -> None:
    first = next_distribution(scores(1), (), GenerationOptions(temperature=1.0))
    second = next_distribution(scores(2), (), GenerationOptions(temperature=1.0, top_k=40))
    expected = np.maximum(dense(first) - dense(second), 0)
    np.testing.assert_allclose(dense(first.without(second)), expected / expected.sum(), rtol=1e-12)
    np.testing.assert_array_equal(dense(first.without(first)), dense(first))


def test_log_probabilities() -> None:
    torch = pytest.importorskip("torch")
    logits = scores(3, scale=8.0)
    computed = log_probabilities(logits)
    assert computed.dtype == np.float32
    np.testing.assert_allclose(computed, torch.from_numpy(logits).log_softmax(-1).numpy(), atol=2e-6)
    order = sorted(range(SIZE), key=lambda token: (-computed[token], token))
    assert likeliest(computed, 20) == [(token, float(computed[token])) for token in order[:20]]
    assert likeliest(np.zeros(4, np.float32), 2) == [(0, 0.0), (1, 0.0)] and likeliest(computed, 0) == []


def test_an_undefined_logit_is_an_error() -> None:
    logits = scores(1)
    logits[9] = np.nan
    with pytest.raises(UndefinedLogits, match="behind token 12"):
        next_distribution(logits, (), GenerationOptions(), 12)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": -1},
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"repetition_penalty": 0.0},
        {"seed": -1},
        {"stop": ("",)},
        {"logprobs": 21},
        {"logit_bias": ((3, 101.0),)},
    ],
    ids=str,
)
def test_options_out_of_range(wrong: dict[str, object]) -> None:
    with pytest.raises(BadOption):
        GenerationOptions(**wrong)  # type: ignore[arg-type]
