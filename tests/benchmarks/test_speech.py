"""Text from scores: against all paths, counted one by one."""

from __future__ import annotations

import itertools
from collections import defaultdict

import numpy as np
import pytest

pytest.importorskip("torch")

from benchmarks.workloads.speech import beam_search, most_likely_path

SMALL = "_ab"


def text_of(path: tuple[int, ...]) -> str:
    """Repeated letters are one, and none goes."""
    return "".join(SMALL[letter] for letter, _ in itertools.groupby(path) if letter)


def by_counting(scores: np.ndarray) -> tuple[str, float]:
    """The likeliest text, from the probability of every path."""
    chances = np.exp(scores - np.logaddexp.reduce(scores, axis=1, keepdims=True))
    found: dict[str, float] = defaultdict(float)
    for path in itertools.product(range(len(SMALL)), repeat=len(scores)):
        found[text_of(path)] += float(np.prod([chances[step, letter] for step, letter in enumerate(path)]))
    return max(found.items(), key=lambda one: one[1])


@pytest.mark.parametrize("seed", range(20))
def test_a_wide_beam_finds_the_likeliest_text(seed: int) -> None:
    scores = np.random.default_rng(seed).normal(0, 1.5, (6, len(SMALL)))
    wanted, chance = by_counting(scores)
    text, log = beam_search(scores, width=1000, letters=SMALL)
    assert text == wanted and np.exp(log) == pytest.approx(chance)


@pytest.mark.parametrize(
    ("path", "text"), [("__aa_ab_", "aab"), ("abba", "aba"), ("____", ""), ("a_a_a", "aaa"), ("bbbb", "b")]
)
def test_the_likeliest_path_is_read(path: str, text: str) -> None:
    scores = np.eye(len(SMALL))[[SMALL.index(letter) for letter in path]]
    assert most_likely_path(scores, SMALL) == text
