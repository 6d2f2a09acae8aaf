"""The benchmark of replicas in step, on one method."""

from __future__ import annotations

import json

import pytest

from tests.needed import needs

pytest.importorskip("torch")

import torch

from benchmarks.training import replicas
from bricolage.train.replicas.compress import Accordion
from bricolage.train.replicas.flat import Flat

needs("sklearn")


@pytest.mark.slow
def test_one_method(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "--method",
        "local",
        "--epochs",
        "1",
        "--seeds",
        "1",
        "--lr",
        "0.05",
        "--straggler",
        "1",
        "--network",
        "mlp",
    ]
    replicas.main([*words, "--json"])
    (row,) = json.loads(capsys.readouterr().out)["results"]
    assert row["method"] == "local" and row["accuracy"] == row["worst_lr"] and row["straggler_samples_s"] > 0


def test_accordion_compares_before_lr_falls_and_after() -> None:
    """With an interval of four of the eight epochs it never did: it was PowerSGD under another name."""
    flat = Flat(torch.nn.Linear(4, 4))
    for method in (one for one in replicas.METHODS if one.accordion):
        work = replicas.task("mlp", 4, 8)
        accordion, compared = Accordion(flat, method.accordion), 0
        for step in range(8 * 10 + 1):
            epoch = step / 10
            before = accordion.weak
            accordion.seen(epoch, 0.1 if epoch < work.decay_at[0] * 8 else 0.01, torch.ones(len(flat)))
            compared += accordion.weak is not before and not all(accordion.weak)
        assert compared >= 2, "like gradients are compressed strongly once they are compared"


def test_what_is_refused() -> None:
    with pytest.raises(SystemExit):
        replicas.main(["--method", "magic"])
