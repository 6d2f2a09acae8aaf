"""Every example of the manual runs: the blocks of a page in order in one folder, each command's example in one of its own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.manual.commands import CommandText, example_block, read_texts
from tests.manual.examples import ExampleFailed, run_blocks, split_commands, write_example_files
from tests.manual.pages import COMMANDS, Block, list_pages, read_blocks

PAGES = [
    page
    for page in list_pages()
    if page.parent != COMMANDS and any(block.language in ("console", "python") for block in read_blocks(page))
]
RUNNING = [text for text in read_texts().values() if text.runs]


@pytest.fixture(scope="session")
def example_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("manual")
    write_example_files(folder)
    yield folder


@pytest.fixture
def folder(example_files: Path, tmp_path: Path) -> Path:
    target = tmp_path / "work"
    shutil.copytree(example_files, target, symlinks=True)
    return target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_of_a_page_run(page: Path, folder: Path) -> None:
    assert list(run_blocks(read_blocks(page), folder))


@pytest.mark.parametrize("text", RUNNING, ids=lambda text: text.name)
def test_examples_of_a_command_run(text: CommandText, folder: Path) -> None:
    (step,) = run_blocks([example_block(text)], folder)
    assert any(line.startswith(f"$ bricolage {text.name}") for line in step.output.splitlines())


def test_commands_go_on_behind_a_backslash() -> None:
    assert split_commands("$ a \\\n  b\nprinted\n$ c\n") == ["a \\\n   b", "c"]


def test_a_command_that_fails_is_told_with_what_it_printed(tmp_path: Path) -> None:
    with pytest.raises(ExampleFailed, match="ended with 3\nbefore"):
        list(run_blocks([Block("console", "$ echo before; exit 3\n", None)], tmp_path))
