"""Words that divided sparse networks send: against sets of elements, the known counts of RadiX layers, and what mtkahypar finds."""

from __future__ import annotations

import importlib.util
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.training.example_layers import radix_layer
from bricolage.errors import MissingLibrary
from bricolage.search.sharding.row_partition import (
    SparseLayer,
    alternate_partitions,
    imbalance,
    partition_evenly,
    partition_layers,
    residues,
    volume,
)

NEURONS, PARTS = 1024, 16


@st.composite
def divided(draw: st.DrawFn) -> tuple[SparseLayer, np.ndarray, np.ndarray]:
    inputs, rows, parts = draw(st.integers(1, 6)), draw(st.integers(1, 6)), draw(st.integers(1, 3))
    some = tuple(tuple(sorted(draw(st.sets(st.integers(0, inputs - 1))))) for _ in range(rows))
    numbers = st.integers(0, parts - 1)
    own = [np.array(draw(st.lists(numbers, min_size=n, max_size=n))) for n in (rows, inputs)]
    return SparseLayer(inputs, some), own[0], own[1]


@settings(max_examples=60, deadline=None)
@given(divided())
def test_words_are_lambda_less_one(case: tuple[SparseLayer, np.ndarray, np.ndarray]) -> None:
    layer, rows, owners = case
    parts = [{int(owners[c]), *(int(rows[r]) for r in some)} for c, some in enumerate(layer.readers())]
    assert volume(layer, rows, owners) == sum(len(one) - 1 for one in parts)


@settings(max_examples=30, deadline=None)
@given(divided(), st.integers(0, 7))
def test_no_other_choice_of_blocks_and_residues_sends_less(
    case: tuple[SparseLayer, np.ndarray, np.ndarray], seed: int
) -> None:
    first, _, owners = case
    draw = np.random.default_rng(seed)
    layers = [first]
    for _ in range(2):
        rows = int(draw.integers(1, 6))
        columns = [np.flatnonzero(draw.random(layers[-1].rows) < 0.5).tolist() for _ in range(rows)]
        layers.append(SparseLayer(layers[-1].rows, tuple(map(tuple, columns))))

    def words(choice: list[np.ndarray]) -> int:
        return sum(volume(*each) for each in zip(layers, choice, [owners, *choice], strict=False))

    ways = itertools.product((partition_evenly, residues), repeat=len(layers))
    every = [[way(layer.rows, 3) for way, layer in zip(choice, layers, strict=True)] for choice in ways]
    assert words(alternate_partitions(layers, 3, owners)) == min(map(words, every))


def test_known_counts() -> None:
    """Strides 1 and 32 between 16 parts: by blocks, by residue, and in turn."""
    near, far = radix_layer(NEURONS, 32, 1), radix_layer(NEURONS, 32, 32)
    by, turn = partition_evenly(NEURONS, PARTS), residues(NEURONS, PARTS)
    assert [volume(one, by, by) for one in (near, far)] == [496, 15_360]
    assert [volume(one, turn, turn) for one in (near, far)] == [15_360, 0]
    assert [volume(near, by, turn), volume(far, turn, by)] == [1_425, 960]
    draw = np.random.default_rng(0)
    random = [volume(one, *draw.integers(PARTS, size=(2, NEURONS))) for one in (near, far)]
    assert sum(random) == pytest.approx(2 * 13_413, rel=0.03)


@pytest.mark.skipif(importlib.util.find_spec("mtkahypar") is not None, reason="mtkahypar is installed")
def test_without_mtkahypar_the_extra_is_named() -> None:
    with pytest.raises(MissingLibrary, match="pip install 'mtkahypar"):
        partition_layers([radix_layer(8, 2, 1)], 2)


@pytest.mark.apart
def test_mtkahypar_finds_what_is_known() -> None:
    pytest.importorskip("mtkahypar")
    layers = [radix_layer(256, 16, 1), radix_layer(256, 16, 16)]
    by, turn = partition_evenly(256, 8), residues(256, 8)
    known = volume(layers[0], by, turn) + volume(layers[1], turn, by)
    for ahead, limit in ((0, 1.05), (1, 1.5)):
        found = partition_layers(layers, 8, turn, ahead=ahead, epsilon=0.05)
        sent = [volume(layer, rows, before) for layer, rows, before in zip(layers, found, [turn, *found], strict=False)]
        assert sum(sent) <= limit * known, (ahead, sent, known)
        assert all(imbalance(layer, rows, 8) <= 0.0501 for layer, rows in zip(layers, found, strict=True))
