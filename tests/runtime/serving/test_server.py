"""Requests to an executable: the same answers as calls, and what becomes of them when queues fill, callers leave, or all ends."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError, Future, wait
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bricolage.device import memory
from bricolage.device.host import host
from bricolage.errors import (
    BadOption,
    ExecutableClosed,
    ForkedProcess,
    MissingInput,
    NotEnoughMemory,
    QueueFull,
    WrongShape,
    WrongType,
)
from bricolage.plan.operating_point import OperatingPoint
from bricolage.plan.schedules import PlannedSchedule
from bricolage.runtime.load import load
from tests.runtime.made_plans import Nimble, Quick, allowed
from tests.runtime.serving.conftest import CORES, PATIENCE_S, busy, executable, sample
from tests.runtime.test_forks import in_child

pytestmark = pytest.mark.usefixtures("backends")

TWO = OperatingPoint(streams=min(2, CORES))
two_cores = pytest.mark.skipif(CORES < 2, reason="one core")


# --- answers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["native", "onnxruntime", "openvino", "torch"])
@pytest.mark.parametrize("point", [None, TWO])
def test_answers_are_those_of_calls_bit_for_bit(tmp_path: Path, backend: str, point: OperatingPoint | None) -> None:
    with executable(tmp_path, backend, (1, 3)) as fast:
        inputs = [sample(seed, rows) for seed, rows in enumerate([1, 3, 1, 2])]
        wanted = [fast(x) for x in inputs]
        fast.serve(point)
        futures = [fast.submit(x) for x in inputs] + [fast.submit(x=x) for x in inputs]
        for future, y in zip(futures, wanted * 2, strict=True):
            assert np.array_equal(future.result(PATIENCE_S), y)
        for answer, y in zip(fast.map([{"x": x} for x in inputs]), wanted, strict=True):
            assert np.array_equal(answer, y)


def test_tensors_come_back_as_tensors(tmp_path: Path) -> None:
    import torch

    with executable(tmp_path, "native") as fast:
        answer = fast.submit(torch.from_numpy(sample())).result(PATIENCE_S)
        assert isinstance(answer, torch.Tensor) and np.array_equal(answer.numpy(), fast(sample()))


def test_bad_input_is_refused_at_once_and_arrays_are_read_at_once(tmp_path: Path) -> None:
    with executable(tmp_path, "quick") as fast, busy(fast):
        for error, given in (
            (WrongShape, (np.zeros((1, 5), np.float32),)),
            (WrongType, (np.zeros((1, 4), np.int64),)),
            (MissingInput, ()),
        ):
            with pytest.raises(error):
                fast.submit(*given)
        x = sample(1)
        future = fast.submit(x)
        x[:] = 0
        assert fast.statistics().waiting == 1
    assert np.array_equal(future.result(PATIENCE_S), fast(sample(1)))


def test_thousands_of_requests_from_many_threads(tmp_path: Path) -> None:
    fast = executable(tmp_path, "native")
    wanted, wrong = [fast(sample(seed)) for seed in range(10)], list[int]()

    def work() -> None:
        futures = [fast.submit(sample(n % 10)) for n in range(250)]
        wrong.extend(n for n, one in enumerate(futures) if not np.array_equal(one.result(PATIENCE_S), wanted[n % 10]))

    with fast.serve(replace(TWO, queue=16)):
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        told = fast.statistics()
    assert wrong == [] and (told.done, told.waiting, told.running, told.failed) == (2000, 0, 0, 0)
    assert 0 <= told.queueing.p50_ms <= told.queueing.p99_ms <= told.queueing.max_ms
    assert told.latency.mean_ms == pytest.approx(told.queueing.mean_ms + told.service.mean_ms)


# --- streams --------------------------------------------------------------------------------------------------------


@two_cores
@pytest.mark.parametrize("backend", ["quick", "native"])
def test_streams_run_side_by_side_on_cores_of_their_own(tmp_path: Path, backend: str) -> None:
    everywhere = allowed()
    meeting = threading.Barrier(2, timeout=PATIENCE_S)  # passed only if both are there together
    found = set[frozenset[int]]()

    def deliver(_: dict[str, Any]) -> None:
        meeting.wait()
        found.add(allowed())

    with executable(tmp_path, backend).serve(TWO) as fast:
        wait([fast._serves().submit({"x": sample()}, deliver) for _ in range(2)], PATIENCE_S)
    assert found == (
        {frozenset({core}) for core in host().cores[:2]} if hasattr(os, "sched_getaffinity") else {frozenset()}
    )
    assert allowed() == everywhere


@two_cores
def test_streams_share_code_and_weights_where_backends_can(tmp_path: Path) -> None:
    for backend, shared in (("native", "_weights"), ("onnxruntime", "_session")):
        (tmp_path / backend).mkdir()
        fast = executable(tmp_path / backend, backend)
        made = []
        make = fast._programs_of(TWO)
        for number in range(TWO.streams):
            made.append(make(number))
            made[-1].bucket(0)
        one, other = (programs.bucket(0).program.stages[0].kernel.current() for programs in made)  # type: ignore[attr-defined]
        assert getattr(one, shared) is getattr(other, shared)
        apart = backend != "native" or (
            one._handle.address != other._handle.address and one._handle._team is not other._handle._team
        )
        assert apart


@pytest.mark.parametrize(
    "point", [OperatingPoint(CORES + 1), OperatingPoint(1, CORES + 1), OperatingPoint(2, CORES), OperatingPoint(1000)]
)
def test_more_cores_than_there_are_are_refused(tmp_path: Path, point: OperatingPoint) -> None:
    with executable(tmp_path, "quick") as fast:
        with pytest.raises(BadOption, match=f"may use {CORES}"):
            fast.serve(point)
        assert fast.serve(OperatingPoint()).submit(sample()).result(PATIENCE_S).shape == (1, 4), "it is as before"


def test_a_quota_below_the_affinity_mask_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bricolage.runtime.executable.available_cores", lambda: 1)
    with executable(tmp_path, "quick") as fast, pytest.raises(BadOption, match="may use 1"):
        fast.serve(OperatingPoint(2))


@two_cores
def test_streams_that_memory_does_not_hold_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: -1)
    before = threading.active_count()
    with executable(tmp_path, "quick") as fast:
        with pytest.raises(NotEnoughMemory):
            fast.serve(TWO)
        fast.serve(OperatingPoint())  # one takes what a call takes
    assert threads_end(before)


def threads_end(count: int) -> bool:
    """Whether, soon, no more threads run than that."""
    end = time.monotonic() + PATIENCE_S
    while threading.active_count() > count and time.monotonic() < end:
        time.sleep(0.01)
    return threading.active_count() <= count


@two_cores
def test_the_plan_says_how_it_is_served(tmp_path: Path) -> None:
    fast = executable(tmp_path, "quick")
    plan = replace(fast.plan, operating_point=TWO)
    schedule = PlannedSchedule((host().cores[:1],), "by hand", 1.0, 1.0, 1.0)
    plan = replace(plan, buckets=(plan.buckets[0].with_schedule(schedule),))
    with type(fast)(plan, tmp_path) as planned:
        path = planned.save(tmp_path / "made.bricolage")
        assert planned.submit(sample()).result(PATIENCE_S).shape == (1, 4)
        assert planned.operating_point == TWO
        assert len(planned._serves()._threads) == 2
    with load(path) as loaded:
        assert loaded.plan.operating_point == TWO
        assert loaded.submit(sample()).result(PATIENCE_S).shape == (1, 4)


def test_another_operating_point_follows_when_the_last_one_has_finished(tmp_path: Path) -> None:
    with executable(tmp_path, "quick") as fast:
        futures = [fast.submit(sample(seed)) for seed in range(20)]
        fast.serve(OperatingPoint(queue=5))
        assert all(future.done() for future in futures)
        assert fast.submit(sample()).result(PATIENCE_S).shape == (1, 4) and fast.statistics().done == 1


def test_who_submits_meanwhile_is_served_by_one_or_the_other(tmp_path: Path) -> None:
    with executable(tmp_path, "quick") as fast:
        futures: list[Future[Any]] = []
        thread = threading.Thread(target=lambda: futures.extend(fast.submit(sample(seed)) for seed in range(100)))
        thread.start()
        for queue in range(1, 6):
            fast.serve(OperatingPoint(queue=queue))
        thread.join(PATIENCE_S)
        assert len(futures) == 100 and all(future.result(PATIENCE_S).shape == (1, 4) for future in futures)


# --- the queue ------------------------------------------------------------------------------------------------------


def test_a_full_queue_refuses_or_lets_wait(tmp_path: Path) -> None:
    with executable(tmp_path, "quick").serve(OperatingPoint(queue=2)) as fast:
        blocked: list[Future[Any]] = []
        with busy(fast):
            waiting = [fast.submit(sample()) for _ in range(2)]
            with pytest.raises(QueueFull, match="2 wait"):
                fast.submit(sample(), block=False)
            with pytest.raises(QueueFull):
                fast.submit(sample(), timeout=0.01)
            thread = threading.Thread(target=lambda: blocked.append(fast.submit(sample())))
            thread.start()
            assert waiting[0].cancel(), "which makes room for the one that waits"
            thread.join(PATIENCE_S)
            assert len(blocked) == 1
        assert blocked[0].result(PATIENCE_S).shape == (1, 4)


def test_a_stream_does_not_wait_for_itself(tmp_path: Path) -> None:
    with executable(tmp_path, "quick").serve(OperatingPoint(queue=1)) as fast:
        raised: list[BaseException] = []

        def deliver(_: dict[str, Any]) -> None:
            fast.submit(sample())
            try:
                fast.submit(sample())
            except QueueFull as error:
                raised.append(error)

        fast._serves().submit({"x": sample()}, deliver).result(PATIENCE_S)
        assert len(raised) == 1


def test_what_is_cancelled_before_it_began_never_runs(tmp_path: Path) -> None:
    with executable(tmp_path, "quick") as fast:
        with busy(fast) as running:
            waiting = fast.submit(sample())
            assert not running.cancel() and waiting.cancel() and waiting.cancel()
            assert wait([waiting], PATIENCE_S).done == {waiting}
            with pytest.raises(CancelledError):
                waiting.result()
        running.result(PATIENCE_S)
        told = fast.statistics()
        assert (told.done, told.cancelled, told.waiting, told.batches) == (1, 1, 0, 1)


def test_an_error_in_a_callback_ends_no_stream(tmp_path: Path) -> None:
    with executable(tmp_path, "quick") as fast:
        for kind in (ValueError, SystemExit):
            with busy(fast) as running:
                running.add_done_callback(lambda _: (_ for _ in ()).throw(kind("of a callback")))  # noqa: B023
        assert fast.submit(sample()).result(PATIENCE_S).shape == (1, 4)


# --- map ------------------------------------------------------------------------------------------------------------


def test_map_looks_ahead_only_so_far_and_cancels_what_nobody_fetches(tmp_path: Path) -> None:
    with executable(tmp_path, "quick") as fast:
        drawn = list[int]()

        def inputs() -> Any:
            for number in range(100):
                drawn.append(number)
                yield sample(number)

        answers = fast.map(inputs(), ahead=3)
        assert drawn == []
        for number in range(5):
            assert np.array_equal(next(answers), fast(sample(number)))
            assert len(drawn) <= number + 3
        answers.close()
        assert list(fast.map([])) == []


def test_map_gives_what_came_before_a_bad_input_and_then_its_error(tmp_path: Path) -> None:
    with executable(tmp_path, "quick") as fast:
        answers = fast.map([sample(0), sample(1), "no array", sample(2)])
        assert np.array_equal(next(answers), fast(sample(0))) and np.array_equal(next(answers), fast(sample(1)))
        with pytest.raises(WrongType):
            next(answers)
        assert list(answers) == []


# --- the end --------------------------------------------------------------------------------------------------------


def test_close_finishes_or_cancels_and_takes_no_more(tmp_path: Path) -> None:
    for cancel in (False, True):
        (tmp_path / str(cancel)).mkdir()
        fast, before = executable(tmp_path / str(cancel), "quick").serve(TWO), threading.active_count()
        with ExitStack() as stack:
            for _ in range(TWO.streams):
                stack.enter_context(busy(fast))
            futures = [fast.submit(sample(seed)) for seed in range(5)]
            fast.close(wait=False, cancel=cancel)
            assert [future.cancelled() for future in futures] == [cancel] * 5
            for act in (lambda: fast.submit(sample()), fast.serve, lambda: next(fast.map([sample()]))):  # noqa: B023
                with pytest.raises(ExecutableClosed, match=r"made\.onnx"):
                    act()
        fast.close()
        assert [future.done() for future in futures] == [True] * 5 and threads_end(before - TWO.streams)
        assert fast.statistics().done == TWO.streams + (0 if cancel else 5)
        assert fast(sample()).shape == (1, 4), "calls go on"


def test_with_ends_quickly_where_its_body_fails(tmp_path: Path) -> None:
    futures: list[Future[Any]] = []
    with pytest.raises(KeyError), executable(tmp_path, "quick") as fast:
        release = busy(fast)
        release.__enter__()
        futures += [fast.submit(sample()) for _ in range(3)]
        threading.Timer(0.1, lambda: release.__exit__(None, None, None)).start()
        raise KeyError
    assert all(future.cancelled() for future in futures)


def test_streams_end_with_their_executable_when_all_is_answered(tmp_path: Path) -> None:
    before = threading.active_count()
    fast = executable(tmp_path, "native").serve(TWO)
    wanted = fast(sample())
    futures = [fast.submit(sample()) for _ in range(50)]
    del fast
    gc.collect()
    assert all(np.array_equal(future.result(PATIENCE_S), wanted) for future in futures)
    assert threads_end(before)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers")
def test_a_keyboard_interrupt_in_submit_leaves_all_usable(tmp_path: Path) -> None:
    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with executable(tmp_path, "quick").serve(OperatingPoint(queue=1)) as fast:
            with busy(fast):
                waiting = fast.submit(sample())
                signal.setitimer(signal.ITIMER_REAL, 0.05)
                with pytest.raises(KeyboardInterrupt):
                    fast.submit(sample())
                answers = fast.map([sample()] * 9)
                signal.setitimer(signal.ITIMER_REAL, 0.05)
                with pytest.raises(KeyboardInterrupt):
                    next(answers)
            assert waiting.result(PATIENCE_S).shape == (1, 4)
            assert fast.submit(sample()).result(PATIENCE_S).shape == (1, 4)
    finally:
        signal.signal(signal.SIGALRM, before)


# --- forks and the interpreter's end --------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["native", "onnxruntime", "openvino"])
def test_a_child_has_streams_of_its_own_and_the_parents_requests_say_so(tmp_path: Path, backend: str) -> None:
    with executable(tmp_path, backend).serve(TWO) as fast:
        wanted = fast(sample())

        def child() -> bool:
            try:
                running.result(5)
            except ForkedProcess:
                try:
                    answers = list(fast.map([sample()] * 20))
                except ForkedProcess:
                    return backend == "openvino"  # where this process has dropped one of its models before
                fast.close()
                return all(np.array_equal(answer, wanted) for answer in answers)
            return False

        with busy(fast) as running:
            futures = [fast.submit(sample()) for _ in range(5)]
            assert in_child(child) is True
        assert all(np.array_equal(future.result(PATIENCE_S), wanted) for future in futures)


def test_a_pool_that_openvino_kept_does_not_keep_a_child_waiting(tmp_path: Path) -> None:
    fast = executable(tmp_path, "openvino")
    fast.submit(sample()).result(PATIENCE_S)
    fast.serve(OperatingPoint(streams=min(2, CORES))).close()  # frees models, but not their threads
    executable(tmp_path, "openvino")(sample())
    gc.collect()

    def refused() -> bool:
        try:
            fast(sample())
        except ForkedProcess as error:
            return "OpenVINO" in str(error)
        return False

    assert in_child(refused) is True
    assert fast(sample()).shape == (1, 4)


def test_what_does_not_survive_a_fork_says_so_in_submit(tmp_path: Path) -> None:
    assert Nimble.after_fork == "ends"

    def refused() -> bool:
        try:
            fast.submit(sample())
        except ForkedProcess:
            return True
        return False

    with executable(tmp_path, "nimble") as fast:
        fast.submit(sample()).result(PATIENCE_S)
        assert in_child(refused) is True


_END = """
import sys, bricolage
import numpy as np
from bricolage.plan.operating_point import OperatingPoint
fast = bricolage.load(sys.argv[1])
fast.serve(OperatingPoint(streams=int(sys.argv[2]), batch=4, max_delay_ms=60000.0))
futures = [fast.submit(np.zeros((1, 4), np.float32)) for _ in range(301)]
futures[0].result()
if sys.argv[3] == "error":
    raise KeyError("the end")
"""


@pytest.mark.parametrize(("backend", "how"), [("native", "end"), ("openvino", "end"), ("onnxruntime", "error")])
def test_an_interpreter_ends_with_requests_under_way(tmp_path: Path, backend: str, how: str) -> None:
    path = executable(tmp_path, backend, (1, 4)).save(tmp_path / "made.bricolage")
    words = [sys.executable, "-c", _END, str(path), str(TWO.streams), how]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False, encoding="utf-8")
    assert done.returncode == (how == "error"), done.stderr
    assert done.stderr.count("Traceback") == (how == "error") and "Exception" not in done.stderr, done.stderr


# --- callers beside each other --------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["quick", "native", "onnxruntime"])
def test_callers_have_buffers_of_their_own_and_take_turns(tmp_path: Path, backend: str) -> None:
    fast = executable(tmp_path, backend, threads=min(2, CORES))
    wanted, wrong = [fast(sample(seed)) for seed in range(4)], list[int]()

    def work(seed: int) -> None:
        wrong.extend(n for n in range(100) if not np.array_equal(fast(sample(seed)), wanted[seed]))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    prepared = fast._programs.bucket(0)
    assert wrong == [] and len(prepared._sets) <= 2 and len(prepared._free) == len(prepared._sets)


def test_a_second_caller_copies_while_the_first_runs(tmp_path: Path) -> None:
    Quick.cores.clear()
    fast = executable(tmp_path, "quick")
    fast(sample())
    calls, ended = len(Quick.cores), threading.Event()
    with fast._programs._turn:  # somebody runs
        thread = threading.Thread(target=lambda: (fast(sample(1)), ended.set()))
        prepared = fast._programs.bucket(0)
        mine = prepared._take_buffers()  # on the first set of buffers
        thread.start()
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end and not (
            len(prepared._sets) == 2 and np.array_equal(prepared._sets[1].inputs["x"], sample(1))
        ):
            time.sleep(0.001)
        assert np.array_equal(prepared._sets[1].inputs["x"], sample(1)) and len(Quick.cores) == calls
        assert prepared._sets[1].arena is prepared._sets[0].arena
        assert not ended.is_set()
    thread.join(PATIENCE_S)
    prepared._give(mine)
    assert ended.is_set()
