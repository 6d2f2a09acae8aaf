"""Writes what is generated of the manual: `python -m tests.manual.write [--examples [PAGE …]]`.

Without options: the pages of commands with the outputs that they have, and the page of errors. With `--examples` the examples run
and their outputs are written, of the pages that are named (`optimize.md`, `commands/optimize.md`) or of all.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from tests.manual.commands import command_page, example_block, index_page, list_commands, read_texts
from tests.manual.errors_page import errors_page
from tests.manual.examples import fill_page, run_blocks, write_example_files
from tests.manual.pages import COMMANDS, MANUAL, list_pages, read_blocks


def shown_output(file_name: str) -> str | None:
    """What the page of a command shows of its example now."""
    page = COMMANDS / file_name
    blocks = [block for block in read_blocks(page) if block.language in ("console", "sh")] if page.exists() else []
    return blocks[0].text if blocks else None


def generated_pages() -> dict[Path, str]:
    """Every generated page and its text, with the outputs that the pages show now."""
    texts = read_texts()
    pages = {
        COMMANDS / texts[name].file_name: command_page(
            name, command, texts[name], shown_output(texts[name].file_name) if texts[name].runs else None
        )
        for name, command in list_commands().items()
    }
    return pages | {COMMANDS / "index.md": index_page(texts), MANUAL / "errors.md": errors_page()}


def _fresh_folder(files: Path, folder: str) -> Path:
    target = Path(folder) / "work"
    shutil.copytree(files, target, symlinks=True)
    return target


def main() -> None:
    """Writes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", nargs="*", metavar="PAGE")
    arguments = parser.parse_args()
    if arguments.examples is not None:
        with tempfile.TemporaryDirectory() as example_files:
            write_example_files(Path(example_files))
            wanted = set(arguments.examples)
            for page in list_pages():
                name = page.relative_to(MANUAL).as_posix()
                if page.parent != COMMANDS and (not wanted or name in wanted) and read_blocks(page):
                    print(name, flush=True)
                    with tempfile.TemporaryDirectory() as folder:
                        fill_page(page, _fresh_folder(Path(example_files), folder), Path(folder) / "cache")
            commands = list_commands()
            for name, text in read_texts().items():
                if text.runs and (not wanted or f"commands/{text.file_name}" in wanted):
                    print(f"commands/{text.file_name}", flush=True)
                    with tempfile.TemporaryDirectory() as folder:
                        (step,) = run_blocks(
                            [example_block(text)], _fresh_folder(Path(example_files), folder), Path(folder) / "cache"
                        )
                    page = command_page(name, commands[name], text, step.output)
                    (COMMANDS / text.file_name).write_text(page, encoding="utf-8")
    for path, content in generated_pages().items():
        path.write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
