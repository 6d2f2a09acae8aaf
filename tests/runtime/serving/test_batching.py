"""Which models are put together, in which sizes, and which are refused: those whose rows depend on each other."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bricolage.errors import NotBatchable
from bricolage.plan.operating_point import OperatingPoint
from bricolage.plan.plan import TensorSpec
from bricolage.runtime.serving.batching import Batching
from tests.plan.bucket_facts import alter_bucket
from tests.runtime.serving.conftest import PATIENCE_S, executable, sample

pytestmark = pytest.mark.usefixtures("backends")

TOGETHER = OperatingPoint(batch=4, max_delay_ms=200.0)
MEAN = "z=Constant<value_ints=[0]>() m=ReduceMean(x,z) y=Sub(x,m)"
RUNNING = "z=Constant<value_int=0>() y=CumSum(x,z)"
PLACE = (
    "s=Shape<start=0,end=1>(x) r=Squeeze(s) z=Constant<value_int=0>() o=Constant<value_int=1>() i=Range(z,r,o) f=Cast<to=1>(i) \
u=Constant<value_ints=[1]>() g=Unsqueeze(f,u) y=Add(x,g)"
)
TABLE = "t=Constant<value_floats=[5.0,6.0,7.0]>() i=Cast<to=7>(x) y=Gather(t,i)"


@pytest.mark.parametrize("backend", ["native", "onnxruntime", "openvino"])
def test_padded_and_full_batches_give_each_request_its_rows(tmp_path: Path, backend: str) -> None:
    fast = executable(tmp_path, backend, (1, 4))
    inputs = [sample(seed, rows) for seed, rows in enumerate([1, 2, 1, 3, 2, 1, 4, 5, 1, 1, 1])]
    wanted = [fast(x) for x in inputs]
    with fast.serve(TOGETHER):
        for future, y in zip([fast.submit(x) for x in inputs], wanted, strict=True):
            np.testing.assert_allclose(future.result(PATIENCE_S), y, rtol=1e-6, atol=1e-6)
    told = fast.statistics()
    assert told.done == len(inputs) and told.rows == sum(map(len, inputs)) and told.batches < len(inputs)


def test_one_request_after_its_delay_runs_in_the_smallest_program(tmp_path: Path) -> None:
    with executable(tmp_path, "quick", (1, 2, 4)).serve(OperatingPoint(batch=4, max_delay_ms=1.0)) as fast:
        assert fast.submit(sample(0, 2)).result(PATIENCE_S).shape == (2, 4)
        assert fast.submit(sample(0, 3)).result(PATIENCE_S).shape == (3, 4)
        assert fast.submit(sample(0, 0)).result(PATIENCE_S).shape == (0, 4)
        told = fast.statistics()
        assert (told.batches, told.rows, told.padding) == (3, 5, 1)


@pytest.mark.parametrize(("body", "what"), [(MEAN, "among others"), (RUNNING, "among others"), (PLACE, "by itself")])
def test_rows_that_depend_on_others_or_on_their_place_are_refused(tmp_path: Path, body: str, what: str) -> None:
    fast = executable(tmp_path, "onnxruntime", (1, 4), body)
    with pytest.raises(NotBatchable, match=f"output 'y' is another one {what}"):
        fast.serve(TOGETHER)
    assert np.array_equal(fast.serve(OperatingPoint()).submit(sample()).result(PATIENCE_S), fast(sample()))


@pytest.mark.parametrize(
    ("inputs", "outputs", "reason"),
    [
        ([(1, 4)], [("n", 4)], "input 'x0' is not a symbolic one"),
        ([("n", 4), ("m", 4)], [("n", 4)], "2 different dimensions"),
        ([("n", 4)], [(4,)], "output 'y0' is not a symbolic one"),
        ([("n", 4), ()], [("n", 4)], "input 'x1' is not"),
        ([None], [("n", 4)], "input 'x0' is not"),
        ([("n", "n")], [("n", 4)], "'x0' has the dimension 'n' at another place"),
        ([("n", 4)], [("n", "n")], "'y0' has the dimension 'n' at another place"),
    ],
)
def test_models_without_a_batch_dimension_are_refused(
    tmp_path: Path, inputs: list[tuple[int | str, ...] | None], outputs: list[tuple[int | str, ...] | None], reason: str
) -> None:
    def specs(letter: str, shapes: list[tuple[int | str, ...] | None]) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(f"{letter}{number}", "float32", shape) for number, shape in enumerate(shapes))

    plan = replace(executable(tmp_path, "quick").plan, inputs=specs("x", inputs), outputs=specs("y", outputs))
    with pytest.raises(NotBatchable, match=reason):
        Batching.of(plan, 4)


def test_sizes_are_those_of_the_plan_by_the_other_dimensions(tmp_path: Path) -> None:
    plan = executable(tmp_path, "quick", (1,)).plan
    spec = TensorSpec("x", "float32", ("n", "length"))
    bucket = plan.buckets[0]
    sized = [{"n": 2, "length": 8}, {"n": 8, "length": 8}, {"n": 4, "length": 16}, {"n": 100, "length": 8}]
    batching = Batching.of(
        replace(plan, inputs=(spec,), outputs=(spec,), buckets=tuple(alter_bucket(bucket, sizes=s) for s in sized)), 10
    )
    rows, key = batching.rows_and_key({"n": 3, "length": 8})
    assert rows == 3 and [batching.size(n, key) for n in (1, 2, 3, 8, 9)] == [1, 2, 8, 8, 10]
    other = batching.rows_and_key({"n": 1, "length": 16})[1]
    assert other != key and batching.size(3, other) == 4
    assert [batching.size(n, batching.rows_and_key({"n": 1, "length": 5})[1]) for n in (1, 2)] == [1, 10]
    assert [batching.rows_and_key({"n": n, "length": 8})[1] for n in (0, 10, 11)] == [None] * 3, "these run alone"


def test_who_has_the_bad_input_fails_alone(tmp_path: Path) -> None:
    fast = executable(tmp_path, "onnxruntime", (1, 4), TABLE)
    good = [np.full((1, 4), value, np.float32) for value in (0, 1, 2)]
    with fast.serve(OperatingPoint(batch=4, max_delay_ms=5_000.0)):
        futures = [fast.submit(x) for x in (good[0], good[1], np.full((1, 4), 77, np.float32), good[2])]
        with pytest.raises(Exception, match="lies outside of"):
            futures.pop(2).result(PATIENCE_S)
        assert [float(future.result(PATIENCE_S)[0, 0]) for future in futures] == [5.0, 6.0, 7.0]
    told = fast.statistics()
    assert (told.done, told.failed, told.running) == (3, 1, 0)


def test_requests_of_many_threads_share_batches(tmp_path: Path) -> None:
    fast = executable(tmp_path, "native", (1, 8))
    wanted = [fast(sample(seed)) for seed in range(50)]
    wrong = list[int]()

    def work() -> None:
        for seed in range(50):
            if not np.allclose(fast.submit(sample(seed)).result(PATIENCE_S), wanted[seed], rtol=1e-6, atol=1e-6):
                wrong.append(seed)

    with fast.serve(OperatingPoint(batch=8, max_delay_ms=1.0)):
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == [] and fast.statistics().rows == 400 and fast.statistics().batches < 400
