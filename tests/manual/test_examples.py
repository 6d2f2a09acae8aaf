"""Every example of the manual runs: the blocks of a page in order in one folder, each command's example in one of its own.

Those that take long run with the slow tests. Every command line is read by the parser each time.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from filelock import FileLock

from bricolage.verify.reference import LIBRARY_VARIABLE
from tests import brief
from tests.manual.commands import CommandText, example_block, list_commands, read_texts
from tests.manual.examples import ExampleFailed, run_blocks, split_commands, write_example_files
from tests.manual.pages import COMMANDS, Block, list_pages, read_blocks

PAGES = [
    page
    for page in list_pages()
    if page.parent != COMMANDS and any(block.language in ("console", "python") for block in read_blocks(page))
]
RUNNING = [text for text in read_texts().values() if text.runs]
QUICK_PAGES = frozenset(["backends", "cluster-replay", "index", "report", "run", "train-tune"])
"""What a newcomer reads first, and a page of each other kind."""
LONG_COMMANDS = frozenset(
    [
        "bisect",
        "export",
        "pack",
        "tune",
        *(f"train {verb}" for verb in ("fuse", "plan", "predict", "replicas", "report", "run")),
    ]
)
"""Examples of more than ten seconds. Tests in `tests/cli` and `tests/api` run these commands on smaller inputs."""


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A folder of all processes of one run of the tests: the files are made once, and what one example has measured others know."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "manual"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def example_files(shared: Path) -> Path:
    with FileLock(shared / "lock"):
        if not (shared / "files").exists():
            (shared / "made").mkdir()
            write_example_files(shared / "made")
            (shared / "made").rename(shared / "files")
    return shared / "files"


@pytest.fixture
def folder(example_files: Path, tmp_path: Path) -> Path:
    target = tmp_path / "work"
    shutil.copytree(example_files, target, symlinks=True)
    return target


@pytest.fixture(scope="session")
def variables(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Of the environment of the commands: `bricolage` decides briefly, by a reference that imports no torch. So the examples that
    begin by the same decision make it once."""
    folder = tmp_path_factory.mktemp("bin")
    command = folder / "bricolage"
    command.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, "-P", brief.__file__])} "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    path = os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])
    return {"PATH": path, LIBRARY_VARIABLE: "onnx"}


def split_words(line: str) -> Iterator[list[str]]:
    """The words of each command of a line of a shell: quotes hold, and what a redirection names is no word."""
    lexer = shlex.shlex(line.replace("\\\n", " "), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    redirected = False
    for token in lexer:
        if not set(token) <= set("();<>|&"):
            if not redirected:
                words.append(token)
        elif set(token) <= set("<>"):
            redirected = True
        else:
            yield words
            words, redirected = [], False
    yield words


def list_command_lines() -> Iterator[tuple[str, list[str]]]:
    """Each `bricolage` command line that the manual shows: where, and its words."""
    blocks = [(page.name, block) for page in list_pages() for block in read_blocks(page) if block.title is None]
    for name, block in blocks:
        if block.language == "console":
            commands = split_commands(block.text)
        else:
            commands = block.text.replace("\\\n", " ").splitlines() if block.language == "sh" else []
        for command in commands:
            yield from ((name, words[1:]) for words in split_words(command) if words[:1] == ["bricolage"])


def test_words_of_a_command_line() -> None:
    line = 'bricolage a --b "c.py:d>=0.9; e" \\\n -f > out.txt && bricolage g # why'
    assert list(split_words(line)) == [["bricolage", "a", "--b", "c.py:d>=0.9; e", "-f"], ["bricolage", "g"]]


def test_what_is_left_to_the_slow_tests_exists() -> None:
    assert {page.stem for page in PAGES} >= QUICK_PAGES and {text.name for text in RUNNING} >= LONG_COMMANDS


def test_every_command_line_is_read_by_the_parser() -> None:
    commands, lines = list_commands(), list(list_command_lines())
    assert len(lines) > 120
    for place, words in lines:
        if words[-1:] == ["--help"] or words == ["--version"]:
            continue
        length = next((n for n in (3, 2, 1) if " ".join(words[:n]) in commands), 0)
        assert length, f"{place}: there is no command '{' '.join(words)}'"
        name = " ".join(words[:length])
        try:
            commands[name].make_context(name, words[length:])
        except Exception as error:  # Typer's usage errors are no subclasses of click's
            pytest.fail(f"{place}: {' '.join(words)}: {error}")


def _pages() -> Iterator[object]:
    for page in PAGES:
        yield pytest.param(page, id=page.name, marks=[] if page.stem in QUICK_PAGES else pytest.mark.slow)


def _commands() -> Iterator[object]:
    for text in RUNNING:
        yield pytest.param(text, id=text.name, marks=pytest.mark.slow if text.name in LONG_COMMANDS else [])


@pytest.mark.parametrize("page", _pages())
def test_examples_of_a_page_run(page: Path, folder: Path, shared: Path, variables: Mapping[str, str]) -> None:
    assert list(run_blocks(read_blocks(page), folder, shared / "cache", variables))


@pytest.mark.parametrize("text", _commands())
def test_examples_of_a_command_run(text: CommandText, folder: Path, shared: Path, variables: Mapping[str, str]) -> None:
    (step,) = run_blocks([example_block(text)], folder, shared / "cache", variables)
    assert any(line.startswith(f"$ bricolage {text.name}") for line in step.output.splitlines())


def test_commands_go_on_behind_a_backslash() -> None:
    assert split_commands("$ a \\\n  b\nprinted\n$ c\n") == ["a \\\n  b", "c"]


def test_a_command_that_fails_is_told_with_what_it_printed(tmp_path: Path) -> None:
    with pytest.raises(ExampleFailed, match="ended with 3\nbefore"):
        list(run_blocks([Block("console", "$ echo before; exit 3\n", None)], tmp_path, tmp_path))
