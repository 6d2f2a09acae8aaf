"""What surrounds every command: errors become one sentence, a next step and an exit code."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from typing import Any, NoReturn, ParamSpec

import typer

from bricolage import errors

P = ParamSpec("P")
INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


def guarded(command: Callable[P, int | None]) -> Callable[P, None]:
    """Runs a command and leaves with its exit code (None is 0). Expected errors are told in one sentence; any other
    exception is our own fault, and leaves a folder with what is needed to look into it."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        as_json = bool(kwargs.get("as_json"))
        try:
            code = command(*args, **kwargs) or errors.OK
        except errors.BricolageError as error:
            _leave(type(error).__name__, error.sentence, error.next_step, error.exit_code, as_json)
        except KeyboardInterrupt:
            step = "Every finished measurement is kept; the same command goes on from there"
            _leave("Interrupted", "interrupted", step, INTERRUPTED, as_json)
        except BrokenPipeError:
            _close_stdout()
            code = errors.OK
        except (typer.Exit, typer.Abort, SystemExit):
            raise
        except Exception as error:
            from bricolage.cli import crash

            folder = crash.record(error)
            what = f"bricolage itself failed ({type(error).__name__}: {crash.first_line(error)})"
            step = (
                f"What is needed to look into it is in {folder}"
                if folder
                else "Its trace could not be written anywhere"
            )
            _leave(type(error).__name__, what, step, errors.INTERNAL, as_json)
        raise typer.Exit(code)

    return run


def _leave(kind: str, sentence: str, step: str, code: int, as_json: bool) -> NoReturn:
    if as_json:
        failure: dict[str, Any] = {"type": kind, "message": sentence, "next_step": step, "exit_code": code}
        print(json.dumps({"error": failure}, indent=1))
    print(errors.plain(f"bricolage: {sentence}" + (f". {step}." if step else ".")), file=sys.stderr)
    raise typer.Exit(code)


def _close_stdout() -> None:
    """The reader of our output is gone: nothing more to say, and nothing to complain about at exit."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
