"""Whether weights have changed since a graph was decided with them."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch

from bricolage.dynamo.weights import Weights


def some() -> list[torch.Tensor]:
    return [
        torch.randn(8, 8),
        torch.nn.Parameter(torch.randn(3)),
        torch.zeros((), dtype=torch.int64),
        torch.randn(4).bfloat16(),
    ]


def nothing() -> None:
    pass


def written(tensors: list[torch.Tensor]) -> None:
    with torch.no_grad():
        tensors[1].mul_(2)


def written_by_data(tensors: list[torch.Tensor]) -> None:
    tensors[0].data.add_(1)  # leaves the version as it is


def with_other_memory(tensors: list[torch.Tensor]) -> None:
    tensors[3].data = tensors[3].clone()


def loaded(tensors: list[torch.Tensor]) -> None:
    tensors[2].copy_(torch.ones((), dtype=torch.int64))


@pytest.mark.parametrize("change", [written, written_by_data, with_other_memory, loaded])
def test_changes_are_seen(change: Callable[[list[torch.Tensor]], None]) -> None:
    tensors = some()
    weights = Weights(tensors, nothing)
    assert weights.unchanged(tensors)
    change(tensors)
    assert not weights.unchanged(tensors)


def test_tensors_of_inference_mode_have_no_version_but_values() -> None:
    with torch.inference_mode():
        tensors = [torch.randn(5)]
        weights = Weights(tensors, nothing)
        assert weights.unchanged(tensors)
        tensors[0].add_(1)
        assert not weights.unchanged(tensors)


def test_views_with_gaps_count_by_their_version() -> None:
    whole = torch.randn(6, 6)
    tensors = [whole[:, ::2]]
    weights = Weights(tensors, nothing)
    assert weights.unchanged(tensors)
    whole.add_(1)
    assert not weights.unchanged(tensors)


def test_nothing_is_kept_alive() -> None:
    told = list[str]()
    tensors = some()
    weights = Weights(tensors, lambda: told.append("gone"))
    assert weights.unchanged(tensors)
    del tensors
    gc.collect()
    assert told
