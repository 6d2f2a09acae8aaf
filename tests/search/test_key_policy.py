"""Policies of random keys: numpy and PyTorch compute the same, files are read again, what is none is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bricolage.errors import BadOption
from bricolage.search.key_policy import (
    BETAS,
    FEATURES,
    KeyFeatures,
    KeyPolicy,
    list_weight_shapes,
    load_policy,
    make_distributions,
)
from bricolage.work.random_keys import KeyDistributions, RandomKeyOptions, minimise

NAMES = ("merge", "fold", "", "")
FEATURES_OF_FOUR = KeyFeatures.of_gains(
    NAMES, np.arange(4), np.array([True, False, False, False]), [(np.array([0, 0, 2]), np.array([0.25, -0.04, 0.0]))]
)


def test_features_say_how_many_steps_depend_on_a_key_and_what_they_gain() -> None:
    assert FEATURES_OF_FOUR.table.shape == (4, FEATURES)
    assert FEATURES_OF_FOUR.touched.tolist() == [True, False, True, False]
    _, touched, steps, mean, best, worst = FEATURES_OF_FOUR.table[0, 4:]
    assert touched and steps == pytest.approx(np.log(3.0) / 4.0)
    assert (best, worst) == (0.5, -0.2) and mean == pytest.approx(0.15), "square roots of shares, with their sign"
    assert not FEATURES_OF_FOUR.table[1, 5:].any(), "nothing depends on it"


def test_the_network_computes_what_the_policy_computes() -> None:
    torch = pytest.importorskip("torch")
    from bricolage.search.key_network import KeyNetwork

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = KeyNetwork(["fold", "unknown"], 8)
        for weight in network.parameters():
            torch.nn.init.normal_(weight)
    logits = network.freeze_policy().compute_logits(FEATURES_OF_FOUR)
    normalised = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    assert network.compute_log_probs(FEATURES_OF_FOUR).detach().numpy() == pytest.approx(normalised, abs=1e-4)


def test_a_file_gives_the_same_choices_and_what_is_none_is_refused(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    weights = {name: random.standard_normal(shape) for name, shape in list_weight_shapes(1, 4).items()}
    policy, file = KeyPolicy(("merge",), weights), tmp_path / "policy.json"
    policy.save(file)
    chosen, again = (each.choose_distributions(FEATURES_OF_FOUR) for each in (policy, load_policy(file)))
    assert np.array_equal(chosen.alpha, again.alpha) and np.array_equal(chosen.beta, again.beta)
    with pytest.raises(ValueError, match="no weights"):
        KeyPolicy(("merge", "fold"), weights)
    for text in ("", "[]", '{"names": []}', '{"names": ["a"], "weights": {"enter_bias": [1]}}'):
        file.write_text(text)
        with pytest.raises(BadOption, match="rules learn"):
            load_policy(file)
    with pytest.raises(BadOption, match="rules learn"):
        load_policy(tmp_path)


def test_the_shipped_policy_knows_rules_of_the_catalogue() -> None:
    from bricolage.rewrite.catalogue import choose_rules

    shipped = load_policy()
    assert set(shipped.names) <= {rule.name for rule in choose_rules(stable=True)} and shipped.names


def test_individuals_come_from_the_distributions() -> None:
    distributions = make_distributions(np.array([1, 5, 0]))
    means = np.mean([distributions.draw(np.random.default_rng(seed)) for seed in range(400)], axis=0)
    assert means == pytest.approx(BETAS[[1, 5, 0], 0] / BETAS[[1, 5, 0]].sum(axis=1), abs=0.05)
    seen: list[np.ndarray] = []

    def score(keys: np.ndarray) -> float:
        seen.append(keys)
        return float(keys.sum())

    options = RandomKeyOptions(population=40, generations=0)
    minimise(score, [np.full(3, 0.5)], options, distributions=distributions)
    assert np.mean(seen[1:], axis=0) == pytest.approx(means, abs=0.15), "not near the first start"
    with pytest.raises(ValueError, match="above 0"):
        KeyDistributions(np.array([0.0]), np.array([1.0]))
