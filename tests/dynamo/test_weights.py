"""Whether weights have changed since a graph was decided with them."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.dynamo import weights as module
from bricolage.dynamo.weights import Weights
from bricolage.errors import LeftToPyTorch


def nothing() -> None:
    pass


def some() -> list[torch.Tensor]:
    return [
        torch.randn(8, 8),
        torch.nn.Parameter(torch.randn(3)),
        torch.zeros((), dtype=torch.int64),
        torch.randn(4).bfloat16(),
        torch.randn(2, 3, 5, 5).to(memory_format=torch.channels_last),
        torch.randn(6, 6)[:, ::2],
        torch.randn(3, 4, dtype=torch.complex64),
        torch.empty(0),
    ]


def by_operator(tensor: torch.Tensor, at: int) -> None:
    with torch.no_grad():
        (tensor.select(0, at % len(tensor)) if tensor.ndim else tensor).add_(1)


def by_data(tensor: torch.Tensor, at: int) -> None:
    part = tensor.data
    (part.select(0, at % len(part)) if part.ndim else part).add_(1)


def by_numpy(tensor: torch.Tensor, at: int) -> None:
    array = tensor.detach().view(torch.int16).numpy() if tensor.dtype == torch.bfloat16 else tensor.detach().numpy()
    array[(at % len(array),) if array.ndim else ...] += 1


def by_address(tensor: torch.Tensor, at: int) -> None:
    """As another process does that shares the memory."""
    del at
    byte = ctypes.c_ubyte.from_address(tensor.data_ptr())
    byte.value ^= 1


def other_memory(tensor: torch.Tensor, at: int) -> None:
    del at
    tensor.data = tensor.clone()


CHANGES = [by_operator, by_data, by_numpy, by_address, other_memory]


@settings(max_examples=120, deadline=None)
@given(which=st.integers(0, 6), at=st.integers(0, 100), change=st.sampled_from(CHANGES), inference=st.booleans())
def test_any_change_of_any_weight_is_seen(
    which: int, at: int, change: Callable[[torch.Tensor, int], None], inference: bool
) -> None:
    """Of one row in the middle, too, and whatever writes it."""
    with torch.inference_mode(inference):
        tensors = some()
        weights = Weights(tensors, nothing)
        weights.watch(tensors, 10.0)
        assert weights.unchanged(tensors) and weights.calls == 1
        change(tensors[which], at)
        assert not weights.unchanged(tensors)


def test_large_weights_are_compared_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PIECE", 64)
    tensors = [torch.randn(16, 16), torch.randn(40)]
    weights = Weights(tensors, nothing)
    monkeypatch.setattr(weights, "_timed", lambda _: 1.0)
    weights.watch(tensors, 2.0)
    assert 1 < weights.calls < len(weights._spans), "a part that costs a tenth of the gain"
    for row in range(16):
        assert all(weights.unchanged(tensors) for _ in range(weights.calls + 1))
        before = tensors[0][row].clone()
        tensors[0].data[row] += 1
        assert not all(weights.unchanged(tensors) for _ in range(weights.calls))
        tensors[0].data[row] = before
    monkeypatch.setattr(module, "MOST_BYTES", 64)
    weights = Weights(tensors, nothing)
    weights.watch(tensors, 2.0)
    assert weights.unchanged(tensors)
    tensors[0].data += 1
    assert not weights.unchanged(tensors), "their ends"


@pytest.mark.parametrize("shared", [False, True])
def test_without_a_version_all_is_compared_or_the_graph_is_left(monkeypatch: pytest.MonkeyPatch, shared: bool) -> None:
    with torch.inference_mode(not shared):
        tensors = [torch.randn(5)]
        tensors = [tensors[0].share_memory_()] if shared else tensors
    reason = "other processes share" if shared else "made in inference mode"
    weights = Weights(tensors, nothing)
    monkeypatch.setattr(weights, "_timed", lambda _: 1.0)
    weights.watch(tensors, 1.5)
    assert weights.calls == 1
    with pytest.raises(LeftToPyTorch, match=reason):
        weights.watch(tensors, 0.5)
    monkeypatch.setattr(module, "MOST_BYTES", 4)
    with pytest.raises(LeftToPyTorch, match=reason):
        Weights(tensors, nothing).watch(tensors, 1.5)


def test_nothing_is_kept_alive() -> None:
    told = list[str]()
    tensors = some()
    weights = Weights(tensors, lambda: told.append("gone"))
    assert weights.unchanged(tensors)
    del tensors
    gc.collect()
    assert told
