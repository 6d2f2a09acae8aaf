"""Recurrent layers (`LSTM`, `GRU`, `RNN`) in the graphs of bricolage alone.

Dynamo breaks a graph at each of them, since some backends cannot take them, and runs them in eager; a flag says otherwise, for
all backends at once (`torch._dynamo.config.allow_rnn`). So it is set while a frame is traced for bricolage, and else as the user
has it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from torch._dynamo import config
from torch._dynamo.callback import callback_handler

_LOG = logging.getLogger(__name__)
_before: list[bool] = []
"""The user's flag, while a frame is traced for us."""


def keep_recurrent_layers(compiler: Callable[..., object]) -> None:
    """From now on frames that are traced for this compiler keep recurrent layers in their graphs."""
    handler: Any = callback_handler
    run_start, run_end = handler.run_start_callbacks, handler.run_end_callbacks

    def begin(*given: object) -> None:
        if not _before and _traced_for() is compiler:
            _before.append(bool(config.allow_rnn))
            config.allow_rnn = True
        run_start(*given)

    def end(*given: object) -> None:
        if _before:
            config.allow_rnn = _before.pop()
        run_end(*given)

    # `torch.compiler.reset` forgets callbacks that are registered.
    handler.run_start_callbacks, handler.run_end_callbacks = begin, end


def _traced_for() -> object:
    """Whom the frame is compiled for that Dynamo has begun; None where this version of it does not tell."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        compiler: object = frame.f_locals.get("compiler_fn") if frame.f_code.co_name == "_compile" else None
        while (inner := getattr(compiler, "_torchdynamo_orig_backend", None)) is not None:
            compiler = inner
        if compiler is not None:
            return getattr(compiler, "compiler_fn", compiler)
        frame = frame.f_back
    _LOG.debug("Dynamo does not tell whom it compiles for: recurrent layers break graphs")
    return None
