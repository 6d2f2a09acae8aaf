"""Who runs next, against a plain list; and what a request is as a future."""

from __future__ import annotations

import asyncio
import math
import os
from concurrent.futures import wait

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bricolage.errors import ForkedProcess
from bricolage.runtime.serving.requests import Request, Waiting

_BATCH, _DELAY_S = 4, 1.0


def expected(queue: list[Request], now_s: float, at_once: bool) -> list[Request]:
    """By the words of the documentation: the oldest who alone, with enough company, or after its delay may run; and behind it those
    of its key, in order, as long as they fit."""
    for one in queue:
        if one.key is None:
            return [one]
        alike = [other for other in queue if other.key == one.key]
        if alike[0] is not one:
            continue
        if at_once or sum(other.rows for other in alike) >= _BATCH or now_s >= one.submitted_s + _DELAY_S:
            taken = alike[:1]
            for other in alike[1:]:
                if sum(o.rows for o in taken) + other.rows > _BATCH:
                    break
                taken.append(other)
            return taken
    return []


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from([None, "a", "b"]), st.integers(1, 3)),
        st.tuples(st.just("remove"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("take"), st.booleans(), st.floats(0, 1.5)),
    ),
    max_size=40,
)


@given(STEPS)
def test_who_runs_next_is_as_in_a_plain_list(steps: list[tuple[str, object, float]]) -> None:
    waiting, queue, gone, now_s = Waiting(_BATCH, _DELAY_S), list[Request](), list[Request](), 0.0
    for what, one, amount in steps:
        if what == "add":
            queue.append(Request({}, rows=int(amount), key=one, submitted_s=now_s))  # type: ignore[arg-type]
            waiting.add(queue[-1])
        elif what == "remove":
            everyone = [*queue, *gone]
            if everyone:
                chosen = everyone[int(one) % len(everyone)]  # type: ignore[call-overload]
                assert waiting.remove(chosen) is (chosen in queue)
                if chosen in queue:
                    gone.append(chosen)
                    queue.remove(chosen)
        else:
            now_s += amount
            wanted = expected(queue, now_s, bool(one))
            assert waiting.take(now_s, at_once=bool(one)) == wanted
            for request in wanted:
                queue.remove(request)
                gone.append(request)
        assert len(waiting) == len(queue) and set(waiting.all()) == set(queue)
        delays = [request.submitted_s + _DELAY_S for request in queue if request.key is not None]
        assert waiting.deadline_s() == min(delays, default=math.inf)
    waiting.clear()
    assert len(waiting) == 0 and waiting.take(math.inf, at_once=True) == []


def test_a_request_is_a_future_for_asyncio_too() -> None:
    request = Request({})

    async def awaited() -> int:
        future = asyncio.wrap_future(request)
        request.set_running_or_notify_cancel()
        request.set_result(7)
        return int(await future)

    assert asyncio.run(awaited()) == 7


def test_a_request_of_the_parent_says_so_unless_it_was_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    request, answered, cancelled = Request({}), Request({}), Request({})
    answered.set_result(7)
    cancelled.cancel()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    for ask in (request.result, request.exception):
        with pytest.raises(ForkedProcess, match="a request of the parent process"):
            ask()
    assert answered.result() == 7 and cancelled.cancelled()


def test_who_cancels_is_heard_once_it_succeeds() -> None:
    heard: list[Request] = []
    request, running = (Request({}, on_cancel=heard.append) for _ in range(2))
    running.set_running_or_notify_cancel()
    assert request.cancel() and not running.cancel() and heard == [request]
    request.set_running_or_notify_cancel()
    assert wait([request], timeout=10).done == {request}
