"""Calls whose arguments have been checked: the same answers as before, and nothing of them that would have been refused."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from bricolage.errors import MissingInput, UnknownInput, WrongShape, WrongType
from bricolage.runtime.executable import Executable
from bricolage.work.implementation import Implementation
from tests.runtime.made_plans import expected, graph_of_size, made_bucket, made_plan, whole

pytestmark = pytest.mark.usefixtures("backends")


@pytest.fixture
def fast(tmp_path: Path) -> Executable:
    bucket = made_bucket(tmp_path, graph_of_size(2), whole(graph_of_size(2), Implementation("quick")), {"n": 2})
    return Executable(made_plan(tmp_path, bucket), tmp_path)


def sample(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, 4)).astype(np.float32)


def test_arguments_are_checked_once_for_each_type_and_shape(fast: Executable, checks: list[object]) -> None:
    for n, seed in ((2, 0), (2, 1), (5, 2), (2, 3), (5, 4)):
        x = sample(n, seed)
        for answer in (fast(x), fast({"x": x}), fast(x=x), fast.run({"x": x})["y"]):
            np.testing.assert_allclose(answer, expected(x), rtol=1e-5, atol=1e-6)
    assert len(checks) == 2


def test_answers_belong_to_the_caller(fast: Executable) -> None:
    fast(sample(2))
    first, second = fast(sample(2, 1)), fast(sample(2, 2))
    np.testing.assert_allclose(first, expected(sample(2, 1)), rtol=1e-5, atol=1e-6)
    assert not np.shares_memory(first, second)


def test_what_was_refused_is_refused_afterwards(fast: Executable) -> None:
    fast(sample(2))
    with pytest.raises(WrongType):
        fast(sample(2).astype(np.float64))
    with pytest.raises(WrongShape):
        fast(sample(2)[:, :3])
    with pytest.raises(UnknownInput):
        fast({"z": sample(2)})
    with pytest.raises(UnknownInput):
        fast(sample(2), sample(2))
    with pytest.raises(MissingInput):
        fast()


def test_other_layouts_and_byte_orders_are_right(fast: Executable) -> None:
    fast(sample(2))
    for x in (np.asfortranarray(sample(2)), sample(4)[::2], sample(2).astype(">f4")):
        np.testing.assert_allclose(fast(x), expected(np.asarray(x, "f4")), rtol=1e-5, atol=1e-6)


def test_a_shape_that_made_room_for_others_is_found_again(fast: Executable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bricolage.runtime.programs._OTHER_SHAPES", 1)
    for n in (3, 4, 3, 4):
        np.testing.assert_allclose(fast(sample(n)), expected(sample(n)), rtol=1e-5, atol=1e-6)


def test_callers_do_not_mix(fast: Executable) -> None:
    """Many threads at the same time, more than there are sets of buffers."""
    fast(sample(2))
    wrong: list[int] = []

    def call(seed: int) -> None:
        answers = [fast(sample(2, seed)) for _ in range(20)]
        wrong.extend(seed for y in answers if not np.allclose(y, expected(sample(2, seed)), rtol=1e-5, atol=1e-6))

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
