"""What surrounds every command: errors and signals become one sentence, a next step and an exit code."""

from __future__ import annotations

import contextlib
import functools
import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn, ParamSpec

import typer

from bricolage import errors

P = ParamSpec("P")
INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""
_KEPT = "Every finished measurement is kept; the same command goes on from there"
_ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end a command: from a supervisor (docker stop, a batch system, `timeout`), or because the terminal is gone."""


class _Ended(BaseException):
    """A signal asks for an end now: unlike Ctrl-C, whose first one asks for the best plan so far, since the sender of this
    one waits for some seconds only. No stage catches it, so every clean-up runs."""

    def __init__(self, number: int) -> None:
        self.number = number


def guard_command(command: Callable[P, int | None]) -> Callable[P, None]:
    """Runs a command and leaves with its exit code (None is 0). Expected errors are told in one sentence; any other
    exception is our own fault, and leaves a folder with what is needed to look into it."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        as_json = bool(kwargs.get("as_json"))
        try:
            with _ending_on_signals():
                code = command(*args, **kwargs) or errors.OK
        except errors.UnboundDimension as error:
            step, pasted = error.on_command_line(sys.argv[1:])
            _leave(type(error).__name__, error.sentence, step, error.exit_code, as_json, pasted)
        except errors.BricolageError as error:
            _leave(type(error).__name__, error.sentence, error.next_step, error.exit_code, as_json)
        except KeyboardInterrupt:
            _leave("Interrupted", "interrupted", _KEPT, INTERRUPTED, as_json)
        except _Ended as ended:
            name = signal.Signals(ended.number).name
            _leave("Ended", f"ended by {name}", _KEPT, 128 + ended.number, as_json)
        except BrokenPipeError:
            _close_stdout()
            code = errors.OK
        except (typer.Exit, typer.Abort, SystemExit):
            raise
        except Exception as error:
            from bricolage.cli import crash

            folder = crash.record(error)
            what = f"bricolage itself failed ({type(error).__name__}: {crash.short_line(error)})"
            step = (
                f"What is needed to look into it is in {folder}"
                if folder
                else "Its trace could not be written anywhere"
            )
            _leave(type(error).__name__, what, step, errors.INTERNAL, as_json)
        raise typer.Exit(code)

    return run


@contextlib.contextmanager
def _ending_on_signals() -> Iterator[None]:
    """Turns signals that would end the process at once into an exception. One that is ignored (`nohup`) stays so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        del frame
        raise _Ended(number)

    before = {number: signal.getsignal(number) for number in _ENDING}
    ours = [number for number, handler in before.items() if handler is signal.SIG_DFL]
    try:
        for number in ours:
            signal.signal(number, end)
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])


def _leave(kind: str, sentence: str, step: str, code: int, as_json: bool, command: str = "") -> NoReturn:
    """`command`: what to paste, on a line of its own."""
    if as_json:
        failure: dict[str, object] = {"type": kind, "message": sentence, "next_step": step, "exit_code": code}
        print(json.dumps({"error": failure | ({"command": command} if command else {})}, indent=1))
    ending = ":" if command else "."
    print(errors.plain(f"bricolage: {sentence}" + (f". {step}" if step else "") + ending), file=sys.stderr)
    if command:
        print(errors.plain(f"  {command}"), file=sys.stderr)
    raise typer.Exit(code)


def _close_stdout() -> None:
    """The reader of our output is gone: nothing more to say, and nothing to complain about at exit."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
