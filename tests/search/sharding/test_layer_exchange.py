"""Exchanges of divided sparse networks: against parts that know only what they have and got, and against all choices."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from benchmarks.training.example_layers import needs, surface_regions
from bricolage.search.sharding.ghost_zones import find_runs, order_regions
from bricolage.search.sharding.layer_exchange import exchange_layers, order_entries, plan_exchanges
from bricolage.search.sharding.row_partition import SparseLayer, residues, volume

PARTS = 3


def draw_network(seed: int, count: int = 4) -> tuple[list[SparseLayer], list[np.ndarray]]:
    """Layers of 4 to 9 rows, each with one to three inputs, and owners by chance."""
    draw = np.random.default_rng(seed)
    sizes = draw.integers(4, 10, size=count + 1).tolist()
    layers = [
        SparseLayer(
            before,
            tuple(
                tuple(sorted(draw.choice(before, size=int(draw.integers(1, 4)), replace=False).tolist()))
                for _ in range(rows)
            ),
        )
        for before, rows in itertools.pairwise(sizes)
    ]
    return layers, [draw.integers(PARTS, size=size) for size in sizes]


def ask(part: int, layers: list[SparseLayer], owned: list[np.ndarray], begin: int, end: int) -> tuple[set[int], int]:
    """The inputs that a part has to get for its rows, and the non-zeros that it computes: literally, entry by entry."""
    computed, inputs = set[tuple[int, int]](), set[int]()

    def compute(number: int, row: int) -> None:
        if number < begin:
            inputs.add(row)
        elif (number, row) not in computed:
            computed.add((number, row))
            for column in layers[number].columns[row]:
                compute(number - 1, column)

    for row in np.flatnonzero(owned[end] == part).tolist():
        compute(end - 1, row)
    terms = sum(len(layers[number].columns[row]) for number, row in computed)
    return {row for row in inputs if owned[begin][row] != part}, terms


@pytest.mark.parametrize("seed", range(6))
def test_each_part_gets_what_its_rows_rest_on(seed: int) -> None:
    layers, owned = draw_network(seed)
    for begin, end in itertools.combinations(range(len(layers) + 1), 2):
        exchange = exchange_layers(layers, owned, PARTS, begin, end)
        asked = [ask(part, layers, owned, begin, end) for part in range(PARTS)]
        for part, (inputs, _) in enumerate(asked):
            came = [entries for (_, target), entries in exchange.routes.items() if target == part]
            assert sorted(itertools.chain(*(entries.tolist() for entries in came))) == sorted(inputs)
        assert all((owned[begin][entries] == source).all() for (source, _), entries in exchange.routes.items())
        assert exchange.operations == 2 * sum(terms for _, terms in asked)
        assert exchange.words == sum(len(inputs) for inputs, _ in asked)
        assert exchange.messages == sum(len({*owned[begin][list(inputs)].tolist()}) for inputs, _ in asked)
        if end == begin + 1:
            assert exchange.words == volume(layers[begin], owned[end], owned[begin])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_no_other_exchanges_take_fewer_messages(seed: int, depth: int) -> None:
    layers, owned = draw_network(seed)
    costs = []
    for stops in itertools.product((False, True), repeat=len(layers) - 1):
        ends = [number for number, stop in enumerate(stops, 1) if stop] + [len(layers)]
        spans = list(zip([0, *ends], ends, strict=False))
        if max(end - begin for begin, end in spans) <= depth:
            every = [exchange_layers(layers, owned, PARTS, *span) for span in spans]
            costs.append([sum(getattr(one, name) for one in every) for name in ("messages", "words", "operations")])
    planned = plan_exchanges(layers, owned, PARTS, depth)
    assert [exchange.begin for exchange in planned] == [0, *(exchange.end for exchange in planned[:-1])]
    assert [sum(getattr(one, name) for one in planned) for name in ("messages", "words", "operations")] == min(costs)


@pytest.mark.parametrize("seed", range(4))
def test_entries_that_go_to_the_same_lie_together(seed: int) -> None:
    """In no order of the entries do fewer runs carry what each part needs; ascending they carry it too."""
    layers, owned = draw_network(seed, 1)
    exchange = exchange_layers(layers, owned, PARTS, 0, 1)
    for part in range(PARTS):
        best = order_entries(exchange, owned[0], part)
        plain = order_entries(exchange, owned[0], part, ordered=False)
        own = np.flatnonzero(owned[0] == part)
        assert plain.entries.tolist() == sorted(best.entries.tolist()) == own.tolist()
        wanted = {
            target: set(entries.tolist()) for (source, target), entries in exchange.routes.items() if source == part
        }
        for order in (best, plain):
            assert {target: set(order.sent(target).tolist()) for target in order.runs} == wanted
        fewest = min(
            sum(len(find_runs(entry in entries for entry in way)) for entries in wanted.values())
            for way in itertools.permutations(own.tolist())
        )
        assert sum(map(len, best.runs.values())) == fewest <= sum(map(len, plain.runs.values()))


def test_many_regions_are_ordered_nearly_as_well() -> None:
    """Of a block in three dimensions, where 42 messages are the least of 98."""
    every = surface_regions(3)
    readers = tuple(frozenset(place for place, other in enumerate(every) if needs(other, region)) for region in every)
    order = order_regions(readers, exact=2)
    assert sorted(order) == list(range(len(every)))
    runs = sum(len(find_runs(place in readers[region] for region in order)) for place in range(len(every)))
    assert 42 <= runs <= 60


def test_depth_is_a_ghost_zone() -> None:
    """Steps of a stencil of three points on a ring: d cells at both ends of each block, and the cells between again."""
    cells, steps = 24, 4
    columns = tuple(tuple(sorted((row + move) % cells for move in (-1, 0, 1))) for row in range(cells))
    layers, owners = [SparseLayer(cells, columns)] * steps, np.arange(cells) // 8
    for depth in range(1, steps + 1):
        planned = exchange_layers(layers, [owners] * (steps + 1), PARTS, 0, depth)
        assert (planned.messages, planned.words) == (6, PARTS * 2 * depth)
        assert planned.operations == 2 * 3 * PARTS * sum(8 + 2 * ghost for ghost in range(depth))
    assert len(plan_exchanges(layers, [owners] * (steps + 1), PARTS, 2)) == 2
    apart = [residues(cells, PARTS)] * (steps + 1)
    assert math.isclose(exchange_layers(layers, apart, PARTS, 0, 1).words, 2 * cells)
