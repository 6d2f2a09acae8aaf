"""What a user can set when a language model generates text."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from bricolage.base.option_words import parse_bytes
from bricolage.base.options import declare_option
from bricolage.errors import BadOption

MOST_LOGPROBS = 20
"""Tokens whose log-probabilities are told at each place."""
MOST_SEED = 2**64 - 1


@dataclass(frozen=True)
class GenerationOptions:
    """How tokens are drawn, and when a text ends. Logits are changed in the order of Transformers: `logit_bias`,
    `repetition_penalty`, `temperature`, `top_k`, `top_p`, `min_p`; then one token is drawn. The command line derives from the
    fields that have a flag.

    Raises:
        BadOption: a value is out of its range.
    """

    max_tokens: int = declare_option(256, flag="--max-tokens", metavar="N", help="New tokens at most.")
    temperature: float = declare_option(
        0.0, flag="--temperature", metavar="T", help="0 takes the likeliest token; 1 draws as the model was trained."
    )
    """The likeliest token of the lowest id, where several are equally likely."""
    top_k: int = declare_option(0, flag="--top-k", metavar="K", help="Draw among the K likeliest tokens; 0: all.")
    top_p: float = declare_option(
        1.0, flag="--top-p", metavar="P", help="Draw among the likeliest tokens that together have this probability."
    )
    min_p: float = declare_option(
        0.0, flag="--min-p", metavar="P", help="Leave out what is less likely than P times the likeliest token."
    )
    repetition_penalty: float = declare_option(
        1.0, flag="--repetition-penalty", metavar="F", help="Above 1: tokens that were there before are less likely."
    )
    seed: int = declare_option(0, flag="--seed", metavar="N", help="Of the draws. The same seed gives the same text.")
    stop: tuple[str, ...] = declare_option(
        (), flag="--stop", metavar="TEXT", help="End in front of this text. Repeatable.", parse=tuple
    )
    logprobs: int | None = declare_option(
        None, flag="--logprobs", metavar="N", help="Give log-probabilities of each token, and of the N likeliest."
    )
    """Those of the model, whatever the other options do to it."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token, what is added to its logit)."""

    def __post_init__(self) -> None:
        _check("--max-tokens", self.max_tokens, self.max_tokens >= 0, "Give a number from 0")
        _check("--temperature", self.temperature, 0 <= self.temperature < math.inf, "Give a number from 0")
        _check("--top-k", self.top_k, self.top_k >= 0, "Give a number from 0")
        _check("--top-p", self.top_p, 0 < self.top_p <= 1, "Give a number above 0, up to 1")
        _check("--min-p", self.min_p, 0 <= self.min_p <= 1, "Give a number from 0 to 1")
        penalty = self.repetition_penalty
        _check("--repetition-penalty", penalty, 0 < penalty < math.inf, "Give a number above 0")
        _check("--seed", self.seed, 0 <= self.seed <= MOST_SEED, f"Give a number from 0 to {MOST_SEED}")
        _check("--stop", "", "" not in self.stop, "Give a text of one letter at least")
        likeliest = self.logprobs
        in_range = likeliest is None or 0 <= likeliest <= MOST_LOGPROBS
        _check("--logprobs", likeliest, in_range, f"Give a number from 0 to {MOST_LOGPROBS}")
        self._check_bias()

    def _check_bias(self) -> None:
        biases: Iterable[tuple[int, float]] = self.logit_bias
        for token, bias in biases:
            _check(
                "logit_bias", f"{token}: {bias}", token >= 0 and -100 <= bias <= 100, "Give numbers from -100 to 100"
            )


def _check(option: str, value: object, holds: bool, advice: str) -> None:
    if not holds:
        raise BadOption(option=option, value=value, advice=advice)


NGRAM = "ngram"
LANGUAGE_PRECISIONS = ("highest", "low")
CACHES = ("float16", "float32", "q8_0")


def _parse_prefix_bytes(word: str) -> int:
    return 0 if word.strip() == "0" else parse_bytes(word, "--prefix-memory")


@dataclass(frozen=True)
class LanguageSettings:
    """How a language model is opened. The command line derives from the fields that have a flag.

    Raises:
        BadOption: a number is out of its range.
    """

    threads: int | None = declare_option(None, flag="--threads", metavar="N", help="Cores to use; default: all.")
    precision: str | None = declare_option(
        None,
        flag="--precision",
        metavar="WORD",
        help="highest, or low: numbers in bytes, which is faster. Default: what an artifact was decided at; of a file highest.",
    )
    """`highest`, or `low`: rows are rounded to bytes. None: what an artifact was decided at; of a model's file `highest`."""
    speculate: str = declare_option(
        "",
        flag="--speculate",
        metavar="HOW",
        help="Guess tokens ahead where that gains: ngram, or a smaller model with the same tokens.",
    )
    """What guesses tokens ahead: nothing, `ngram` (the text itself), or the path of a smaller model with the same tokens. Guesses
    are made where they gain."""
    most_sequences: int = declare_option(
        8, flag="--sequences", metavar="N", help="Texts that are written at a time; others wait."
    )
    prefix_bytes: int = declare_option(
        512 * 2**20,
        flag="--prefix-memory",
        metavar="SIZE",
        help="Memory for prompts that begin as an earlier one did; 0: none. [default: 512MiB]",
        parse=_parse_prefix_bytes,
    )
    prepare: bool = False
    """Whether all programs are compiled at once, and not when they are first needed."""
    cache: str = declare_option(
        "float16",
        flag="--cache",
        metavar="TYPE",
        help="Numbers of the cache: float16, float32 (twice the memory) or q8_0 (half).",
    )
    """In what keys and values are kept: `float16`, `float32`, which takes twice as much memory, or `q8_0`, bytes with a scale for
    32 of them, which takes half."""

    def __post_init__(self) -> None:
        _check("--threads", self.threads, self.threads is None or self.threads > 0, "Give a number from 1")
        exists = self.precision in (None, *LANGUAGE_PRECISIONS)
        _check("--precision", self.precision, exists, f"Write {' or '.join(LANGUAGE_PRECISIONS)}")
        _check("--cache", self.cache, self.cache in CACHES, f"Write {', '.join(CACHES[:-1])} or {CACHES[-1]}")
        _check("--sequences", self.most_sequences, self.most_sequences > 0, "Give a number from 1")
        _check("--prefix-memory", self.prefix_bytes, self.prefix_bytes >= 0, "Give a number from 0")
