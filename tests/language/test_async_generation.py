"""Events of a text in an event loop: few wakings, nothing lost, nothing late."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from bricolage.language.openai_routes.async_generation import LoopEvents
from bricolage.language.sequence import SequenceEnd, SequenceEvent, TextPiece

END = SequenceEnd("stop")


def pieces(count: int) -> list[SequenceEvent]:
    return [TextPiece(f"{number} ", ()) for number in range(count)]


def read_all(interval_s: float | None, write: Callable[[LoopEvents], None]) -> list[list[SequenceEvent]]:
    """What a reader gets at each call while another thread writes."""

    async def read() -> list[list[SequenceEvent]]:
        events = LoopEvents(interval_s)
        writer = threading.Thread(target=write, args=(events,))
        writer.start()
        batches = [await events.get()]
        while batches[-1][-1] is not END:
            batches.append(await events.get())
        writer.join()
        return batches

    return asyncio.run(asyncio.wait_for(read(), 60))


@pytest.mark.parametrize("interval_s", [0.0, 0.02, None])
def test_all_events_come_in_order(interval_s: float | None) -> None:
    sent = [*pieces(300), END]

    def write(events: LoopEvents) -> None:
        for number, event in enumerate(sent):
            events.put(event)
            if number % 50 == 0:
                time.sleep(0.001)

    batches = read_all(interval_s, write)
    assert [event for batch in batches for event in batch] == sent and all(batches)
    assert interval_s is not None or len(batches) == 1


def test_the_first_and_the_end_come_at_once_and_others_together() -> None:
    interval_s, arrived = 5.0, threading.Event()

    async def read() -> list[float]:
        events, moments = LoopEvents(interval_s), [time.perf_counter()]

        def write() -> None:
            events.put(pieces(1)[0])
            arrived.wait(60)
            for event in [*pieces(20), END]:
                events.put(event)

        writer = threading.Thread(target=write)
        writer.start()
        assert len(await events.get()) == 1
        moments.append(time.perf_counter())
        arrived.set()
        assert len(await events.get()) == 21
        moments.append(time.perf_counter())
        writer.join()
        return moments

    begun, first, end = asyncio.run(read())
    assert first - begun < interval_s and end - first < interval_s


def test_what_comes_while_a_reader_rests_comes_without_another_event() -> None:
    async def read() -> None:
        events = LoopEvents(0.05)
        events.put(pieces(1)[0])
        await events.get()
        begun = time.perf_counter()
        for event in pieces(3):
            events.put(event)
        assert len(await asyncio.wait_for(events.get(), 60)) == 3
        assert time.perf_counter() - begun > 0.03

    asyncio.run(read())
