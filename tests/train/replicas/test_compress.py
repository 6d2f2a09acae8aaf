"""What compression leaves out is not lost; when Accordion and SimiGrad change their minds."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from bricolage.train.replicas.compress import Accordion, PowerSGD, TopK, next_batch
from bricolage.train.replicas.flat import Flat
from bricolage.train.replicas.replica_spec import Method

torch = pytest.importorskip("torch")


class One:
    """A worker by itself: the mean is its own."""

    size = 1

    def mean(self, tensor: Any) -> None:
        """Nothing to do."""

    def gather(self, tensor: Any) -> list[Any]:
        """Its own."""
        return [tensor]


def flat() -> Flat:
    torch.manual_seed(0)
    return Flat(torch.nn.Sequential(torch.nn.Linear(12, 10), torch.nn.ReLU(), torch.nn.Linear(10, 4)))


def gradients(count: int) -> list[Any]:
    made = torch.Generator().manual_seed(1)
    return [torch.randn(len(flat()), generator=made) for _ in range(count)]


def test_weights_and_gradients_are_views_of_two_vectors() -> None:
    found = flat()
    before = [one.detach().clone() for one in found.parameters]
    assert len(found) == 12 * 10 + 10 + 10 * 4 + 4 == found.weights.numel()
    found.weights.add_(1.0)
    for one, was in zip(found.parameters, before, strict=True):
        torch.testing.assert_close(one.detach(), was + 1.0)
    found.module(torch.randn(3, 12)).sum().backward()
    assert found.gradient.abs().sum() > 0
    for count in (1, 2, 3, 9):
        shards = found.shards(count)
        assert shards[0][0] == 0 and shards[-1][1] == len(found) and len(shards) <= min(count, 4)
        assert all(a[1] == b[0] for a, b in pairwise(shards))


@pytest.mark.parametrize("density", [0.01, 0.1, 1.0])
def test_what_top_k_does_not_send_is_sent_later(density: float) -> None:
    found = flat()
    topk = TopK(found, Method(compression="topk", density=density, warm_up=0), 0.0, One())
    sent = torch.zeros(len(found))
    total = torch.zeros(len(found))
    for gradient in gradients(7):
        found.gradient.copy_(gradient)
        now = topk(0.0, [False] * 4)
        assert int((now != 0).sum()) == sum(max(1, -(-density * size // 1)) for size in found.sizes)
        sent += now
        total += gradient
    torch.testing.assert_close(sent + topk._v, total)


def test_top_k_sends_what_is_largest_and_begins_momentum_again_there() -> None:
    found = flat()
    topk = TopK(found, Method(compression="topk", density=0.1, warm_up=0), 0.9, One())
    (gradient,) = gradients(1)
    found.gradient.copy_(gradient)
    now = topk(0.0, [False] * 4)
    for part, own in zip(found.parts(now), found.parts(gradient), strict=True):
        there = part != 0
        assert own[there].abs().min() >= own[~there].abs().max()
    assert (topk._u[now != 0] == 0).all() and (topk._u[now == 0] == gradient[now == 0]).all()


def test_the_density_falls_in_equal_factors() -> None:
    topk = TopK(flat(), Method(compression="topk", density=0.001), 0.0, One())
    found = [topk.density(epoch) for epoch in (0.0, 0.9, 1.0, 2.0, 3.0, 4.0, 9.0)]
    assert found[0] == found[1] == 0.25 and found[-1] == found[-2] == 0.001
    assert found[3] / found[2] == pytest.approx(found[4] / found[3]) == pytest.approx(found[5] / found[4])


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_what_power_sgd_leaves_out_comes_later(rank: int) -> None:
    found = flat()
    power = PowerSGD(found, Method(compression="powersgd", rank=rank), One(), 0)
    sent, total = torch.zeros(len(found)), torch.zeros(len(found))
    for gradient in gradients(9):
        found.gradient.copy_(gradient)
        now = power(0.0, [True] * 4)
        assert torch.linalg.matrix_rank(found.shaped(now)[0]) <= rank
        sent += now
        total += gradient
    torch.testing.assert_close(sent + power._error, total)
    biases = [found.parts(sent)[place] for place in (1, 3)]
    for one, other in zip(biases, [found.parts(total)[place] for place in (1, 3)], strict=True):
        torch.testing.assert_close(one, other)


def test_power_sgd_is_exact_where_gradients_have_low_rank() -> None:
    found = flat()
    power = PowerSGD(found, Method(compression="powersgd", rank=2), One(), 0)
    for place, shape in ((0, (10, 12)), (2, (4, 10))):
        piece = torch.outer(torch.randn(shape[0]), torch.randn(shape[1]))
        found.parts(found.gradient)[place].copy_(piece.reshape(-1))
    for weak in (True, False):  # rank 2, and rank 1
        torch.testing.assert_close(power(0.0, [weak] * 4), found.gradient, rtol=1e-4, atol=1e-5)


def test_accordion_compresses_strongly_where_nothing_changes() -> None:
    found = flat()
    accordion = Accordion(found, 2)
    ones = torch.ones(len(found))

    def epochs(count: int, lr: float, factors: tuple[float, ...]) -> None:
        for _ in range(count):
            nonlocal at
            at += 1.0
            gradient = torch.cat([part * factor for part, factor in zip(found.parts(ones), factors, strict=True)])
            accordion.seen(at, lr, gradient)

    at = 0.0
    assert accordion.weak == [True] * 4
    epochs(2, 0.1, (1, 1, 1, 1))
    assert accordion.weak == [True] * 4, "nothing to compare with yet"
    epochs(2, 0.1, (1, 0.4, 1.6, 0.9))
    assert accordion.weak == [False, True, True, False]
    epochs(2, 0.1, (1, 0.4, 1.6, 0.9))
    assert accordion.weak == [False] * 4
    epochs(1, 0.01, (1, 0.4, 1.6, 0.9))
    assert accordion.weak == [True] * 4, "lr fell"


@pytest.mark.parametrize(
    ("batch", "cosine", "wanted"), [(32, 0.1, 35), (5, 0.1, 6), (32, 0.9, 28), (5, 0.9, 4), (1, 0.9, 1), (32, 0.5, 32)]
)
def test_batches_follow_how_alike_gradients_are(batch: int, cosine: float, wanted: int) -> None:
    assert next_batch(batch, cosine, 0.5) == wanted
