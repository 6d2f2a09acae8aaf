"""Bytes of tokens as text that can be shown: whole characters, and nothing of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextStream:
    """Gives text as soon as it is certain. It holds back bytes that are no whole character yet, and text that may begin a stop
    string."""

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._stops = tuple(stops)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.stopped = False
        """Whether a stop string has come. What follows it is lost."""

    def add(self, data: bytes) -> str:
        """The text that is certain with these bytes of a token."""
        if self.stopped:
            return ""
        self._held += self._decoder.decode(data)
        places = [place for place in (self._held.find(stop) for stop in self._stops) if place >= 0]
        if places:
            self.stopped = True
            text, self._held = self._held[: min(places)], ""
            return text
        kept = self._beginning()
        text, self._held = self._held[: len(self._held) - kept], self._held[len(self._held) - kept :]
        return text

    def _beginning(self) -> int:
        """Letters at the end that may begin a stop string: the most of any."""
        return max(
            (
                size
                for stop in self._stops
                for size in range(1, min(len(stop), len(self._held) + 1))
                if self._held.endswith(stop[:size])
            ),
            default=0,
        )

    def end(self) -> str:
        """What was held back, now that nothing follows. Bytes of a character that is not whole are left out."""
        text, self._held = self._held, ""
        self._decoder.reset()
        return text
