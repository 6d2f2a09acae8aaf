"""Forked processes: what lives on gives the same bits, what does not says so, and nobody waits for ever."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bricolage.base.options import Options
from bricolage.device.host import host
from bricolage.errors import ForkedProcess
from bricolage.plan.schedules import PlannedSchedule
from bricolage.runtime import forks
from bricolage.runtime.executable import Executable
from bricolage.work.implementation import Implementation
from tests.runtime.made_plans import Nimble, Quick, graph_of_size, made_bucket, made_plan, whole

pytestmark = pytest.mark.usefixtures("backends")

_PATIENCE_S = 60.0
"""For a child; one that waits for a lock or a thread would wait for ever."""


def executable(folder: Path, backend: str, threads: int = 2) -> Executable:
    graph = graph_of_size(64)
    bucket = made_bucket(folder, graph, whole(graph, Implementation(backend)), {"n": 64})
    return Executable(made_plan(folder, bucket, options=Options(threads=threads)), folder)


def sample() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)


def in_child(act: Callable[[], bool]) -> bool | None:
    """What a forked process says; None where it hangs."""
    child = os.fork()
    if child == 0:
        faulthandler.dump_traceback_later(_PATIENCE_S - 5.0, file=sys.__stderr__)  # where it hangs
        try:
            os._exit(0 if act() else 1)
        except BaseException:
            traceback.print_exc(file=sys.stderr)
            os._exit(1)
    end = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status == 0
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


@pytest.mark.parametrize("backend", ["native", "onnxruntime", "openvino"])
def test_a_child_runs_on_while_another_thread_of_its_parent_infers(tmp_path: Path, backend: str) -> None:
    # As many threads as no other test has: OpenVINO would hand a child those of a model that is gone.
    fast, x = executable(tmp_path, backend, threads=3), sample()
    y, stop = fast(x), threading.Event()

    def infer() -> None:
        while not stop.is_set():
            fast(x)

    thread = threading.Thread(target=infer)
    thread.start()
    try:
        assert [in_child(lambda: all(np.array_equal(fast(x), y) for _ in range(5))) for _ in range(5)] == [True] * 5
    finally:
        stop.set()
        thread.join()
    assert np.array_equal(fast(x), y), "nothing happened to the parent"


def test_the_lock_of_a_thread_that_is_gone_holds_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Quick, "after_fork", "lives")
    fast, x = executable(tmp_path, "quick"), sample()
    y, held, release = fast(x), threading.Event(), threading.Event()

    def hold() -> None:
        with fast._programs._turn, fast._programs._compiling:
            held.set()
            release.wait(_PATIENCE_S)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(_PATIENCE_S)
    try:
        assert in_child(lambda: np.array_equal(fast(x), y)) is True
    finally:
        release.set()
        thread.join()


def test_a_fork_waits_for_a_call_but_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Quick, "after_fork", "again")
    fast, x = executable(tmp_path, "quick"), sample()
    y, held, ended = fast(x), threading.Event(), threading.Event()

    def call(seconds: float) -> None:
        with fast._programs._turn:
            held.set()
            time.sleep(seconds)
            ended.set()

    for seconds, patience_s in ((0.3, _PATIENCE_S), (1.0, 0.1)):
        monkeypatch.setattr(forks, "_PATIENCE_S", patience_s)
        held.clear()
        ended.clear()
        thread = threading.Thread(target=call, args=(seconds,))
        thread.start()
        held.wait(_PATIENCE_S)
        ends_first = seconds < patience_s
        assert in_child(lambda: ended.is_set() == ends_first and np.array_equal(fast(x), y)) is True  # noqa: B023
        thread.join()
    assert np.array_equal(fast(x), y)


def test_garbage_of_the_parent_is_not_collected_in_the_child() -> None:
    openvino = pytest.importorskip("openvino")
    x = openvino.opset13.parameter([64, 64], np.float32)
    model = openvino.Model([openvino.opset13.matmul(x, x, False, False)], [x])
    compiled = openvino.Core().compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": 2})
    compiled(np.ones((64, 64), np.float32))
    gc.disable()
    try:
        cycle: list[object] = [compiled]
        cycle.append(cycle)
        del compiled, cycle
        assert in_child(lambda: gc.collect() >= 0) is True
    finally:
        gc.enable()


def test_what_must_be_compiled_again_is_and_what_lives_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for fate, count in (("lives", 0), ("again", 1)):
        monkeypatch.setattr(Quick, "after_fork", fate)
        (tmp_path / fate).mkdir()
        fast, x = executable(tmp_path / fate, "quick"), sample()
        y = fast(x)
        Quick.compiled.clear()
        assert in_child(lambda: np.array_equal(fast(x), y) and len(Quick.compiled) == count) is True  # noqa: B023


def test_the_threads_of_a_schedule_are_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Quick, "after_fork", "lives")
    fast, x = executable(tmp_path, "quick"), sample()
    schedule = PlannedSchedule((host().cores[:1],), "by hand", 1.0, 1.0, 1.0)
    plan = replace(fast.plan, buckets=(fast.plan.buckets[0].with_schedule(schedule),))
    beside = Executable(plan, tmp_path)
    y = beside(x)
    assert in_child(lambda: np.array_equal(beside(x), y)) is True
    assert np.array_equal(beside(x), y)


def test_what_ends_with_the_fork_says_so_here_and_in_everything_made_later(tmp_path: Path) -> None:
    assert Nimble.after_fork == "ends", "what a plugin gets that says nothing"
    fast, x = executable(tmp_path, "nimble"), sample()
    fast(x)
    unused = tmp_path / "unused"
    unused.mkdir()

    def refused() -> bool:
        for run in (lambda: fast(x), lambda: executable(unused, "nimble")(x)):
            try:
                run()
            except ForkedProcess as error:
                assert "nimble" in str(error) and "spawn" in str(error)
                continue
            return False
        return executable(unused, "native")(x).shape == x.shape  # whatever happened to others

    assert in_child(refused) is True
    assert fast(x).shape == x.shape
