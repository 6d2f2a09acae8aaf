"""Requests, and who of those that wait is run next, and with whom."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from itertools import count

from bricolage.errors import ForkedProcess
from bricolage.work.values import ModelValue

_numbers = count()


class Request(Future[ModelValue]):
    """What `submit` returns: the answer when it is there. In a process that was forked while it was not, asking for it raises
    `ForkedProcess`."""

    def __init__(
        self,
        arrays: dict[str, ModelValue],
        deliver: Callable[[dict[str, ModelValue]], ModelValue] = lambda results: results,
        rows: int = 1,
        key: Hashable = None,
        submitted_s: float = 0.0,
        on_cancel: Callable[[Request], None] = lambda _: None,
    ) -> None:
        """`arrays` are the inputs by name; `deliver` makes the answer of the outputs by name. Requests with the same `key` may run
        together, `rows` of each; with None it runs by itself. `submitted_s`: of the clock by which others are told as well."""
        super().__init__()
        self.arrays, self.deliver, self._on_cancel = arrays, deliver, on_cancel
        self.rows, self.key, self.submitted_s = rows, key, submitted_s
        self.number = next(_numbers)
        self._process, self._answered = os.getpid(), False  # read without a lock: a fork may leave one held

    def cancel(self) -> bool:
        """See `Future.cancel`: one that has not begun leaves the queue at once; False where it runs or is done."""
        if not super().cancel():
            return False
        self._answered = True
        self._on_cancel(self)
        return True

    def set_result(self, result: ModelValue) -> None:
        """See `Future.set_result`."""
        try:
            super().set_result(result)  # and its callbacks
        finally:
            self._answered = True

    def set_exception(self, exception: BaseException | None) -> None:
        """See `Future.set_exception`."""
        try:
            super().set_exception(exception)
        finally:
            self._answered = True

    def release(self) -> None:
        """When it is done: a reference that is kept for the answer does not keep the inputs and the stream."""
        self.arrays, self.deliver, self._on_cancel = {}, lambda results: results, lambda _: None

    def result(self, timeout: float | None = None) -> ModelValue:
        """See `Future.result`.

        Raises:
            ForkedProcess: it belongs to the process that this one was forked from.
        """
        self._check_process()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """See `Future.exception`.

        Raises:
            ForkedProcess: it belongs to the process that this one was forked from.
        """
        self._check_process()
        return super().exception(timeout)

    def _check_process(self) -> None:
        if not self._answered and self._process != os.getpid():
            raise ForkedProcess(backend="a request of the parent process")


class Waiting:
    """Requests in the order in which they came. Those of one key go together, up to a number of rows, once there are enough or the
    first of them has waited long enough. Not synchronised."""

    def __init__(self, batch: int, max_delay_s: float) -> None:
        """See `OperatingPoint`."""
        self._batch, self._max_delay_s = batch, max_delay_s
        self._alone: deque[Request] = deque()
        self._groups: dict[Hashable, deque[Request]] = {}
        self._rows: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self._alone) + sum(map(len, self._groups.values()))

    def add(self, request: Request) -> None:
        """At the end."""
        if request.key is None:
            self._alone.append(request)
            return
        self._groups.setdefault(request.key, deque()).append(request)
        self._rows[request.key] = self._rows.get(request.key, 0) + request.rows

    def remove(self, request: Request) -> bool:
        """Takes one out; False where it is not there any more."""
        group = self._alone if request.key is None else self._groups.get(request.key, ())
        if request not in group:
            return False
        assert isinstance(group, deque)
        group.remove(request)
        self._leave_group(request)
        return True

    def take(self, now_s: float, *, at_once: bool = False) -> list[Request]:
        """Those that are to be run together next, taken out; none where all had better wait. With `at_once` no request waits for
        company."""
        heads: list[tuple[int, Hashable]] = [(self._alone[0].number, None)] if self._alone else []
        heads += [
            (group[0].number, key)
            for key, group in self._groups.items()
            if at_once or self._rows[key] >= self._batch or now_s >= group[0].submitted_s + self._max_delay_s
        ]
        if not heads:
            return []
        _, key = min(heads, key=lambda head: head[0])
        if key is None:
            return [self._alone.popleft()]
        group, taken, rows = self._groups[key], list[Request](), 0
        while group and (not taken or rows + group[0].rows <= self._batch):
            taken.append(group.popleft())
            rows += taken[-1].rows
            self._leave_group(taken[-1])
        return taken

    def deadline_s(self) -> float:
        """When a request has waited long enough; infinite where none waits for others."""
        return min((group[0].submitted_s + self._max_delay_s for group in self._groups.values()), default=math.inf)

    def all(self) -> list[Request]:
        """Everyone, in no order."""
        return [*self._alone, *(request for group in self._groups.values() for request in group)]

    def clear(self) -> None:
        """No request waits any more."""
        self._alone.clear()
        self._groups.clear()
        self._rows.clear()

    def _leave_group(self, request: Request) -> None:
        if request.key is None:
            return
        self._rows[request.key] -= request.rows
        if not self._groups[request.key]:
            del self._groups[request.key], self._rows[request.key]
