"""From logits to a token: the distribution that the options make of them, and one draw from it.

The order is that of Transformers (`generation/utils.py`, `_get_logits_processor`, version 5.23); llama.cpp has the temperature
last. Probabilities are computed in float64, log-probabilities in float32.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bricolage.base.generation_options import GenerationOptions
from bricolage.errors import UndefinedLogits


@dataclass(frozen=True)
class Distribution:
    """Of the next token."""

    tokens: NDArray[np.int64]
    """That may be drawn, ascending."""
    probabilities: NDArray[np.float64]
    """Of these, with a sum of 1."""

    def draw(self, generator: np.random.Generator) -> int:
        """One token, for one uniform number of the generator; none is taken where there is no choice."""
        if len(self.tokens) == 1:
            return int(self.tokens[0])
        cumulative = np.cumsum(self.probabilities)
        place = int(np.searchsorted(cumulative, generator.random() * cumulative[-1], side="right"))
        return int(self.tokens[min(place, len(self.tokens) - 1)])

    def probability(self, token: int) -> float:
        """Of a token."""
        place = int(np.searchsorted(self.tokens, token))
        return float(self.probabilities[place]) if place < len(self.tokens) and self.tokens[place] == token else 0.0

    def without(self, other: Distribution) -> Distribution:
        """(p - q)⁺ with a sum of 1: from what a token is drawn where one of `other` was refused (Leviathan et al., "Fast Inference
        from Transformers via Speculative Decoding", 2023). Where nothing is left by rounding, p itself."""
        places = np.searchsorted(other.tokens, self.tokens)
        places[places == len(other.tokens)] = 0
        common = np.where(other.tokens[places] == self.tokens, other.probabilities[places], 0.0)
        rest = np.maximum(self.probabilities - common, 0.0)
        total = rest.sum()
        if not total > 0.0:
            return self
        return Distribution(self.tokens[rest > 0.0], rest[rest > 0.0] / total)


def certain(token: int) -> Distribution:
    """Of one token that is sure to be drawn."""
    return Distribution(np.array([token], np.int64), np.ones(1))


def next_distribution(
    logits: NDArray[np.float32], seen: Collection[int], options: GenerationOptions, position: int = 0
) -> Distribution:
    """The distribution of the next token.

    Args:
        logits: [vocabulary], not changed.
        seen: tokens that were there before, for the repetition penalty.
        options: what is done to the logits.
        position: of the last token, for the error.

    Raises:
        UndefinedLogits: a logit is NaN.
    """
    scores = _penalised(logits, seen, options)
    best = int(scores.argmax())  # the first of several
    if np.isnan(scores[best]):
        raise UndefinedLogits(position=position)
    if options.temperature == 0.0:
        return certain(best)
    scores = scores / np.float32(options.temperature)
    tokens = np.arange(len(scores))
    if 0 < options.top_k < len(scores):
        tokens = np.flatnonzero(scores >= np.partition(scores, -options.top_k)[-options.top_k])
    weights = np.exp(scores[tokens].astype(np.float64) - float(scores[best]))
    if options.top_p < 1.0:
        tokens, weights = _keep_nucleus(tokens, weights, options.top_p)
    kept = weights >= max(options.min_p, np.finfo(np.float64).tiny)  # the weight of the likeliest is 1
    tokens, weights = tokens[kept], weights[kept]
    return Distribution(tokens, weights / weights.sum())


def _penalised(logits: NDArray[np.float32], seen: Collection[int], options: GenerationOptions) -> NDArray[np.float32]:
    penalty = np.float32(options.repetition_penalty)
    if not options.logit_bias and (penalty == 1.0 or not seen):
        return logits
    scores = logits.copy()
    for token, bias in options.logit_bias:
        scores[token] += np.float32(bias)
    if penalty != 1.0 and seen:
        places = np.fromiter(seen, np.int64, len(seen))
        before = scores[places]
        scores[places] = np.where(before < 0, before * penalty, before / penalty)
    return scores


def _keep_nucleus(
    tokens: NDArray[np.int64], weights: NDArray[np.float64], top_p: float
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The likeliest tokens, without those that together have at most 1 - `top_p`. The likeliest stays in any case."""
    spare = (1.0 - top_p) * weights.sum()
    surely_less = (
        weights * len(weights) <= spare
    )  # all of them together are at most that, so that few are left to be sorted
    surely_less[weights.argmax()] = False
    candidates = np.flatnonzero(~surely_less)
    order = candidates[np.argsort(weights[candidates], kind="stable")]
    below = weights[surely_less].sum() + np.cumsum(weights[order])
    kept = np.sort(order[(below > spare) | (np.arange(len(order)) == len(order) - 1)])
    return tokens[kept], weights[kept]


def log_probabilities(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Natural logarithms of softmax over [vocabulary], in float32."""
    shifted = logits - logits.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()), np.float32)


def likeliest(log_probability: NDArray[np.float32], count: int) -> list[tuple[int, float]]:
    """The `count` likeliest tokens with their log-probabilities, in descending order; of equal ones the lower id first."""
    count = min(count, len(log_probability))
    if count == 0:
        return []
    threshold = np.partition(log_probability, -count)[-count]
    tokens = np.flatnonzero(log_probability >= threshold)
    order = tokens[np.argsort(-log_probability[tokens], kind="stable")][:count]
    return [(int(token), float(log_probability[token])) for token in order]
