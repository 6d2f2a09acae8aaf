"""The table of searches, and the two bounds that say why something is not built."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from benchmarks.fusion.relu_zeros import measure
from benchmarks.rewrites.searching import FIXPOINT, NONE, search
from bricolage.rewrite.rule import Example
from bricolage.rewrite.search.search_options import METHODS
from tests.rewrite.search.models import FANNED


def test_every_way_is_no_dearer_than_the_graph_as_it_was() -> None:
    row, models = search("fanned", FANNED.model(), METHODS, 20.0)
    assert list(row.ways) == [NONE, FIXPOINT, *METHODS] == list(models)
    before = row.ways[NONE].predicted_ms
    for way in row.ways.values():
        assert way.predicted_ms <= before * (1 + 1e-9) and way.found_s <= way.seconds
    if row.ways["saturate"].predicted_ms <= row.ways["backtrack"].predicted_ms * (1 + 1e-9):
        assert row.same_cost_s is not None
    assert row.bound_ms is not None and row.bound_ms <= row.ways["saturate"].predicted_ms * (1 + 1e-9)


def test_shares_of_zeros_are_those_of_the_numbers(tmp_path: Path) -> None:
    """Of 32 channels, the first sixteen are certainly negative, of the others every second is zero."""
    pytest.importorskip("torch")
    weight = np.ones((32, 2, 1, 1), np.float32)
    weight[:16] = -1.0
    weight[17::2] = -1.0
    example = Example("float[1,2,3,3] x", "t = Conv(x, w) y = Relu(t)", {"w": (32, 2, 1, 1)})
    model = example.model()
    model.graph.initializers["w"].const_value = ir.tensor(weight, name="w")
    path = tmp_path / "model.onnx"
    onnx.save(ir.to_proto(model), str(path))
    row = measure("made up", path, {"x": np.ones((1, 2, 3, 3), np.float32)})
    assert row.convolutions == 1 and row.of_work == 1.0
    assert row.zeros == pytest.approx(24 / 32) and row.blocks == pytest.approx(0.5)
    assert row.decided == pytest.approx(24 / 32), "half of the sum is as long as the rest, which cannot turn its sign"
