"""Every example of the manual runs: the blocks of a page in order in one folder, each command's example in one of its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from filelock import FileLock

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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_of_a_page_run(page: Path, folder: Path, shared: Path) -> None:
    assert list(run_blocks(read_blocks(page), folder, shared / "cache"))


@pytest.mark.parametrize("text", RUNNING, ids=lambda text: text.name)
def test_examples_of_a_command_run(text: CommandText, folder: Path, shared: Path) -> None:
    (step,) = run_blocks([example_block(text)], folder, shared / "cache")
    assert any(line.startswith(f"$ bricolage {text.name}") for line in step.output.splitlines())


def test_commands_go_on_behind_a_backslash() -> None:
    assert split_commands("$ a \\\n  b\nprinted\n$ c\n") == ["a \\\n  b", "c"]


def test_a_command_that_fails_is_told_with_what_it_printed(tmp_path: Path) -> None:
    with pytest.raises(ExampleFailed, match="ended with 3\nbefore"):
        list(run_blocks([Block("console", "$ echo before; exit 3\n", None)], tmp_path, tmp_path))
