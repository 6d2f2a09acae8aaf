"""Losses that are means over samples, and others, in replicas."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.train.replicas.means import ROUNDING, mean_of_means_error
from bricolage.train.replicas.replica_spec import Method, Replicas
from bricolage.train.step.spec import Optimiser, StepSpec

CODE = """
import torch
from torch import nn
from torch.nn import functional as F

def net():
    return nn.Sequential(nn.Embedding(20, 8), nn.Dropout(0.5), nn.Linear(8, 20))

def words(size, seed, padded=True):
    g = torch.Generator().manual_seed(seed)
    i = torch.randint(20, (size, 9), generator=g)
    length = torch.randint(2, 10, (size, 1), generator=g)
    return i, torch.where((torch.arange(9)[None] < length) | (not padded), (i + 1) % 20, -100)

def padded():
    return words(48, 1), None

def whole():
    return words(48, 1, False), None

def over_words(y, t):
    return F.cross_entropy(y.flatten(0, 1), t.flatten(), ignore_index=-100)

def over_samples(y, t):
    return F.cross_entropy(y.transpose(1, 2), t, ignore_index=-100, reduction="none").mean()

def by_class(y, t):
    return F.cross_entropy(y.flatten(0, 1), t.flatten(), weight=torch.arange(1.0, 21.0), ignore_index=-100)

def total(y, t):
    return F.cross_entropy(y.flatten(0, 1), t.flatten(), ignore_index=-100, reduction="sum")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("means")
    (made / "code_of_means.py").write_text(CODE)
    return made


@settings(max_examples=24, deadline=None)
@given(
    loss=st.sampled_from(["over_words", "over_samples", "by_class", "total"]),
    data=st.sampled_from(["padded", "whole"]),
    workers=st.integers(2, 4),
    size=st.integers(2, 4),
    seed=st.integers(0, 9),
)
def test_losses_that_divide_by_what_they_count_are_told(
    folder: Path, loss: str, data: str, workers: int, size: int, seed: int
) -> None:
    place = "code_of_means.py"
    step = StepSpec(
        f"{place}:net",
        f"{place}:words",
        f"{place}:{loss}",
        batch_size=size,
        optimiser=Optimiser("sgd", lr=0.1),
        folder=str(folder),
    )
    replicas = Replicas(step, f"{place}:{data}", steps=1, workers=workers, methods=(Method("allreduce"),))
    apart = mean_of_means_error(replicas, seed)
    means = loss == "over_samples" or (loss == "over_words" and data == "whole")
    assert (apart < ROUNDING) == means, "a sum is workers times as large on all batches together"
