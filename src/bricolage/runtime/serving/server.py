"""Streams that take requests from a queue: a thread each, with programs of its own on cores of its own."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bricolage.base.undo import undo_on_failure
from bricolage.device import memory
from bricolage.errors import ExecutableClosed, NotEnoughMemory, QueueFull
from bricolage.plan.operating_point import OperatingPoint
from bricolage.runtime import signature
from bricolage.runtime.prepared import Part
from bricolage.runtime.programs import PlanSource, Programs
from bricolage.runtime.serving.batching import Batching
from bricolage.runtime.serving.request_statistics import ServingRecorder, ServingStatistics
from bricolage.runtime.serving.requests import Request, Waiting
from bricolage.work.values import ModelValue

_LOG = logging.getLogger(__name__)
_PATIENCE_S = 60.0
"""For a stream to end with the interpreter: one run takes less, unless it hangs."""
_clock = time.perf_counter

Make = Callable[[int], Programs]
"""The programs of a stream, by its number."""


class Server:
    """Streams and their queue. It ends with `close`, or with `finish` when no more requests come; its threads keep it until then.

    Raises:
        NotBatchable: requests are to be put together, and cannot be.
        NotEnoughMemory: the streams would take more than is free.
        Refused, BackendFailed and others: see `compile_program`.
    """

    def __init__(self, source: PlanSource, point: OperatingPoint, make: Make) -> None:
        """Returns when all streams are ready."""
        self.source, self.point = source, point
        self._batching = Batching.of(source.plan, point.batch) if point.batch > 1 else None
        self._waiting = Waiting(point.batch, point.max_delay_ms / 1e3)
        self._recorder = ServingRecorder()
        self._lock = threading.RLock()  # a finaliser may end it in the middle of anything that this thread does
        self._work, self._room = threading.Condition(self._lock), threading.Condition(self._lock)
        self._process = os.getpid()
        self._ends = False
        self._failure: BaseException | None = None
        self._leaving = False
        self._threads: list[threading.Thread] = []
        self._alive = point.streams
        for number in range(point.streams):
            self._start(number, make)
        atexit.register(self._leave)  # now that frameworks are loaded, so that theirs is called after it

    def _start(self, number: int, make: Make) -> None:
        """One stream; when this returns it is ready."""
        ready = threading.Event()
        before = memory.resident_bytes(os.getpid(), children=False)
        arguments = (number, make, ready)
        thread = threading.Thread(target=self._stream, args=arguments, name=f"bricolage-stream-{number}", daemon=True)
        self._threads.append(thread)
        thread.start()
        with undo_on_failure(self.finish):
            ready.wait()
            if self._failure is not None:
                raise self._failure
            if number == 0 < self.point.streams - 1:
                self._check_memory(memory.resident_bytes(os.getpid(), children=False) - before)

    def _check_memory(self, one: int) -> None:
        """The other streams take at most as much each as the first one took: backends that can share weights among them."""
        # What others of this process gave back meanwhile may be more than the stream took.
        wanted, present = max(0, one) * (self.point.streams - 1), memory.available_bytes()
        if wanted > present:
            raise NotEnoughMemory(wanted=f"{wanted / 1e9:.3g} GB", present=f"{present / 1e9:.3g} GB")

    # --- requests ---------------------------------------------------------------------------------------------------

    def submit(
        self,
        arrays: Mapping[str, ModelValue],
        deliver: Callable[[dict[str, ModelValue]], ModelValue],
        block: bool = True,
        timeout_s: float | None = None,
    ) -> Request:
        """Puts a request at the end of the queue. `arrays` are checked inputs, which are copied; `deliver` makes the answer of the
        outputs by name, in the stream.

        Raises:
            QueueFull: there is no room, or was none in time.
            ExecutableClosed: it takes no more requests.
        """
        rows, key = 1, None
        plan = self.source.plan
        if self._batching is not None:
            rows, key = self._batching.rows_and_key(signature.bound_dimensions(plan.inputs, arrays))
            if signature.overridden(plan.defaults, arrays):
                key = None  # others have the defaults
        kept = {name: np.array(value) if isinstance(value, np.ndarray) else value for name, value in arrays.items()}
        until = None if timeout_s is None else _clock() + timeout_s
        with self._lock:
            while not self._ends and len(self._waiting) >= self.point.queue:
                left = None if until is None else until - _clock()
                # A stream that waited for room, in a callback of one of its requests, would wait for itself.
                if not block or threading.current_thread() in self._threads or (left is not None and left <= 0):
                    raise QueueFull(waiting=len(self._waiting))
                self._room.wait(left)
            if self._ends:
                raise ExecutableClosed(model=self.source.plan.model)
            request = Request(kept, deliver, rows, key, _clock(), self._discard)
            self._waiting.add(request)
            self._work.notify()
        return request

    def _discard(self, request: Request) -> None:
        """One was cancelled: it leaves the queue, unless a stream has just taken it out."""
        with self._lock:
            if self._waiting.remove(request):
                self._recorder.cancelled += 1
                self._room.notify()
                self._notify_cancelled(request)

    @staticmethod
    def _notify_cancelled(request: Request) -> None:
        """Tells those who wait for a request that was cancelled; once."""
        request.set_running_or_notify_cancel()
        request.release()

    def statistics(self) -> ServingStatistics:
        """What became of the requests so far."""
        with self._lock:
            return self._recorder.told(len(self._waiting))

    # --- the end ----------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Takes no more requests; the streams end when those that wait are done. Does not wait for that. Nothing in a forked
        process, where there are no streams and a lost thread may hold the lock for ever."""
        if self._process != os.getpid():
            return
        with self._lock:
            self._ends = True
            self._work.notify_all()
            self._room.notify_all()

    def close(self, *, wait: bool = True, cancel: bool = False) -> None:
        """As `finish`; with `cancel`, those that have not begun are cancelled; with `wait`, returns when the streams have ended."""
        with self._lock:
            dropped = self._waiting.all() if cancel else []
            if cancel:
                self._waiting.clear()
                self._recorder.cancelled += len(dropped)
        self.finish()
        for request in dropped:
            request.cancel()
            self._notify_cancelled(request)
        if wait:
            for thread in self._threads:
                if thread is not threading.current_thread():
                    thread.join()

    def _leave(self) -> None:
        """The interpreter ends: running requests are waited for, since threads in a backend do not survive its end."""
        if self._process != os.getpid():
            return
        self._leaving = True
        self.close(wait=False, cancel=True)
        for thread in self._threads:
            thread.join(_PATIENCE_S)

    # --- streams ----------------------------------------------------------------------------------------------------

    def _stream(self, number: int, make: Make, ready: threading.Event) -> None:
        """A thread's life."""
        try:
            programs = make(number)
            if programs.device.is_group and hasattr(os, "sched_setaffinity"):
                os.sched_setaffinity(0, programs.device.cores)
            self._prepare(programs, check=number == 0)
        except BaseException as error:
            self._failure = error
            return
        finally:
            ready.set()
        while taken := self._next():
            self._run(programs, taken)
        with self._lock:
            self._alive -= 1
            if not self._alive and not self._leaving:
                atexit.unregister(self._leave)

    def _prepare(self, programs: Programs, *, check: bool) -> None:
        """Compiles what the first requests will want."""
        programs.bucket(0)
        if self._batching is not None:
            if check:
                self._batching.check(programs)
            sizes = self.source.plan.buckets[0].program.sizes
            _, key = self._batching.rows_and_key({**sizes, self._batching.dimension: 1})
            for size in self._batching.programs(key):
                programs.of_sizes({**sizes, self._batching.dimension: size})

    def _next(self) -> list[Request]:
        """Those that this stream runs next; none at the end."""
        with self._lock:
            while True:
                taken = self._waiting.take(_clock(), at_once=self._ends)
                begun = [request for request in taken if request.set_running_or_notify_cancel()]
                self._recorder.cancelled += len(taken) - len(begun)
                if taken:
                    self._room.notify(len(taken))
                if len(self._waiting):
                    self._work.notify()  # the woken thread finds out until when it has to wait
                if begun:
                    self._recorder.running += len(begun)
                    return begun
                if not taken:
                    if self._ends:
                        return []
                    left = self._waiting.deadline_s() - _clock()
                    self._work.wait(max(left, 0) if left < threading.TIMEOUT_MAX else None)

    def _run(self, programs: Programs, requests: Sequence[Request]) -> None:
        """Runs requests together. Where that fails they run one by one, so that only the request whose input is the reason
        fails."""
        begun_s = _clock()
        try:
            results = self._results(programs, requests)
        except BaseException as error:
            if len(requests) > 1:
                for request in requests:
                    self._run(programs, [request])
            else:
                self._answer(requests[0], begun_s, error=error)
            return
        for request, outputs in zip(requests, results, strict=True):
            try:
                self._answer(request, begun_s, request.deliver(outputs))
            except BaseException as error:
                self._answer(request, begun_s, error=error)

    def _results(self, programs: Programs, requests: Sequence[Request]) -> list[dict[str, ModelValue]]:
        first, rows = requests[0], sum(request.rows for request in requests)
        size = rows
        if self._batching is not None and first.key is not None:
            size = self._batching.size(rows, first.key)
        if size == rows and len(requests) == 1:
            results = [programs.select(first.arrays).run(first.arrays)]
        else:
            assert self._batching is not None
            sizes = {
                **signature.bound_dimensions(self.source.plan.inputs, first.arrays),
                self._batching.dimension: size,
            }
            results = programs.of_sizes(sizes).run_together(
                [Part(request.arrays, request.rows) for request in requests]
            )
        with self._lock:
            self._recorder.ran(rows, size)
        return results

    def _answer(
        self, request: Request, begun_s: float, result: ModelValue = None, error: BaseException | None = None
    ) -> None:
        with self._lock:
            self._recorder.ended(request.submitted_s, begun_s, _clock(), failed=error is not None)
        request.release()
        try:
            if error is None:
                request.set_result(result)
            else:
                request.set_exception(error)
        except BaseException:
            _LOG.exception("a callback of a request failed")
