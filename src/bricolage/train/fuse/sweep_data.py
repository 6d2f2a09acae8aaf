"""The data of a sweep, and in which order each lane sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bricolage.errors import BadTrainingCode
from bricolage.train.fuse.sweep import Lane, Sweep
from bricolage.train.step.data import Data, Samples, as_samples, read_data
from bricolage.train.step.spec import StepSpec
from bricolage.train.step.step import call

if TYPE_CHECKING:
    import torch

_STEPS_OF_ORDER = 1 << 20
_MOST_SEED = 2**63 - 1


def load_data(sweep: Sweep) -> Data:
    """Runs the function that the sweep names as its data.

    Raises:
        BadTrainingCode: it is not there, fails, or returns something else; or a lane's batch is larger than the data, or a lane
            is to stop early and there is nothing held out.
    """
    data = read_data(sweep.step, sweep.data)
    if sweep.data is None or data.train is None:
        return data
    for lane in sweep.lanes:
        if lane.batch_size > len(data.train):
            reason = f"lane '{lane.name}' has batches of {lane.batch_size} and there are {len(data.train)} samples"
            raise BadTrainingCode(place=sweep.data, reason=reason)
        if lane.patience is not None and data.held_out is None:
            reason = f"lane '{lane.name}' is to stop early, and nothing is held out"
            raise BadTrainingCode(place=sweep.data, reason=reason)
    return data


def count_steps(lane: Lane, data: Data) -> int:
    """How many steps a lane trains."""
    return lane.steps if lane.steps is not None else (lane.epochs or 0) * epoch_of(lane, data)


def epoch_of(lane: Lane, data: Data) -> int:
    """Steps of one pass over the data; what is left over at its end is left out, so that all batches are of one size. Without
    data, an epoch never ends."""
    return len(data.train) // lane.batch_size if data.train is not None else _MOST_SEED


class Order:
    """Which samples lanes of one order see, step by step: a permutation for each epoch, from a generator of its own."""

    def __init__(self, lane: Lane, data: Data) -> None:
        import torch

        self.step = 0
        self._data = data
        self._size = lane.batch_size
        self._seed = lane.order
        self._generator = torch.Generator().manual_seed(lane.order)
        self._epoch = epoch_of(lane, data)
        self._permutation: torch.Tensor | None = None

    def index(self) -> torch.Tensor:
        """Numbers of the next batch's samples, int64 [batch]."""
        import torch

        assert self._data.train is not None
        at = self.step % self._epoch
        if at == 0:
            self._permutation = torch.randperm(len(self._data.train), generator=self._generator)
        assert self._permutation is not None
        self.step += 1
        return self._permutation[at * self._size : (at + 1) * self._size]

    def batch(self) -> Samples:
        """The next batch."""
        if self._data.train is not None:
            return self._data.train.rows(self.index())
        self.step += 1
        return drawn_batch(self._data.step, self._size, self._seed, self.step - 1)


def drawn_batch(step: StepSpec, size: int, order: int, number: int) -> Samples:
    """Batch `number` of the training step's own function, for lanes of that order.

    Raises:
        BadTrainingCode: it fails or returns something else than a pair of tensors.
    """
    seed = (order * _STEPS_OF_ORDER + number) % _MOST_SEED
    return as_samples(call(step.batch, step.folder, size, seed), step.batch)


class Batches:
    """The batches of lanes that go in step. Lanes of one order share theirs."""

    def __init__(self, lanes: Sequence[Lane], data: Data) -> None:
        self._data = data
        self._keys = [lane.order for lane in lanes]
        self._orders = {lane.order: Order(lane, data) for lane in lanes}

    def keep(self, rows: Sequence[int]) -> None:
        """Goes on with these lanes alone."""
        self._keys = [self._keys[row] for row in rows]
        self._orders = {key: order for key, order in self._orders.items() if key in self._keys}

    def next(self) -> tuple[Samples, bool]:
        """The next batch of every lane, and whether all share it: tensors [batch, *] then, [lanes, batch, *] otherwise."""
        import torch

        if len(self._orders) == 1:
            return next(iter(self._orders.values())).batch(), True
        if self._data.train is not None:
            indices = {key: order.index() for key, order in self._orders.items()}
            return self._data.train.rows(torch.stack([indices[key] for key in self._keys])), False
        drawn = {key: order.batch() for key, order in self._orders.items()}
        several = [drawn[key] for key in self._keys]
        inputs = tuple(torch.stack(parts) for parts in zip(*(samples.inputs for samples in several), strict=True))
        return Samples(
            inputs, tuple(torch.stack(p) for p in zip(*(samples.targets for samples in several), strict=True))
        ), False


def example(lane: Lane, data: Data) -> Samples:
    """A batch of the shape that a lane trains on."""
    return Order(lane, data).batch()
