"""What one process of a divided sparse network holds: entries in memory, who gets which of them, and the rows that it computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bricolage.search.sharding.layer_exchange import LayerExchange, SendOrder, order_entries
from bricolage.search.sharding.row_partition import Parts
from bricolage.train.sparse.sparse_plan import SparsePlan
from bricolage.train.sparse.weighted_layers import Activation, Reals, WeightedLayer

if TYPE_CHECKING:
    from scipy.sparse import csr_array


@dataclass(frozen=True)
class Route:
    """Entries that go to another process or come from it."""

    peer: int
    runs: tuple[tuple[int, int], ...]
    """Places in this process's memory: the first, and the one behind the last."""

    @property
    def entries(self) -> Parts:
        """All places, in order."""
        return np.concatenate([np.arange(first, last) for first, last in self.runs])

    @property
    def span(self) -> slice:
        """From the first run to the end of the last: of entries that come from another process, which lie together."""
        return slice(self.runs[0][0], self.runs[-1][1])


@dataclass(frozen=True, eq=False)
class LocalLayer:
    """Rows of a layer that this process computes."""

    weights: csr_array
    """[rows, what lies in memory before it]."""
    positions: Parts
    """Of its non-zeros among those of the whole layer."""
    bias: Reals | None
    """[rows, 1]."""
    activation: Activation


@dataclass(frozen=True, eq=False)
class LocalExchange:
    """Layers that follow one exchange."""

    own: int
    """Entries of this process, which lie first."""
    size: int
    """Entries with those that come from others."""
    sends: tuple[Route, ...]
    receives: tuple[Route, ...]
    layers: tuple[LocalLayer, ...]


@dataclass(frozen=True, eq=False)
class LocalProgram:
    """All of one process."""

    exchanges: tuple[LocalExchange, ...]
    inputs: Parts
    """The network's inputs of this process, as they lie in memory."""
    outputs: Parts
    """The last layer's rows of this process."""


def build_local_program(
    plan: SparsePlan, exchanges: Sequence[LayerExchange], part: int, dtype: str, *, ordered: bool = True
) -> LocalProgram:
    """The program of one process.

    Args:
        plan: the network and its division.
        exchanges: before which layers the processes send what.
        part: the process.
        dtype: of numpy, in which it computes.
        ordered: whether entries that several processes need lie together; otherwise they ascend.
    """
    orders = [
        {
            source: order_entries(exchange, plan.owned[exchange.begin], source, ordered=ordered)
            for source in {part, *(source for source, target in exchange.routes if target == part)}
        }
        for exchange in exchanges
    ]
    outputs = np.flatnonzero(plan.owned[-1] == part)
    behind = [*(order[part].entries for order in orders[1:]), outputs]
    local = tuple(
        _place_exchange(plan, exchange, part, order, last, dtype)
        for exchange, order, last in zip(exchanges, orders, behind, strict=True)
    )
    return LocalProgram(local, orders[0][part].entries, outputs)


def _place_exchange(
    plan: SparsePlan, exchange: LayerExchange, part: int, orders: dict[int, SendOrder], last: Parts, dtype: str
) -> LocalExchange:
    """Own entries lie first, then those of each process that sends, as they lie there. `last`: rows of the last layer, in order."""
    entries, receives = [orders[part].entries], []
    begin = held = len(entries[0])
    for source in sorted(orders.keys() - {part}):
        runs = []
        for first, behind in orders[source].runs[part]:
            runs.append((begin, begin + behind - first))
            begin += behind - first
        entries.append(orders[source].sent(part))
        receives.append(Route(source, tuple(runs)))
    here, layers = np.concatenate(entries), []
    for number, rows in enumerate(exchange.computed):
        wanted = last if number == len(exchange.computed) - 1 else rows[part]
        layers.append(_cut_layer(plan.layers[exchange.begin + number], wanted, here, dtype))
        here = wanted
    sends = tuple(Route(target, runs) for target, runs in sorted(orders[part].runs.items()))
    return LocalExchange(held, begin, sends, tuple(receives), tuple(layers))


def _cut_layer(whole: WeightedLayer, rows: Parts, inputs: Parts, dtype: str) -> LocalLayer:
    """Rows of a layer over inputs that lie in an order, each once."""
    from scipy.sparse import csr_array

    chosen = whole.layer.pattern[rows]
    places = np.full(whole.layer.inputs, -1)
    places[inputs] = np.arange(len(inputs))
    columns = places[chosen.indices]
    assert (columns >= 0).all(), "every input that is read lies in memory"
    values = whole.weights.data[chosen.data].astype(dtype)
    weights = csr_array((values, columns, chosen.indptr), shape=(len(rows), len(inputs)))
    bias = None if whole.bias is None else whole.bias[rows].astype(dtype)[:, None]
    return LocalLayer(weights, np.asarray(chosen.data), bias, whole.activation)
