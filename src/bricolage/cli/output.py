"""Results on stdout, everything else on stderr; files whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from rich.console import Console, RenderableType

from bricolage.base import scratch
from bricolage.errors import NotWritable, plain

if TYPE_CHECKING:
    from bricolage.api.result_types import ModelValue


def console() -> Console:
    """For results. Colours only on a terminal and never with NO_COLOR."""
    return Console(file=sys.stdout, highlight=False, soft_wrap=False)


def logs() -> Console:
    """For everything that is not a result."""
    return Console(file=sys.stderr, highlight=False)


def show_result(renderable: RenderableType, file: IO[str] | None = None) -> None:
    """Prints a result on stdout, or on the stream that `stdout_kept` gives; without a terminal, lines end where their text
    ends."""
    target = console() if file is None else Console(file=file, highlight=False, soft_wrap=False)
    if target.is_terminal:
        target.print(renderable, markup=False)
    else:
        with target.capture() as captured:
            target.print(renderable, markup=False)
        print("\n".join(line.rstrip() for line in captured.get().splitlines()), file=file, flush=file is not None)


def show_parts(parts: Iterable[RenderableType]) -> None:
    """Prints the parts of a result on stdout: text as `show_text` does, and all else as `show_result` does."""
    for part in parts:
        if isinstance(part, str):
            show_text(part)
        else:
            show_result(part)


def show_text(text: str) -> None:
    """Prints lines on stdout. Those that are wider than the terminal, or than 80 columns without one, are broken between words. A
    longer word stays whole, so that a path can be copied."""
    width = console().width
    for line in text.split("\n"):
        indent = line[: len(line) - len(line.lstrip())]
        if len(line) > width:  # not Rich's wrapping, which cuts long words or wraps nothing
            line = textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        print(line)


def show_piece(text: str, file: IO[str]) -> None:
    """Writes a part of a text at once. On a terminal nothing of it is obeyed: a model may write escape sequences."""
    if file.isatty():
        text = "".join(letter if letter in "\n\t" else plain(letter) for letter in text)
    file.write(text)
    file.flush()


def show_json(value: Any) -> None:
    """Prints a result as JSON. Infinite and undefined numbers become null: JSON has none."""
    print(json.dumps(_finite(value), indent=1))


def command_line() -> str:
    """The command that is running, as a shell takes it."""
    return shlex.join(["bricolage", *sys.argv[1:]])


def note(text: str) -> None:
    """A line for people, on stderr."""
    print(text, file=sys.stderr)


@contextlib.contextmanager
def stdout_kept() -> Iterator[IO[str]]:
    """Whatever libraries print goes to stderr meanwhile, from Python and from native code alike. Gives the real stdout,
    for results that are shown before the work is over."""
    sys.stdout.flush()
    try:
        saved = os.dup(1)
        os.dup2(2, 1)
    except OSError:  # started without stdout or stderr
        saved = -1
    try:
        with contextlib.redirect_stdout(sys.stderr), contextlib.ExitStack() as stack:
            yield stack.enter_context(os.fdopen(os.dup(saved), "w", encoding="utf-8")) if saved >= 0 else sys.stderr
    finally:
        if saved >= 0:
            os.dup2(saved, 1)
            os.close(saved)


def check_writable(*paths: Path | None) -> None:
    """Makes sure, before long work, that its results can be written.

    Raises:
        NotWritable: the folder does not exist or cannot be written, or the path is a folder.
    """
    for path in paths:
        if path is None:
            continue
        if path.is_dir():
            raise NotWritable(path=path, reason="it is a folder")
        try:
            with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}."):
                pass
        except FileNotFoundError:
            raise NotWritable(path=path, reason=f"there is no folder '{path.parent}'") from None
        except OSError as error:
            raise NotWritable(path=path, reason=error.strerror or error) from error


def write_file(path: Path, fill: Callable[[IO[bytes]], object]) -> None:
    """Writes a file through a temporary one in the same folder: it is there whole or not at all.

    Raises:
        NotWritable: the disk is full or the folder is not writable.
    """
    check_writable(path)
    try:
        with scratch.write_whole(path) as partial, partial.open("wb") as file:
            fill(file)
    except OSError as error:
        raise NotWritable(path=path, reason=error.strerror or error) from error


def write_arrays(path: Path, values: Mapping[str, ModelValue]) -> None:
    """Writes a model's values as a `.npz` file, in the form of `flatten_values`.

    Raises:
        NotWritable: as `write_file`.
    """
    import numpy as np

    from bricolage.api.array_files import flatten_values

    arrays = flatten_values(values)
    write_file(path, lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]


def make_folder(path: Path) -> None:
    """Makes a folder, if it is not there.

    Raises:
        NotWritable: it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotWritable(path=path, reason=error.strerror or error) from error


def write_text(path: Path, text: str) -> None:
    """`write_file` for text."""
    write_file(path, lambda file: file.write(text.encode()))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value
