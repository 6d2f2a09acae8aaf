"""`OperatingPoint`: how an executable serves requests: in how many streams, on how many cores each, in which batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, get_type_hints

from bricolage.base.codec import Within
from bricolage.errors import BadOption

MOST_STREAMS = 1024
MOST_ROWS = 1 << 20
"""Of a batch."""
MOST_WAITING = 1_000_000
"""Requests in the queue."""
LONGEST_DELAY_MS = 60_000.0


@dataclass(frozen=True)
class OperatingPoint:
    """How requests are served. A stream is an independent lane of execution: a program of its own on cores of its own, which
    takes one batch of requests at a time.

    Raises:
        BadOption: a value is out of range.
    """

    streams: Annotated[int, Within(1, MOST_STREAMS)] = 1
    threads: Annotated[int, Within(1, MOST_STREAMS)] = 1
    """Of each stream, with a core for each."""
    batch: Annotated[int, Within(1, MOST_ROWS)] = 1
    """Rows (along the model's batch dimension) that are put together at most; 1: every request runs by itself."""
    max_delay_ms: Annotated[float, Within(0.0, LONGEST_DELAY_MS)] = 0.0
    """How long a request waits for company at most while a batch is not full, from when it was submitted."""
    queue: Annotated[int, Within(1, MOST_WAITING)] = 1024
    """Requests that may wait; `submit` blocks, or refuses, when this number waits."""

    def __post_init__(self) -> None:
        for name, (kind, limits) in _fields().items():
            value, kinds = getattr(self, name), (int, float) if kind is float else (int,)
            if isinstance(value, bool) or not isinstance(value, kinds) or limits.problem(value) is not None:
                raise BadOption(
                    option=name, value=value, advice=f"Give a number from {limits.low:g} to {limits.high:g}"
                )

    @property
    def cores(self) -> int:
        """That all streams have together."""
        return self.streams * self.threads

    def groups(self, cores: Sequence[int], most: int) -> tuple[tuple[int, ...], ...]:
        """The cores of each stream, disjoint, out of these. `most` is how many of them may be used at a time, less than there are
        where a quota says so.

        Raises:
            BadOption: the streams would have more cores than there are.
        """
        if self.cores > min(len(cores), most):
            advice = f"Streams have cores of their own, and this process may use {min(len(cores), most)}"
            raise BadOption(option="streams x threads", value=f"{self.streams} x {self.threads}", advice=advice)
        step = self.threads
        return tuple(tuple(cores[first * step : (first + 1) * step]) for first in range(self.streams))

    @staticmethod
    def parse(text: str) -> OperatingPoint:
        """`"streams=2,batch=8,max_delay_ms=2.5"`: the fields by name; those that are left out have their defaults.

        Raises:
            BadOption: not such a text, or a value is out of range.
        """
        kinds = {name: kind for name, (kind, _) in _fields().items()}
        try:
            pairs = [part.partition("=")[::2] for part in text.split(",")]
            given = {name: kinds[name](value) for name, value in pairs}
        except (KeyError, ValueError):
            advice = f"Write for example streams=2,threads=1; there are {', '.join(kinds)}"
            raise BadOption(option="--operating-point", value=text, advice=advice) from None
        return OperatingPoint(**given)  # type: ignore[arg-type]  # the delay alone is no int

    @property
    def layout(self) -> str:
        """ "2 streams of 1 thread"."""
        return f"{format_count(self.streams, 'stream')} of {format_count(self.threads, 'thread')}"

    def __str__(self) -> str:
        if self.batch == 1:
            return self.layout
        return f"{self.layout}, up to {self.batch} rows together, waiting up to {self.max_delay_ms:g} ms"


@cache
def _fields() -> dict[str, tuple[type[int] | type[float], Within]]:
    """Type and limits of each field, as they are annotated."""
    hints = get_type_hints(OperatingPoint, include_extras=True)
    return {name: (hint.__origin__, hint.__metadata__[0]) for name, hint in hints.items()}


def format_count(count: int, what: str) -> str:
    """ "1 stream", "2 streams"."""
    return f"{count} {what}{'s' * (count != 1)}"
