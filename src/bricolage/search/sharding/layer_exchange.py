"""What the parts of a divided sparse network send each other, when several layers may follow one exchange.

With one layer for each exchange a part computes its rows only. With d layers it gets all inputs that its rows of the last layer
rest on, and computes the rows between that it needs, those of others included: ghost zones of depth d, without a grid. That trades
messages for words and operations. In which order a part's entries lie in memory follows `ghost_zones`: what several parts need is
kept together, so that most messages leave from where they lie.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bricolage.search.sharding.ghost_zones import find_runs, order_regions
from bricolage.search.sharding.row_partition import Parts, SparseLayer

_EXACT = 8
"""Regions of one part up to which the best order is searched: those of a block in a plane."""


@dataclass(frozen=True)
class LayerExchange:
    """Layers `begin`, ..., `end` - 1, which follow one exchange of the inputs of `begin`."""

    begin: int
    end: int
    routes: Mapping[tuple[int, int], Parts]
    """By the part that sends and the part that receives: the inputs that go that way, ascending."""
    computed: tuple[tuple[Parts, ...], ...]
    """By layer, by part: the rows that it computes, ascending."""
    operations: int
    """Floating-point operations of all parts for one sample: two for each non-zero that is computed."""

    @property
    def messages(self) -> int:
        """Pairs of parts of which one sends to the other."""
        return len(self.routes)

    @property
    def words(self) -> int:
        """Numbers that are sent for one sample."""
        return sum(map(len, self.routes.values()))


@dataclass(frozen=True)
class SendOrder:
    """In which order a part's own entries lie in memory, and which consecutive ones go to whom."""

    entries: Parts
    runs: Mapping[int, tuple[tuple[int, int], ...]]
    """By the part that receives: places of entries, the first and the one behind the last."""

    def sent(self, target: int) -> Parts:
        """The entries that go to a part, in their order in memory."""
        return np.concatenate([self.entries[first:last] for first, last in self.runs[target]])


def exchange_layers(
    layers: Sequence[SparseLayer], owned: Sequence[Parts], parts: int, begin: int, end: int
) -> LayerExchange:
    """One exchange before several layers.

    Args:
        layers: the network.
        owned: parts of the network's inputs, then of each layer's rows.
        parts: processors.
        begin: the first layer that follows.
        end: the one behind the last.
    """
    wanted = [np.flatnonzero(owned[end] == part) for part in range(parts)]
    computed, operations = [], 0
    for layer in reversed(layers[begin:end]):
        computed.append(tuple(wanted))
        chosen = [layer.pattern[rows] for rows in wanted]
        operations += 2 * sum(int(pattern.nnz) for pattern in chosen)
        wanted = [np.unique(pattern.indices).astype(np.int64) for pattern in chosen]
    routes = {
        (source, target): columns[owned[begin][columns] == source]
        for target, columns in enumerate(wanted)
        for source in np.unique(owned[begin][columns]).tolist()
        if source != target
    }
    return LayerExchange(begin, end, dict(sorted(routes.items())), tuple(computed[::-1]), operations)


def plan_exchanges(
    layers: Sequence[SparseLayer], owned: Sequence[Parts], parts: int, depth: int
) -> tuple[LayerExchange, ...]:
    """Exchanges before all layers with the fewest messages; of equal ones, with the fewest words, then operations.

    Args:
        layers: the network.
        owned: parts of the network's inputs, then of each layer's rows.
        parts: processors.
        depth: layers that may follow one exchange, at most.
    """
    best: list[tuple[tuple[int, int, int], tuple[LayerExchange, ...]]] = [((0, 0, 0), ())]
    for end in range(1, len(layers) + 1):
        choices = []
        for begin in range(max(0, end - depth), end):
            last = exchange_layers(layers, owned, parts, begin, end)
            (messages, words, operations), before = best[begin]
            cost = messages + last.messages, words + last.words, operations + last.operations
            choices.append((cost, (*before, last)))
        best.append(min(choices, key=lambda choice: choice[0]))
    return best[-1][1]


def order_entries(exchange: LayerExchange, owners: Parts, part: int, *, ordered: bool = True) -> SendOrder:
    """How a part's own inputs of an exchange lie in memory.

    Args:
        exchange: what is sent.
        owners: parts of the inputs of its first layer.
        part: whose entries.
        ordered: in as few runs for each receiver as `order_regions` gives; otherwise ascending.
    """
    entries = np.flatnonzero(owners == part)
    targets = [target for source, target in exchange.routes if source == part]
    needed = np.zeros((len(entries), len(targets)), bool)
    for place, target in enumerate(targets):
        needed[:, place] = np.isin(entries, exchange.routes[part, target])
    if ordered and targets:
        regions, region_of = np.unique(needed, axis=0, return_inverse=True)
        readers = tuple(frozenset(np.flatnonzero(region).tolist()) for region in regions)
        rank = np.empty(len(regions), np.int64)
        rank[list(order_regions(readers, _EXACT + 1))] = np.arange(len(regions))
        places = np.argsort(rank[region_of.reshape(-1)], kind="stable")
        entries, needed = entries[places], needed[places]
    return SendOrder(entries, {target: tuple(find_runs(needed[:, place])) for place, target in enumerate(targets)})
