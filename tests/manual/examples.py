"""Examples of the manual: blocks of a page run in order in one folder, and what they print is filled in."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.manual.pages import ROOT, Block, read_blocks

LONGEST_OUTPUT = 28
"""Lines of an output that a page shows; of a longer one the first and the last."""
SECONDS = 180.0
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Step:
    """Commands of one block, and what they printed."""

    block: Block
    output: str


class ExampleFailed(AssertionError):
    """A command of an example ended with another code than 0."""


def write_example_files(folder: Path) -> None:
    """What the examples find in their folder: the files of `examples.digits`, and the repository's examples."""
    subprocess.run([sys.executable, "-m", "examples.digits", str(folder)], cwd=ROOT, check=True, capture_output=True)
    (folder / "examples").symlink_to(ROOT / "examples")


def split_commands(text: str) -> list[str]:
    """The commands of a console block; a line that ends with a backslash goes on in the next."""
    commands: list[str] = []
    going_on = False
    for line in text.splitlines():
        if line.startswith("$ "):
            commands.append(line[2:])
        elif going_on:
            commands[-1] += "\n" + line
        going_on = (line.startswith("$ ") or going_on) and line.endswith("\\")
    return commands


def run_blocks(
    blocks: Sequence[Block], folder: Path, cache: Path, variables: Mapping[str, str] | None = None
) -> Iterator[Step]:
    """Runs the console and Python blocks in their order, and writes those that are files. `cache` is the folder of measurements,
    `variables` are of the environment of the commands.

    Raises:
        ExampleFailed: a command failed; the message has what it printed.
    """
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "80",
        "NO_COLOR": "1",
        "PYTHONWARNINGS": "ignore",
        "PYTHONPATH": str(folder),
        "BRICOLAGE_CACHE": str(cache),
        **(variables or {}),
    }
    for block in blocks:
        if block.title is not None:
            (folder / block.title).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.title).write_text(block.text, encoding="utf-8")
            continue
        commands: list[list[str]]
        if block.language == "console":
            commands = [["bash", "-c", command] for command in split_commands(block.text)]
        elif block.language == "python":
            commands = [[sys.executable, "-c", block.text]]
        else:
            continue
        shown = []
        for command in commands:
            ran = subprocess.run(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                timeout=SECONDS,
                check=False,
            )
            if ran.returncode != 0:
                raise ExampleFailed(f"{command[-1]}\nended with {ran.returncode}\n{ran.stdout}{ran.stderr}")
            if block.language == "console":
                shown += [f"$ {command[-1]}", *_shorten(_ESCAPE.sub("", ran.stdout))]
        yield Step(block, "\n".join(shown))


def _shorten(output: str) -> list[str]:
    """Lines of an output, without blank ones at its ends."""
    lines = [line.rstrip() for line in output.strip("\n").splitlines()]
    if len(lines) <= LONGEST_OUTPUT:
        return lines
    return [*lines[: LONGEST_OUTPUT - 6], "[...]", *lines[-5:]]


def fill_page(page: Path, folder: Path, cache: Path) -> None:
    """Writes what the blocks of a page print into the page, where the page shows an output."""
    text = page.read_text(encoding="utf-8")
    for step in run_blocks(read_blocks(page), folder, cache):
        if step.block.language == "console" and not _shows_nothing(step.block.text):
            text = text.replace(f"```console\n{step.block.text}```", f"```console\n{step.output}\n```", 1)
    page.write_text(text, encoding="utf-8")


def _shows_nothing(text: str) -> bool:
    commands = "\n".join(f"$ {command}" for command in split_commands(text))
    return text.strip() == commands.strip()
