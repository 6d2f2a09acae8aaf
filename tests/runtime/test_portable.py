"""Executables are pickled, copied and given to other processes."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import bricolage
from bricolage.backends.reference import REFERENCE
from bricolage.errors import NotPicklable
from bricolage.runtime.executable import Executable
from bricolage.work.implementation import Implementation
from tests.runtime.made_plans import baseline, expected, graph_of_size, made_bucket, made_plan, whole

ORT = Implementation("onnxruntime")


@pytest.fixture
def fast(tmp_path: Path) -> Executable:
    graph = graph_of_size(4)
    bucket = made_bucket(tmp_path, graph, whole(graph, ORT), {"n": 4}, (baseline(ORT, 1.0),))
    return Executable(made_plan(tmp_path, bucket), tmp_path)


def cloudpickled(value: object) -> object:
    cloudpickle = pytest.importorskip("cloudpickle")
    return cloudpickle.loads(cloudpickle.dumps(value))


WAYS: dict[str, Callable[[object], object]] = {
    **{
        f"pickle {n}": lambda value, n=n: pickle.loads(pickle.dumps(value, n))
        for n in range(pickle.HIGHEST_PROTOCOL + 1)
    },
    "cloudpickle": cloudpickled,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_answers_as_the_original(way: str, fast: Executable) -> None:
    x = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    fast(x)
    twin = WAYS[way](fast)
    assert isinstance(twin, Executable) and twin is not fast and twin.plan == fast.plan
    np.testing.assert_array_equal(twin(x), fast(x))
    fast.close()
    assert twin.submit(x).result() is not None, "a copy has streams of its own"
    twin.close()


def test_within_other_objects(fast: Executable) -> None:
    held = {"models": [fast, fast], "call": partial(fast.run)}
    twins = pickle.loads(pickle.dumps(held))
    assert twins["models"][0] is twins["models"][1]
    x = np.ones((4, 4), np.float32)
    (y,) = twins["call"]({fast.inputs[0].name: x}).values()
    np.testing.assert_allclose(y, expected(x), rtol=1e-5, atol=1e-6)


def test_a_copy_outlives_the_temporary_files_of_its_original(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    graph = graph_of_size(4)
    bucket = made_bucket(folder, graph, whole(graph, REFERENCE), {"n": 4}, (baseline(REFERENCE, 1.0),))
    first = Executable(made_plan(folder, bucket), folder, temporary=True)
    twin, x = copy.deepcopy(first), np.ones((4, 4), np.float32)
    del first
    np.testing.assert_allclose(twin(x), expected(x), rtol=1e-5, atol=1e-6)


def test_in_a_spawned_process(fast: Executable) -> None:
    x = np.random.default_rng(1).normal(size=(4, 4)).astype(np.float32)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        (y,) = pool.map(fast, [x])
    np.testing.assert_array_equal(y, fast(x))


@pytest.mark.parametrize("way", [pickle.dumps, copy.copy, copy.deepcopy])
def test_what_is_bound_to_memory_says_what_to_do(way: Callable[[object], object], fast: Executable) -> None:
    bound = fast.bind({fast.inputs[0].name: bricolage_input()})
    with pytest.raises(NotPicklable, match="save it and load it there"):
        way(bound)


def bricolage_input() -> np.ndarray:
    from bricolage.device.buffers import in_buffer

    return in_buffer(np.ones((4, 4), np.float32))


def test_errors_are_pickled() -> None:
    error = NotPicklable(what="it")
    assert str(pickle.loads(pickle.dumps(error))) == str(error) and issubclass(NotPicklable, bricolage.BricolageError)
