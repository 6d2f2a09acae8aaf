"""The reference in a worker: the same values, and no end of time or memory costs more than an error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bricolage.device.host import host
from bricolage.errors import InvalidGraph, NoReference, ReferenceLimit
from bricolage.graph.prepare import prepare
from bricolage.graph.store import Store
from bricolage.measure.pool import Pool
from bricolage.measure.reference_worker import WorkerReference, reference_limit
from bricolage.verify.bound import error_limits
from bricolage.verify.oracle import Oracle
from bricolage.verify.reference import evaluate
from tests.graph.models import parse

X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
LOOP = """<ir_version: 8, opset_import: ["" : 18]> t (float[2,3] x) => (float[2,3] y) {
    y = Loop<body = b (int64 i, bool c, float[2,3] a) => (bool d, float[2,3] s) { d = Identity(c) s = Add(a,one) }>(n,yes,x) }"""
ONCE = '<ir_version: 8, opset_import: ["" : 18]> t (float[2,3] x) => (float[2,4] y) { h = Tanh(x) y = MatMul(h,w) }'


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool() as made:
        yield made


def test_the_values_are_those_of_this_process(pool: Pool, tmp_path: Path) -> None:
    graph = prepare(parse(ONCE, w=np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)), {})
    Store(tmp_path).share([graph.model])
    before = set(tmp_path.iterdir())
    reference = WorkerReference(pool, host(), tmp_path, 60.0)
    for dtype in (np.float64, np.float32):
        here = evaluate(graph.model, {"x": X}, dtype=dtype, keep=["h"])
        there = reference(graph.model, {"x": X}, dtype=dtype, keep=["h"])
        assert list(there) == ["y", "h"] and there["y"].dtype == dtype
        assert all(np.array_equal(here[name], there[name]) for name in here)
    assert set(tmp_path.iterdir()) == before


def test_the_same_question_is_evaluated_once(pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = parse(ONCE, w=np.ones((3, 4), np.float32))
    reference = WorkerReference(pool, host(), tmp_path, 60.0)
    first = reference(model, {"x": X})
    assert set(reference(model, {"x": X}, keep=["h"])) == {"y", "h"}
    again = reference(model, {"x": X})
    with monkeypatch.context() as patch:
        patch.setattr(pool, "ask", None)
        assert np.array_equal(reference(model, {"x": X.copy()})["y"], first["y"])
    again.clear()
    assert np.array_equal(reference(model, {"x": X})["y"], first["y"])
    assert not np.array_equal(reference(model, {"x": X + 1})["y"], first["y"])
    assert not list(tmp_path.iterdir())


def test_a_loop_without_end_is_given_up(pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import bricolage.measure.pool

    monkeypatch.setattr(bricolage.measure.pool, "_START_GRACE_S", 0.0)
    yes, forever = np.asarray(True), np.asarray(np.iinfo(np.int64).max)
    model = parse(LOOP, one=np.float32(1), yes=yes, n=forever)
    reference = WorkerReference(pool, host(), tmp_path, 1.0)
    with pytest.raises(ReferenceLimit, match="more than 1 s; a loop") as caught:
        reference(model, {"x": X})
    assert caught.value.exit_code == 4
    few = parse(LOOP, one=np.float32(1), yes=yes, n=np.asarray(5))
    assert np.array_equal(WorkerReference(pool, host(), tmp_path, 60.0)(few, {"x": X})["y"], X.astype(np.float64) + 5)


def test_memory_is_limited(tmp_path: Path) -> None:
    body = "t = Expand(one,s) u = Neg(t) y = ReduceSum<keepdims=0>(u)"
    text = f'<ir_version: 8, opset_import: ["" : 18]> t (int64[2] s) => (float y) {{ {body} }}'
    model = parse(text, one=np.float32(1))
    with Pool(memory_limit=1 << 29) as small, pytest.raises(ReferenceLimit, match="memory"):
        WorkerReference(small, host(), tmp_path, 60.0)(model, {"s": np.array([1 << 14, 1 << 14])})


def test_errors_come_back_as_what_they_are(pool: Pool, tmp_path: Path) -> None:
    reference = WorkerReference(pool, host(), tmp_path, 60.0)
    with pytest.raises(NoReference, match="'x' is missing"):
        reference(parse(ONCE, w=np.ones((3, 4), np.float32)), {})
    stated = parse('<ir_version: 8, opset_import: ["" : 18]> t (float[2,3] x) => (int64[2,4] y) { y = NonZero(x) }')
    with pytest.raises(InvalidGraph, match="'y' is stated to be"):
        reference(stated, {"x": np.ones((2, 3), np.float32)})


def test_the_limit_grows_with_the_work_and_the_budget() -> None:
    small = prepare(parse(ONCE, w=np.ones((3, 4), np.float32)), {})
    large = prepare(
        parse(ONCE.replace("2,3", "20000,3").replace("2,4", "20000,40000"), w=np.ones((3, 40000), np.float32)), {}
    )
    assert reference_limit(small, 2.0) < reference_limit(large, 2.0)
    assert reference_limit(small, 900.0) >= 900.0


W = np.arange(6, dtype=np.float32).reshape(2, 3)
FOREIGN = """<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]> t (float[2,3] x) => (float[2,3] y) {
    h = Tanh(x) d = com.microsoft.SampleOp(h) y = Add(d,w) }"""
"""With an operator that hands on its input, of which the reference knows nothing."""


def test_onnx_runtime_stands_in_for_what_float64_does_not_know(pool: Pool, tmp_path: Path) -> None:
    model = parse(FOREIGN, w=W)
    reference = WorkerReference(pool, host(), tmp_path, 60.0)
    found = reference(model, {"x": X})
    h = np.tanh(X.astype(np.float64))
    assert found.borrowed == {"SampleOp"} and found["y"].dtype == np.float64
    np.testing.assert_allclose(found["y"], h + W, rtol=1e-6, atol=1e-7)
    assert reference(model, {"x": X}).borrowed == {"SampleOp"}  # also where the answer is remembered
    with pytest.raises(NoReference, match="SampleOp"):  # this process runs nothing of a runtime's
        evaluate(model, {"x": X})
    exact = parse(ONCE, w=np.ones((3, 4), np.float32))
    assert reference(exact, {"x": X}).borrowed == frozenset()


def test_what_nobody_knows_is_named(pool: Pool, tmp_path: Path) -> None:
    model = parse(FOREIGN.replace("SampleOp", "NoSuch"), w=W)
    with pytest.raises(NoReference, match=r"\(NoSuch\) cannot be run: .*; ONNX Runtime without its optimisations"):
        WorkerReference(pool, host(), tmp_path, 60.0)(model, {"x": X})


def test_a_reference_in_the_models_types_may_be_off_itself(pool: Pool, tmp_path: Path) -> None:
    limited: dict[bool, float] = {}
    for borrowed in (False, True):
        limited[borrowed] = error_limits({"y": 1e-7}, {"y": X}, borrowed=borrowed)["y"]
    assert limited[True] == 2 * limited[False]
    graph = prepare(parse(FOREIGN, w=W), {})
    store = Store(tmp_path)
    store.share([graph.model])
    oracle = Oracle(graph, {"x": X}, store, 1e-9, "m", evaluate=WorkerReference(pool, host(), tmp_path, 60.0))
    assert oracle.borrowed == {"SampleOp"} and oracle.bound > 1e-8


TREE = """<ir_version: 9, opset_import: ["" : 18, "ai.onnx.ml" : 3]> t (float[2,3] x) => (int64[2] label, float[2,2] y) {
    label, y = ai.onnx.ml.TreeEnsembleClassifier<classlabels_int64s=[4,7], nodes_treeids=[0,0,0], nodes_nodeids=[0,1,2],
    nodes_featureids=[0,0,0], nodes_values=[0.0,0.0,0.0], nodes_modes=["BRANCH_LEQ","LEAF","LEAF"], nodes_truenodeids=[1,0,0],
    nodes_falsenodeids=[2,0,0], class_treeids=[0,0], class_nodeids=[1,2], class_ids=[0,0], class_weights=[0.25,0.875]>(x) }"""


def test_what_a_definition_leaves_open_the_runtime_says(pool: Pool, tmp_path: Path) -> None:
    found = WorkerReference(pool, host(), tmp_path, 60.0)(parse(TREE), {"x": X})
    assert found.borrowed == {"TreeEnsembleClassifier"}
    assert found["label"].tolist() == [4, 7] and found["y"].tolist() == [[0.75, 0.25], [0.125, 0.875]]
