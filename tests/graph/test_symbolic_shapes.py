"""Dimensions that follow from the length of an input although inference leaves them open, and such that do not."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from bricolage.device.tensor_form import Dimension
from bricolage.graph.graph import describe
from bricolage.graph.prepare import prepare, simplify
from tests.graph.models import parse

CONSTANTS = {
    "words": np.ones((8, 4), np.float32),
    "table": np.ones((8, 4), np.float32),
    "nil": np.array([0]),
    "one": np.array([1]),
    "two": np.array([2]),
    "index": np.array(1),
}
LENGTH = "h = Shape(i) g = Gather(h, index) e = Unsqueeze(g, nil)"
SHORT = "e = Shape<start=1, end=2>(i)"
OTHER = "e = Shape<start=1, end=2>(j)"
ADD = "w = Gather(words, i) s = Add(w, p)"


def model(body: str) -> ir.Model:
    text = f"t (int64[batch,length] i, int64[batch,other] j) => (float[a,b,c] y) {{ {body} y = Relu(s) }}"
    return parse(f'<ir_version: 8, opset_import: ["" : 18]> {text}', **CONSTANTS)


def shapes(model: ir.Model) -> dict[str, tuple[Dimension, ...] | None]:
    simplify(model)
    return {value.name or "": describe(value).shape for node in model.graph for value in node.outputs}


@pytest.mark.parametrize("length", [LENGTH, SHORT])
@pytest.mark.parametrize(
    "cut", ["p = Slice(table, nil, e, nil, one)", "q = Slice(table, nil, e, nil) p = Mul(q, q)"], ids=["cut", "behind"]
)
def test_positions_are_as_many_as_what_they_are_added_to(length: str, cut: str) -> None:
    found = shapes(model(f"{length} {cut} {ADD}"))
    assert found["s"] == ("batch", "length", 4)
    table = found["p"]
    assert table is not None and table[0] != "length" and table[1] == 4, "they are no more than there are"


def test_positions_by_number() -> None:
    body = f"{LENGTH} n = Slice(two, nil, e, nil) k = Gather(table, n) p = Mul(k, k) {ADD}"
    assert shapes(model(body))["s"] == ("batch", "length", 4)


@pytest.mark.parametrize(
    "cut",
    [
        f"{OTHER} p = Slice(table, nil, e, nil)",
        f"{SHORT} p = Slice(table, one, e, nil)",
        f"{SHORT} p = Slice(table, nil, e, nil, two)",
        f"{SHORT} d = Add(e, one) p = Slice(table, nil, d, nil)",
        f"{SHORT} q = Gather(table, j) p = Slice(q, nil, e, one)",
    ],
    ids=["another length", "not the first", "not each", "one more", "of unknown many"],
)
def test_other_lengths_stay_open(cut: str) -> None:
    found = shapes(model(f"{cut} {ADD}"))["s"]
    assert found is not None and found[1] not in ("length", 4)


def test_lengths_that_come_from_nothing_stay_open() -> None:
    """An operator without inputs can stand where the end of a cut is computed."""
    random = "r = RandomUniform<low=1.0, high=3.0, shape=[1]>() e = Cast<to=7>(r) p = Slice(table, nil, e, nil)"
    assert shapes(model(f"{random} {ADD}"))["s"] not in (("batch", "length", 4), ("batch", "?", 4))


def test_what_was_found_is_true_at_a_size() -> None:
    body = f"{LENGTH} p = Slice(table, nil, e, nil) {ADD}"
    bound = prepare(model(body), {"batch": 2, "length": 3, "other": 1})
    assert bound.outputs[0].sizes == (2, 3, 4)
