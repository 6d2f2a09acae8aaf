"""Submitting, cancelling, closing and starting again in any order: every request ends as it should, and the figures add up."""

from __future__ import annotations

import tempfile
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from bricolage.errors import ExecutableClosed, QueueFull
from bricolage.plan.operating_point import OperatingPoint
from tests.runtime.made_plans import expected
from tests.runtime.serving.conftest import CORES, PATIENCE_S, executable, sample

pytestmark = pytest.mark.usefixtures("backends")


class Served(RuleBasedStateMachine):
    """An executable, and the requests that it was given."""

    requests: list[tuple[Future[Any], np.ndarray]]

    @initialize(
        streams=st.integers(1, min(2, CORES)),
        batch=st.sampled_from([1, 4]),
        delay=st.sampled_from([0.0, 3.0]),
        queue=st.integers(1, 6),
    )
    def start(self, streams: int, batch: int, delay: float, queue: int) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.point = OperatingPoint(streams, 1, batch, delay, queue)
        self.fast = executable(Path(self._folder.name), "quick", (1, 4)).serve(self.point)
        self.requests, self.closed, self.before = [], False, 0

    @rule(rows=st.integers(0, 5), seed=st.integers(0, 3), patient=st.booleans())
    def submit(self, rows: int, seed: int, patient: bool) -> None:
        x = sample(seed, rows)
        try:
            self.requests.append((self.fast.submit(x, block=patient, timeout=PATIENCE_S if patient else None), x))
            assert not self.closed
        except ExecutableClosed:
            assert self.closed
        except QueueFull:
            assert not patient and not self.closed

    @rule(number=st.integers(0, 50))
    def cancel(self, number: int) -> None:
        if self.requests:
            future, _ = self.requests[number % len(self.requests)]
            assert future.cancel() is future.cancelled()

    @rule(number=st.integers(0, 50))
    def fetch(self, number: int) -> None:
        if self.requests:
            self.check(*self.requests[number % len(self.requests)])

    @precondition(lambda self: not self.closed)
    @rule()
    def start_again(self) -> None:
        self.fast.serve(self.point)
        assert all(future.done() for future, _ in self.requests)
        self.before = len(self.requests)

    @rule(wait=st.booleans(), cancel=st.booleans())
    def close(self, wait: bool, cancel: bool) -> None:
        self.fast.close(wait=wait, cancel=cancel)
        self.closed = True
        assert not wait or all(future.done() for future, _ in self.requests)

    def check(self, future: Future[Any], x: np.ndarray) -> None:
        try:
            np.testing.assert_allclose(future.result(PATIENCE_S), expected(x), rtol=1e-5, atol=1e-6)
            assert not future.cancelled()
        except CancelledError:
            assert future.cancelled()

    @invariant()
    def counted(self) -> None:
        if hasattr(self, "requests"):
            told = self.fast.statistics()
            ended = told.done + told.failed + told.cancelled
            assert ended + told.waiting + told.running <= len(self.requests) - self.before
            assert told.waiting <= self.point.queue and told.running <= self.point.streams * self.point.batch

    def teardown(self) -> None:
        if not hasattr(self, "requests"):
            return
        self.fast.close()
        for future, x in self.requests:
            assert future.done()
            self.check(future, x)
        told = self.fast.statistics()
        assert (told.failed, told.waiting, told.running) == (0, 0, 0)
        assert told.done + told.cancelled == len(self.requests) - self.before
        self._folder.cleanup()


def test_any_order_of_submitting_cancelling_and_closing_answers_or_cancels_every_request() -> None:
    limits = settings(
        max_examples=10, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    run_state_machine_as_test(Served, settings=limits)  # type: ignore[no-untyped-call]
