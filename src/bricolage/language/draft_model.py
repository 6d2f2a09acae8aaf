"""A smaller model with the same tokens that guesses what a larger one will draw."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bricolage.base.generation_options import GenerationOptions
from bricolage.errors import OtherVocabulary
from bricolage.language.speculation import Draft
from bricolage.language.token_model import TextTokens, TokenModel
from bricolage.language.token_sampling import Distribution, next_distribution

_STREAM = 1
"""Of the seed; the sequence itself has 0."""


class ModelDrafter:
    """Draws its guesses as the options say. It keeps a sequence of its own."""

    watches = False

    def __init__(self, model: TokenModel, options: GenerationOptions) -> None:
        self._model, self._options = model, options
        self._generator = np.random.Generator(np.random.PCG64([options.seed, _STREAM]))
        self._state = model.open_sequence()
        self._tokens: list[int] = []
        """Of its sequence."""

    def guess(self, tokens: Sequence[int], count: int) -> Draft:
        """See `Drafter`. Nothing is guessed where the text is longer than the draft model's context."""
        count = min(count, self._model.context_length - len(tokens))
        if count <= 0:
            return Draft()
        common = self._common(tokens)
        self._state.truncate(common)
        missing = list(tokens[common:])
        self._tokens = list(tokens)
        guessed: list[int] = []
        distributions: list[Distribution] = []
        while True:
            logits = self._model.extend([(self._state, missing)])[0][-1]
            distribution = next_distribution(logits, self._tokens, self._options, len(self._tokens))
            guessed.append(distribution.draw(self._generator))
            distributions.append(distribution)
            if len(guessed) == count:
                return Draft(tuple(guessed), tuple(distributions))
            missing = guessed[-1:]
            self._tokens += missing

    def _common(self, tokens: Sequence[int]) -> int:
        """Length of what its sequence has of the text; the last token is run again, for its logits."""
        length = min(self._state.length, len(tokens) - 1)
        places = (place for place in range(length) if self._tokens[place] != tokens[place])
        return next(places, length)

    def close(self) -> None:
        """Gives its sequence back."""
        self._state.close()


def check_same_tokens(first: TextTokens, second: TextTokens) -> None:
    """Makes sure that two models speak of the same tokens.

    Raises:
        OtherVocabulary: a token of one is another text in the other.
    """
    pair = ("the model", "the draft model")
    if first.size != second.size:
        difference = f"{first.size:,} and {second.size:,} tokens"
        raise OtherVocabulary(first=pair[0], second=pair[1], difference=difference)
    for token in range(first.size):
        if first.token_bytes(token) != second.token_bytes(token):
            raise OtherVocabulary(first=pair[0], second=pair[1], difference=f"token {token} is another text")


def check_vocabulary(tokenizer: TextTokens, model: TokenModel) -> None:
    """Makes sure that a model has a place for each token.

    Raises:
        OtherVocabulary: it has fewer.
    """
    if tokenizer.size > model.vocabulary:
        difference = f"{tokenizer.size:,} ids, and logits of {model.vocabulary:,}"
        raise OtherVocabulary(first="the tokenizer", second="the model", difference=difference)
