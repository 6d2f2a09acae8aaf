"""Perplexity is counted as its formula says."""

from __future__ import annotations

import math

import numpy as np

from bricolage.verify.text_accuracy import AccuracyCounter, count_context, cut_windows


def test_it_is_counted_as_by_hand() -> None:
    draw, windows = np.random.default_rng(0), [[1, 2, 3, 4, 0, 2, 1, 3], [4, 4, 2, 0, 1, 1, 3, 2]]
    counter, losses, divergences, agreed = AccuracyCounter(), [], [], []
    for window in windows:
        first, count = count_context(8), 3
        reference, logits = draw.standard_normal((2, count, 5)).astype(np.float32) * 3
        counter.add(window, reference, logits)
        for row in range(count):
            p, q = (np.exp(scores[row].astype(float)) for scores in (reference, logits))
            p, q = p / p.sum(), q / q.sum()
            losses.append(-math.log(q[window[first + 1 + row]]))
            divergences.append(sum(p[i] * math.log(p[i] / q[i]) for i in range(5)))
            agreed.append(p.argmax() == q.argmax())
    accuracy = counter.count()
    assert accuracy.tokens == 6 and accuracy.windows == 2 and accuracy.window == 8
    assert math.isclose(accuracy.perplexity, math.exp(sum(losses) / 6), rel_tol=1e-9)
    assert math.isclose(accuracy.kl, sum(divergences) / 6, rel_tol=1e-6)
    assert accuracy.agreement == sum(agreed) / 6
    assert math.isclose(accuracy.perplexity_error, accuracy.perplexity * np.std(losses, ddof=1) / 6**0.5)


def test_windows_lie_side_by_side() -> None:
    assert cut_windows(range(10), 4, None) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert cut_windows(range(10), 4, 9) == [[9, 1, 2, 3], [9, 5, 6, 7]]
    assert cut_windows(range(3), 4, None) == []
