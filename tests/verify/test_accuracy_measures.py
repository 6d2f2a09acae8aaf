"""Accuracy that a user asks for on samples: what each measure says, and what is told where it cannot be measured."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bricolage.base.option_words import parse_accuracy
from bricolage.errors import BadOption, MetricFails, MissingFile, UnusableSamples
from bricolage.verify.accuracy_measures import AccuracyDemand

RNG = np.random.default_rng(0)
REFERENCE = [{"y": RNG.standard_normal((3, 5))} for _ in range(4)]


def off(by: float) -> list[dict[str, np.ndarray]]:
    """Answers in float32 whose relative error is `by`, for each sample."""
    found = []
    for one in REFERENCE:
        noise = np.random.default_rng(1).standard_normal(one["y"].shape)
        noise *= by * np.linalg.norm(one["y"]) / np.linalg.norm(noise)
        found.append({"y": (one["y"] + noise).astype(np.float32)})
    return found


@pytest.mark.parametrize(
    "word", ["sqnr=20", "cosine=0.99", "top1=0.5", "relative", "a/b.py:score>=0.9", "m.py:f<=-1e-3"]
)
def test_words_that_mean_something(word: str) -> None:
    parsed = parse_accuracy(word)
    assert (parsed.limit is None) == (word == "relative")
    assert parsed.at_least == (">" in word or ("=" in word and "<" not in word))


@pytest.mark.parametrize(
    "word", ["", "sqnr", "sqnr=nan", "cosine=1.5", "top1=99", "psnr=3", "m.py:f", "m.py:f>=x", "m.py:1f>=2"]
)
def test_words_that_mean_nothing_are_refused(word: str) -> None:
    with pytest.raises(BadOption, match="--accuracy"):
        parse_accuracy(word)


@given(st.floats(1e-4, 0.5))
def test_a_signal_to_noise_ratio_is_the_relative_error_in_decibels(by: float) -> None:
    found = AccuracyDemand("sqnr=0", 0.1).judged(off(by), REFERENCE)
    assert found.value == pytest.approx(-20 * math.log10(by), abs=0.01)
    assert found.error == pytest.approx(by, rel=1e-3)


def test_each_measure_has_its_side_of_the_limit() -> None:
    near, far = off(0.01), off(0.5)
    for word in ("relative", "sqnr=30", "cosine=0.99"):
        demand = AccuracyDemand(word, 0.1)
        assert demand.judged(near, REFERENCE).met and not demand.judged(far, REFERENCE).met
        assert demand.judged(REFERENCE, REFERENCE).met
    missed = demand.judged(far, REFERENCE)
    assert 0.1 < demand.excess(missed, 0.1) <= 0.2
    assert demand.excess(demand.judged(near, REFERENCE), 0.1) == 0.0


def test_top_1_counts_rows() -> None:
    answers = [dict(one) for one in REFERENCE]
    changed = answers[0]["y"].copy()
    changed[0] = -changed[0]
    answers[0] = {"y": changed}
    found = AccuracyDemand("top1=0.9", 0.1).judged(answers, REFERENCE)
    assert found.value == pytest.approx(11 / 12) and found.met
    with pytest.raises(UnusableSamples, match="scores"):
        AccuracyDemand("top1=0.9", 0.1).judged([{"y": np.zeros(())}], [{"y": np.zeros(())}])


def test_an_answer_that_is_not_finite_meets_nothing() -> None:
    broken = [{"y": np.full((3, 5), np.nan)} for _ in REFERENCE]
    for word in ("relative", "sqnr=1", "cosine=0.5"):
        assert not AccuracyDemand(word, 0.1).judged(broken, REFERENCE).met


def metric(folder: Path, text: str) -> str:
    path = folder / "metric.py"
    path.write_text(text)
    return f"{path}:score>=0.75"


def test_a_function_of_the_users_judges_with_data_of_his(tmp_path: Path) -> None:
    word = metric(
        tmp_path,
        "import numpy as np\n"
        "def score(outputs, reference, samples):\n"
        "    return np.mean([o['y'].argmax() == s['label'] for o, s in zip(outputs, samples)])\n",
    )
    samples = [{"label": one["y"].argmax()} for one in REFERENCE]
    found = AccuracyDemand(word, 0.1).judged(off(1e-6), REFERENCE, samples)
    assert found.met and found.value == 1.0 and "score 1 on 4 samples" in found.told
    samples[0] = {"label": -1}
    samples[1] = {"label": -1}
    assert not AccuracyDemand(word, 0.1).judged(off(1e-6), REFERENCE, samples).met


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def score(outputs, reference): raise ValueError('no labels')", "raises ValueError: no labels"),
        ("def score(outputs, reference): return 'good'", "raises ValueError"),
        ("def score(outputs, reference): return float('nan')", "NaN"),
        ("other = 1", "no such function"),
        ("import nowhere_to_be_found", "raises ModuleNotFoundError"),
    ],
)
def test_a_function_that_cannot_be_used_is_told(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(MetricFails, match=told):
        AccuracyDemand(metric(tmp_path, text), 0.1).judged(REFERENCE, REFERENCE)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(MissingFile):
        AccuracyDemand(f"{tmp_path}/none.py:score>=1", 0.1)


def test_the_digest_follows_the_file(tmp_path: Path) -> None:
    word = metric(tmp_path, "def score(a, b): return 1")
    before = AccuracyDemand(word, 0.1).digest
    assert before == AccuracyDemand(word, 0.1).digest
    metric(tmp_path, "def score(a, b): return 2")
    assert AccuracyDemand(word, 0.1).digest != before
