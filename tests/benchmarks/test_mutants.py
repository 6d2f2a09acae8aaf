"""The table of mutants: layers are read from a graph, and a network counts each of its convolutions as often as it occurs."""

from __future__ import annotations

import pytest

from benchmarks.rewrites import mutants
from benchmarks.rewrites.mutants import NETWORKS, PUBLISHED, READ, Layer, Row, format_networks, race_layer, read_layer
from bricolage.rewrite.rule import Example


def test_a_layer_is_that_of_its_convolution() -> None:
    for layer in (Layer(2, 3, 8, (3, 3), 2, 1, pads=(1, 1)), Layer(2, 3, 8, (1, 5), dilation=2, pads=(0, 4))):
        example = Example("float[1,2,8,8] x", layer.example, {"w": (3, 2, *layer.kernel)})
        assert read_layer(next(node for node in example.model().graph if node.op_type == "Conv")) == layer
    grouped = Example("float[1,2,8,8] x", "y = Conv<group=2>(x, w)", {"w": (2, 1, 3, 3)}).model()
    with pytest.raises(ValueError, match="one group"):
        read_layer(next(iter(grouped.graph)))


def test_a_network_gains_by_what_is_faster_beyond_its_interval() -> None:
    def row(layer: str, mutant: str, speedup: tuple[float, float, float], count: int) -> Row:
        return Row("csrnet", layer, "native", mutant, 10.0, speedup, 0.0, 1, count)

    rows = [
        row("first", "a", (2.0, 1.5, 2.5), 3),
        row("first", "b", (3.0, 0.9, 4.0), 3),
        row("second", "a", (1.1, 0.9, 1.2), 1),
    ]
    assert format_networks(rows).splitlines()[-1] == "| csrnet | 1 | native | 4 | 3 | 40.000 | 25.000 | 1.600 | 2.21 |"


def test_a_small_convolution_is_raced_against_its_mutants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutants, "_ROUNDS", 2)
    monkeypatch.setattr(mutants, "_TURN_S", 1e-4)
    layer = Layer(2, 2, 8, (3, 3), dilation=2, count=5)
    rows = race_layer("csrnet", layer, 2, "reference", 1)
    assert len({row.mutant for row in rows}) == len(rows) > 1
    assert all(row.error <= 1e-6 and row.count == 5 and row.batch == 2 for row in rows)


def test_every_network_has_a_figure_of_its_own() -> None:
    assert {*NETWORKS, *READ} <= set(PUBLISHED) and all(set(figures) == {1, 16} for figures in PUBLISHED.values())
