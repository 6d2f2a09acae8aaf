"""Operators that only move data, at the edges of their tensors: what lies outside is never read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from bricolage.backends.interface import Resources
from bricolage.backends.native.engine import Native
from bricolage.errors import Refused
from bricolage.graph.extents import slice_bounds
from bricolage.graph.reference_operators import CORRECTED
from bricolage.native.ir.lowerings import NoLowering
from bricolage.native.ir.lowerings.views import broadcast_node, pad, reshape, take
from bricolage.native.ir.tensors import Input
from bricolage.verify.reference import evaluate
from tests.backends import regions

X = np.arange(1, 13, dtype=np.float32).reshape(3, 4)


def onnx_places(start: int, end: int, step: int, size: int) -> list[int]:
    """The places that a Slice keeps, straight from the operator's definition."""
    start, end = (bound + size if bound < 0 else bound for bound in (start, end))
    low, high = (0, size - 1) if step < 0 else (0, size)
    start = min(max(start, low), high)
    end = min(max(end, -1), size - 1) if step < 0 else min(max(end, 0), size)
    return list(range(start, end, step))


BOUNDS = st.integers(-12, 12) | st.sampled_from([np.iinfo(np.int64).min, np.iinfo(np.int64).max])


@given(BOUNDS, BOUNDS, st.sampled_from([-3, -2, -1, 1, 2, 3]), st.integers(1, 5))
def test_bounds_are_those_of_the_definition(start: int, end: int, step: int, size: int) -> None:
    low, high = slice_bounds(start, end, step, size)
    assert list(range(size))[low:high:step] == onnx_places(start, end, step, size)


@pytest.mark.parametrize(
    ("start", "end", "step"),
    [(-9, -20, -1), (-9, -20, -2), (9, -20, -1), (2, -9, -2), (-9, 20, 2), (1, 20, 1), (-1, -20, -3), (0, -20, -1)],
)
def test_slices_that_begin_or_end_outside(tmp_path: Path, start: int, end: int, step: int) -> None:
    places = onnx_places(start, end, step, 3)
    model = regions.region(
        tmp_path,
        "t = Slice (x, a, e, c, s) \n y = Neg (t)",
        "float[3, 4] x",
        f"float[{len(places)}, 4] y",
        a=np.array([start]),
        e=np.array([end]),
        c=np.array([0]),
        s=np.array([step]),
    )
    found = regions.answer(Native(), model, X, resources=Resources(threads=1))
    assert np.array_equal(found[0], -X[places])
    for library in ("torch", "onnx"):
        assert np.array_equal(evaluate(model.model, {"x": X}, library=library)["y"], -X[places]), library


def test_the_reference_implementation_of_onnx_is_put_right() -> None:
    """Its own Slice leaves out the first element; were that mended, ours would not be needed any more."""
    import onnx

    node = onnx.helper.make_node("Slice", ["x", "a", "e", "c", "s"], ["y"])
    infos = [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in "xaecs"]
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "g", infos, [onnx.helper.make_value_info("y", onnx.TypeProto())])
    )
    feeds = dict(zip("xaecs", [X, *(np.array([n]) for n in (-9, -20, 0, -1))], strict=True))
    assert ReferenceEvaluator(model).run(None, feeds)[0].shape == (0, 4)
    assert np.array_equal(ReferenceEvaluator(model, new_ops=list(CORRECTED)).run(None, feeds)[0], X[:1])


def test_a_slice_of_constants_is_folded_rightly(tmp_path: Path) -> None:
    from bricolage.graph.prepare import prepare
    from tests.graph.models import parse

    known = {"w": X, "a": np.array([-9]), "e": np.array([-20]), "c": np.array([0]), "s": np.array([-1])}
    text = '<ir_version: 8, opset_import: ["" : 18]> t (float[1, 4] x) => (float[1, 4] y) { t=Slice(w,a,e,c,s) y=Add(x,t) }'
    graph = prepare(parse(text, **known), {})
    assert [operator.op_type for operator in graph.operators] == ["Add"]
    found = evaluate(graph.model, {"x": np.zeros((1, 4), np.float32)})
    assert np.array_equal(found["y"], X[:1])


@pytest.mark.parametrize(
    ("starts", "steps", "shape"),
    [([-1, 0], [1, 1], (1, 4)), ([2, 0], [1, 1], (2, 4)), ([0, 3], [1, -2], (3, 3)), ([0, 4], [1, 1], (3, 1))],
)
def test_a_view_never_reaches_outside(starts: list[int], steps: list[int], shape: tuple[int, int]) -> None:
    with pytest.raises(NoLowering):
        take(Input((3, 4), "float32", 0), starts, steps, shape)


def test_views_have_as_many_elements_as_their_source() -> None:
    x = Input((3, 4), "float32", 0)
    with pytest.raises(NoLowering, match="12 elements"):
        reshape(x, (5, 5))
    with pytest.raises(NoLowering, match="broadcast"):
        broadcast_node(x, (2, 4))
    assert pad(x, [1, 0], (5, 4), 0.0).shape == (5, 4)


@settings(deadline=None)
@given(st.integers(-5, 3), st.integers(-5, 3))
def test_pads_that_cut_more_than_there_is_are_refused(before: int, behind: int) -> None:
    x = Input((3, 4), "float32", 0)
    kept = 3 + min(before, 0) + min(behind, 0)
    if kept >= 0:
        assert take(x, [max(-before, 0), 0], [1, 1], (kept, 4)).shape == (kept, 4)
    else:
        with pytest.raises(NoLowering):
            take(x, [max(-before, 0), 0], [1, 1], (kept, 4))


def test_shapes_that_the_model_states_wrongly_are_not_believed(tmp_path: Path) -> None:
    """The window count is the operator's, whatever the file says: a kernel for more windows would read beyond the image."""
    body = "t = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x) \n y = Neg (t)"
    model = regions.region(tmp_path, body, "float[1, 1, 6, 6] x", "float[1, 1, 4, 3] y", known="float[1, 1, 4, 3] t")
    with pytest.raises(Refused, match="came out as"):
        regions.answer(Native(), model, np.zeros((1, 1, 6, 6), np.float32), resources=Resources(threads=1))
