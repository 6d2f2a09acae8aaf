"""A text for a reader in an event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Sequence

from bricolage.base.generation_options import GenerationOptions
from bricolage.language.language_model import LanguageModel, TextGeneration
from bricolage.language.sequence import SequenceEnd, SequenceEvent, TextPiece


class LoopEvents:
    """An `EventSink` for the loop that makes it.

    The loop is woken for the first event, for the end, and else once in `interval_s` where something has come: on few cores, each
    waking takes time from the threads that compute the next token.
    """

    def __init__(self, interval_s: float | None) -> None:
        """`interval_s`: None wakes it for the end alone."""
        self._loop = asyncio.get_running_loop()
        self._interval_s = interval_s
        self._events: deque[SequenceEvent] = deque()
        self._arrived = asyncio.Event()
        self._rests = interval_s is None

    def put(self, event: SequenceEvent, /) -> None:
        """See `EventSink`. A loop that is closed has no reader."""
        self._events.append(event)
        # `_wake` looks at events behind clearing `_rests`, so that no event is overlooked by both.
        if not self._rests or isinstance(event, SequenceEnd):
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._arrived.set)

    async def get(self) -> list[SequenceEvent]:
        """All that have come since the last call; at least one."""
        while not self._events or self._rests_before_end():
            self._arrived.clear()
            await self._arrived.wait()
        events = [self._events.popleft() for _ in range(len(self._events))]
        if self._interval_s and not self._rests:
            self._rests = True
            self._loop.call_later(self._interval_s, self._wake)
        return events

    def _rests_before_end(self) -> bool:
        return self._rests and not isinstance(self._events[-1], SequenceEnd)

    def _wake(self) -> None:
        self._rests = False
        if self._events:
            self._arrived.set()


class AsyncGeneration(TextGeneration):
    """Pieces of a text while it is written. `close` frees its place in the model."""

    def __init__(
        self, model: LanguageModel, tokens: Sequence[int], options: GenerationOptions, interval_s: float | None
    ) -> None:
        """`interval_s`: see `LoopEvents`. Raises what `LanguageModel.submit` does."""
        self._events = LoopEvents(interval_s)
        super().__init__(*model.submit(tokens, options, self._events))

    async def pieces(self) -> AsyncIterator[TextPiece]:
        """What the steps since the last piece have added.

        Raises:
            UndefinedLogits, and others: the model failed.
        """
        try:
            ended = False
            while not ended:
                events = await self._events.get()
                pieces = [event for event in events if isinstance(event, TextPiece)]
                if pieces:
                    yield self._join(pieces)
                ended = isinstance(events[-1], SequenceEnd) and self.take(events[-1]) is None
        finally:
            self.close()

    def _join(self, pieces: Sequence[TextPiece]) -> TextPiece:
        tokens = tuple(record for piece in pieces for record in piece.tokens)
        joined = TextPiece("".join(piece.text for piece in pieces), tokens)
        self.take(joined)
        return joined
