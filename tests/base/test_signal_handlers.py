"""Handlers of signals are given back, whatever happens in between."""

from __future__ import annotations

import signal
import threading

import pytest

from bricolage.base.signal_handlers import keep_handlers


def test_the_handlers_of_before_are_back() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    with pytest.raises(ZeroDivisionError), keep_handlers(*numbers):
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        raise ZeroDivisionError
    assert [signal.getsignal(number) for number in numbers] == before


def test_another_thread_changes_nothing() -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            with keep_handlers(signal.SIGTERM):
                pass
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert not failures
