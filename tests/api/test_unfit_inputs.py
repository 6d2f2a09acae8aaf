"""Inputs that suit a model one by one, and not together, are the caller's fault: told as that, before anything is measured."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import bricolage
from bricolage.errors import IndexBeyond, UnfitInputs
from bricolage.graph.prepare import prepare, prepare_for_call
from tests.graph.models import parse

Sizes = dict[str, int]
CASES: dict[str, tuple[str, str, Sizes, Sizes]] = {
    "GatherND": (
        "y = GatherND <batch_dims = 1> (x, i)",
        "float[a,b] x, int64[c,1] i",
        {"a": 3, "b": 3, "c": 3},
        {"c": 2},
    ),
    "GatherElements": (
        "y = GatherElements (x, i)",
        "float[a,b] x, int64[c,d] i",
        {"a": 3, "b": 3, "c": 2, "d": 3},
        {"d": 4},
    ),
    "ScatterND": (
        "y = ScatterND (x, i, u)",
        "float[a,b] x, int64[c,1] i, float[d,b] u",
        {"a": 3, "b": 3, "c": 2, "d": 2},
        {"d": 3},
    ),
    "ScatterElements": (
        "y = ScatterElements (x, i, u)",
        "float[a,b] x, int64[c,b] i, float[d,b] u",
        {"a": 3, "b": 3, "c": 2, "d": 2},
        {"d": 3},
    ),
    "Compress": ("y = Compress <axis = 0> (x, i)", "float[a,b] x, bool[c] i", {"a": 3, "b": 3, "c": 3}, {"c": 4}),
    "ReverseSequence": ("y = ReverseSequence (x, i)", "float[a,b] x, int64[c] i", {"a": 3, "b": 3, "c": 3}, {"c": 2}),
    "Add": ("y = Add (x, i)", "float[a,b] x, float[c,d] i", {"a": 3, "b": 4, "c": 1, "d": 4}, {"d": 3}),
    "MatMul": ("y = MatMul (x, i)", "float[a,b] x, float[c,d] i", {"a": 3, "b": 4, "c": 4, "d": 2}, {"c": 3}),
    "Concat": (
        "y = Concat <axis = 0> (x, i)",
        "float[a,b] x, float[c,d] i",
        {"a": 3, "b": 4, "c": 1, "d": 4},
        {"d": 5},
    ),
    "Where": ("y = Where (i, x, x)", "float[a,b] x, bool[c,d] i", {"a": 3, "b": 4, "c": 1, "d": 4}, {"d": 3}),
    "Conv": ("y = Conv (x, i)", "float[1,a,4,4] x, float[b,c,1,1] i", {"a": 2, "b": 3, "c": 2}, {"c": 3}),
}


def text(name: str) -> str:
    body, inputs, _, _ = CASES[name]
    rank = 4 if name == "Conv" else 1 if name == "GatherND" else 2
    return (
        f'<ir_version: 8, opset_import: ["" : 18]> test ({inputs}) => (float[{",".join("klmn"[:rank])}] y) {{ {body} }}'
    )


@pytest.mark.parametrize("name", CASES)
def test_sizes_that_do_not_fit_are_told(name: str) -> None:
    _, _, good, change = CASES[name]
    model = parse(text(name))
    prepare(model, good)
    with pytest.raises(UnfitInputs, match="do not fit each other at") as caught:
        prepare_for_call(model, {**good, **change})
    assert caught.value.exit_code == 2 and name in caught.value.sentence


def test_optimize_refuses_them() -> None:
    model = onnx.parser.parse_model(text("GatherND"))
    inputs = {"x": np.zeros((3, 3), np.float32), "i": np.array([[1], [2]])}
    with pytest.raises(UnfitInputs, match="the first 1 dimensions"):
        bricolage.optimize(model, bricolage.Options(budget_s=2), inputs=inputs)
    inputs["i"] = np.array([[1], [2], [3]])
    with pytest.raises(IndexBeyond, match="3 lies outside"):
        bricolage.optimize(model, bricolage.Options(budget_s=2), inputs=inputs)
