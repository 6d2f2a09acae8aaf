"""What a worker's step takes: measured in this process, or given."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bricolage.device.collective import Ring
from bricolage.train.predict.exchange import gradient_buckets, simulate_overlap
from bricolage.train.replicas.compress import make_compressor
from bricolage.train.replicas.flat import Flat
from bricolage.train.replicas.replica_spec import Method, Replicas
from bricolage.train.step.data import Data
from bricolage.train.step.evaluate import loss_value
from bricolage.train.step.step import build, find_loss, make_optimiser
from bricolage.work.training_step import Gradient

if TYPE_CHECKING:
    import torch

_UNTIMED, _TIMED = 5, 40
"""Steps."""
_FORWARD = 1.0 / 3.0
"""Of a step that is given as a whole, the share of the forward phase."""
_BUCKET_MB = 25.0
"""PyTorch's."""


@dataclass(frozen=True)
class ReplicaStepTimes:
    """Seconds of the parts of a worker's step."""

    forward_s: float
    gradients_s: tuple[float, ...]
    """By trained parameter: of the backward phase, until its gradient is there from when the one before was."""
    update_s: float = 0.0
    """Of the optimiser, on all weights."""
    compression_s: float = 0.0
    """Of what makes a gradient small and large again, without messages."""
    factors: tuple[float, ...] = (1.0,)
    """As many times as long took each of some steps; which one a step is like is drawn."""

    @property
    def gradient_s(self) -> float:
        """Of both phases."""
        return self.forward_s + sum(self.gradients_s)

    @classmethod
    def given(cls, seconds: float, sizes: Sequence[int]) -> ReplicaStepTimes:
        """Of steps that all take `seconds`: a third forward, the rest for gradients in proportion to the elements of parameters;
        updates and compression take no time."""
        backward = (1.0 - _FORWARD) * seconds
        return cls(seconds * _FORWARD, tuple(backward * size / sum(sizes) for size in sizes))


class _Solitary:
    """Workers of whom one is there: the others have what it has, and messages take no time."""

    def __init__(self, size: int) -> None:
        self.size = size

    def mean(self, tensor: torch.Tensor) -> None:
        """Its own."""

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Its own, as often as there are workers."""
        return [tensor] * self.size


def measure_step_times(replicas: Replicas, method: Method, data: Data, seed: int) -> ReplicaStepTimes:
    """Runs steps of one replica, in this thread. The order in which gradients come is that of the last step.

    Raises:
        BadTrainingCode: as `train_replicas` does.
    """
    step = build(replace(replicas.step, seed=seed))
    flat = Flat(step.module)
    loss = find_loss(replicas.step.loss, replicas.step.folder)
    assert data.train is not None
    batch = data.train.rows(_first(len(data.train), replicas.step.batch_size))
    ready: dict[int, float] = {}
    for number, parameter in enumerate(flat.parameters):
        parameter.register_post_accumulate_grad_hook(lambda _, n=number: ready.__setitem__(n, time.perf_counter()))
    rows = []
    for _ in range(_UNTIMED + _TIMED):
        ready.clear()
        flat.gradient.zero_()
        begun = time.perf_counter()
        value = loss_value(loss(step.module(*batch.inputs), *batch.targets), replicas.step.loss)
        forward = time.perf_counter()
        value.backward()
        rows.append((begun, forward, time.perf_counter(), dict(ready)))
    rows = rows[_UNTIMED:]
    whole = [end - begun for begun, _, end, _ in rows]
    middle = statistics.median(whole)
    compressor = make_compressor(flat, method, replicas.step.optimiser.momentum, _Solitary(replicas.workers), seed)
    return ReplicaStepTimes(
        statistics.median(forward - begun for begun, forward, _, _ in rows),
        _gradient_seconds(rows, len(flat.parameters)),
        _time_update(flat, replicas),
        0.0 if compressor is None else _median_s(lambda: compressor(float("inf"), [True] * len(flat.sizes))),
        tuple(seconds / middle for seconds in whole),
    )


def compute_exposed_exchange_s(times: ReplicaStepTimes, flat: Flat, ring: Ring) -> float:
    """Seconds that the exchange of a step's gradients, in PyTorch's buckets, lasts beyond the backward phase: gradients come from
    the last parameter to the first, as in a chain of layers."""
    element = flat.weights.element_size()
    backward = list(enumerate(zip(flat.sizes, times.gradients_s, strict=True)))[::-1]
    operators = [1e3 * times.forward_s, *(1e3 * seconds for _, (_, seconds) in backward)]
    gradients = [
        Gradient(str(number), size * element, place) for place, (number, (size, _)) in enumerate(backward, start=1)
    ]
    computed, transfers = simulate_overlap(operators, gradient_buckets(gradients, _BUCKET_MB), ring)
    end = max(computed[-1], transfers[-1].end_ms) + 2 * ring.copy_ms_per_byte * len(flat) * element
    return max(0.0, end - sum(operators)) / 1e3


def _first(samples: int, size: int) -> torch.Tensor:
    import torch

    return torch.arange(size) % samples


def _gradient_seconds(rows: Sequence[tuple[float, float, float, dict[int, float]]], count: int) -> tuple[float, ...]:
    """By parameter, medians over steps of (begin, end of the forward phase, end, when each gradient was there). What comes after
    the last gradient counts as the last one's; a parameter without a gradient takes no time."""
    taken: list[list[float]] = [[] for _ in range(count)]
    for _, before, end, ready in rows:
        order = sorted(ready, key=ready.__getitem__)
        for number in order:
            there = end if number == order[-1] else ready[number]
            taken[number].append(there - before)
            before = ready[number]
    return tuple(statistics.median(seconds) if seconds else 0.0 for seconds in taken)


def _time_update(flat: Flat, replicas: Replicas) -> float:
    """Of weights that are read by no module."""
    import torch

    parameter = torch.nn.Parameter(flat.weights.clone())
    parameter.grad = flat.gradient.clone()
    optimiser = make_optimiser(replicas.step.optimiser, [parameter])
    return _median_s(optimiser.step)


def _median_s(work: Callable[[], object]) -> float:
    """Of several runs."""
    seconds = []
    for _ in range(_UNTIMED + _TIMED):
        begun = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds[_UNTIMED:])
