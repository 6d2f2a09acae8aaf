"""What the process does about signals is its owner's: code that takes one for a while gives it back."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def keep_handlers(*numbers: signal.Signals) -> Iterator[None]:
    """Whatever handlers the block installs for these signals, those of before are there again after it. Only the main thread can
    install any; in another thread, and for handlers that Python did not install, it does nothing."""
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                if handler is not None:
                    signal.signal(number, handler)
