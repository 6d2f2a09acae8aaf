"""Answers that are drawn at random are right where their distribution is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bricolage.graph.store import Store
from bricolage.verify.compare import deviation
from bricolage.verify.named_arrays import load_limits, load_values
from bricolage.verify.oracle import Oracle
from bricolage.verify.randomness import Drawn, mark_drawn, random_outputs, remove_seeds
from tests.graph.models import graph

INPUTS = {"x": np.ones((64, 8), np.float32)}
NORMAL = "r = RandomNormalLike <seed = 3.0> (x) y = Add (x, r) z = Relu (x)"


def judged(folder: Path, body: str, answer: dict[str, np.ndarray]) -> float:
    """By how much an answer exceeds what the oracle of a graph allows."""
    network = graph(body, "float[64, 8] x", ", ".join(f"float[64, 8] {name}" for name in answer))
    _, wanted, _ = Oracle(network, INPUTS, Store(folder), 1e-6, "model").files(network.everything)
    return deviation([*answer.values()], [*load_values(wanted, answer).values()], load_limits(wanted, answer)).excess


def test_what_depends_on_chance_is_found() -> None:
    model = graph(NORMAL, "float[64, 8] x", "float[64, 8] y, float[64, 8] z").model
    assert random_outputs(model) == {"y"}
    training = graph("k = Constant <value = bool {1}> () y = Dropout (x, , k)", "float[4] x", "float[4] y").model
    idle = graph("k = Constant <value = bool {0}> () y = Dropout (x, , k)", "float[4] x", "float[4] y").model
    assert random_outputs(training) == {"y"}
    assert not random_outputs(idle)


@pytest.mark.parametrize(("mean", "spread", "right"), [(1.0, 1.0, True), (1.0, 4.0, False), (9.0, 1.0, False)])
def test_the_distribution_is_compared(tmp_path: Path, mean: float, spread: float, right: bool) -> None:
    other = np.random.default_rng(5).normal(mean, spread, (64, 8)).astype(np.float32)
    assert (judged(tmp_path, NORMAL, {"y": other, "z": INPUTS["x"]}) == 0.0) == right


def test_other_outputs_are_compared_as_ever(tmp_path: Path) -> None:
    sample = np.random.default_rng(5).normal(1, 1, (64, 8)).astype(np.float32)
    assert judged(tmp_path, NORMAL, {"y": sample, "z": INPUTS["x"][::-1] * 2}) > 0.1


def test_seeds_are_taken_out() -> None:
    model = graph(NORMAL, "float[64, 8] x", "float[64, 8] y").model
    remove_seeds(model)
    assert all("seed" not in node.attributes for node in model.graph)


def test_sequences_are_drawn_member_by_member() -> None:
    assert all(isinstance(one, Drawn) for one in mark_drawn([np.ones(2), np.ones(3)]))
