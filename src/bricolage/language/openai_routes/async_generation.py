"""A text for a reader in an event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from bricolage.base.generation_options import GenerationOptions
from bricolage.language.language_model import LanguageModel, TextGeneration
from bricolage.language.sequence import SequenceEvent, TextPiece


class LoopEvents:
    """An `EventSink` for the loop that makes it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[SequenceEvent] = asyncio.Queue()

    def put(self, event: SequenceEvent, /) -> None:
        """See `EventSink`. A loop that is closed has no reader."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._queue.put_nowait, event)

    async def get(self) -> SequenceEvent:
        """The next one."""
        return await self._queue.get()


class AsyncGeneration(TextGeneration):
    """Pieces of a text while it is written. `close` frees its place in the model."""

    def __init__(self, model: LanguageModel, tokens: Sequence[int], options: GenerationOptions) -> None:
        """Raises what `LanguageModel.submit` does."""
        self._events = LoopEvents()
        super().__init__(*model.submit(tokens, options, self._events))

    async def pieces(self) -> AsyncIterator[TextPiece]:
        """What each step has added.

        Raises:
            UndefinedLogits, and others: the model failed.
        """
        try:
            while (piece := self.take(await self._events.get())) is not None:
                yield piece
        finally:
            self.close()
