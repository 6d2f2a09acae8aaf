"""How well a language model predicts a text, and how far its probabilities are from a reference's.

Perplexity is counted as llama.cpp's program for it does (https://github.com/ggml-org/llama.cpp/tree/master/tools/perplexity): the
text is cut into windows side by side, each with the token in front that texts begin with, and the second half of a window is
predicted, each token from all before it in the window. With N predicted tokens t it is exp(-1/N · Σ log p(t)).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bricolage.verify.decoder_reference import compute_divergence

WINDOW = 512
"""Tokens of a window, or all that a model was trained for."""


@dataclass(frozen=True)
class TextAccuracy:
    """Of a model on a text that it has not seen."""

    windows: int
    window: int
    """Tokens of each."""
    tokens: int
    """That were predicted."""
    perplexity: float
    perplexity_error: float
    """Standard error of the mean, as perplexity."""
    reference_perplexity: float
    """Of the reference, on the same tokens."""
    kl: float
    """From the reference, in nats: the mean over predicted tokens."""
    largest_kl: float
    """Of a window."""
    agreement: float
    """Share of tokens whose likeliest successor is the reference's."""


class AccuracyCounter:
    """Adds up windows."""

    def __init__(self) -> None:
        self._losses: list[np.ndarray] = []
        self._reference_losses: list[np.ndarray] = []
        self._divergences: list[float] = []
        self._agreed = 0
        self._window = 0

    def add(self, window: Sequence[int], reference: np.ndarray, logits: np.ndarray) -> None:
        """A window with logits [predicted, vocabulary] of its last tokens but one, by the reference and by the model."""
        targets = np.asarray(window[len(window) - len(logits) :])
        self._window = len(window)
        self._losses.append(_compute_losses(logits, targets))
        self._reference_losses.append(_compute_losses(reference, targets))
        self._divergences.append(compute_divergence(reference, logits))
        self._agreed += int((reference.argmax(axis=-1) == logits.argmax(axis=-1)).sum())

    def count(self) -> TextAccuracy:
        """Of all windows, of which there is one at least."""
        losses, reference = np.concatenate(self._losses), np.concatenate(self._reference_losses)
        perplexity = math.exp(losses.mean())
        spread = float(losses.std(ddof=1)) / math.sqrt(len(losses)) if len(losses) > 1 else 0.0
        return TextAccuracy(
            windows=len(self._losses),
            window=self._window,
            tokens=len(losses),
            perplexity=perplexity,
            perplexity_error=perplexity * spread,
            reference_perplexity=math.exp(reference.mean()),
            kl=float(np.mean(self._divergences)),
            largest_kl=max(self._divergences),
            agreement=self._agreed / len(losses),
        )


def _compute_losses(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """float64 [tokens]: -log p of the tokens that follow."""
    wide = logits.astype(np.float64)
    top = wide.max(axis=-1)
    totals = np.log(np.exp(wide - top[:, None]).sum(axis=-1)) + top
    return np.asarray(totals - wide[np.arange(len(targets)), targets])


def cut_windows(tokens: Sequence[int], window: int, begin: int | None) -> list[list[int]]:
    """Windows side by side, the rest left out. With a token that texts begin with, it stands in the place of each first one."""
    cut = [list(tokens[start : start + window]) for start in range(0, len(tokens) - window + 1, window)]
    return cut if begin is None else [[begin, *piece[1:]] for piece in cut]


def count_context(window: int) -> int:
    """Tokens of a window in front of the first that is predicted."""
    return window // 2
