"""How an error is answered: a status of HTTP, and the code of gRPC of the same meaning."""

from __future__ import annotations

import asyncio
import logging
from typing import TypeVar

from bricolage.errors import (
    AnswerTooLate,
    BricolageError,
    ExecutableClosed,
    ModelNotReady,
    QueueFull,
    RequestTooLarge,
    ServerDraining,
    SlowRequest,
    UnknownModel,
    UnknownPath,
    UsageError,
)

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
OK = 200
FAULT = 500
_STATUSES: tuple[tuple[tuple[type[BricolageError], ...], int], ...] = (
    ((UnknownModel, UnknownPath), 404),
    ((SlowRequest,), 408),
    ((RequestTooLarge,), 413),
    ((QueueFull, ExecutableClosed, ModelNotReady, ServerDraining), 503),
    ((AnswerTooLate,), 504),
    ((UsageError,), 400),
)
"""The first that fits."""
GRPC_CODES = {
    400: "INVALID_ARGUMENT",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    413: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


def status_of(error: BaseException) -> int:
    """The status of HTTP. What is no fault of the client, the load or the time is one of the server: it is logged."""
    for kinds, status in _STATUSES:
        if isinstance(error, kinds):
            return status
    _LOG.error("a request failed", exc_info=error)
    return FAULT


def error_text(error: BaseException) -> str:
    """What the client is told: of a fault of the server that nothing is known of, no more than that."""
    return str(error) if isinstance(error, BricolageError) else "the model could not be run on these inputs"


async def wait_for_outcome(task: asyncio.Future[T]) -> BaseException | None:
    """Waits until a task has ended. Where the caller is cancelled, the task is, too.

    Returns:
        What it raised, whatever that is; None where it has a result.
    """
    try:
        await asyncio.wait((task,))
    except asyncio.CancelledError:
        task.cancel()
        raise
    return asyncio.CancelledError() if task.cancelled() else task.exception()
