"""How the manual reads, and that what is generated of it is that of the code."""

from __future__ import annotations

import re
import statistics
from pathlib import Path

import pytest

from bricolage.cluster.policy_catalogue import POLICIES
from tests.manual.commands import list_commands, read_texts
from tests.manual.errors_page import errors_page, list_errors
from tests.manual.pages import COMMANDS, MANUAL, ROOT, count_words, list_pages, read_blocks, read_prose, split_sentences
from tests.manual.write import generated_pages

WRITTEN = [page for page in list_pages() if page.parent != COMMANDS and page.name != "errors.md"]
LONGEST_SENTENCE = 30
AVERAGE_SENTENCE = 17
MOST_WORDS = 31_000
_MILLISECONDS = re.compile(r"\b\d[\d.,]*\s*(?:ms|milliseconds|µs|us)\b")
_PROCESSOR = re.compile(r"\b(?:EPYC|Xeon|Zen ?\d|Ryzen|Sapphire Rapids|Skylake|Cascade Lake|Ice Lake|Granite Rapids)\b")
_SOURCE = re.compile(r"`(?:src/|bricolage/|benchmarks/|tests/|[a-z_]+/)[\w/]+\.py`")
written = pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)


@written
def test_no_sentence_is_long(page: Path) -> None:
    assert [text for text in split_sentences(page) if len(text.split()) > LONGEST_SENTENCE] == []


def test_sentences_are_short_on_average() -> None:
    assert statistics.mean(len(text.split()) for page in WRITTEN for text in split_sentences(page)) <= AVERAGE_SENTENCE


def test_the_manual_has_at_most_so_many_words() -> None:
    assert sum(count_words(page) for page in WRITTEN) <= MOST_WORDS


@written
@pytest.mark.parametrize("pattern", [_MILLISECONDS, _PROCESSOR, _SOURCE], ids=["times", "processors", "sources"])
def test_prose_has_no_figure_that_ages(page: Path, pattern: re.Pattern[str]) -> None:
    prose = page.read_text(encoding="utf-8") if pattern is _SOURCE else read_prose(page)
    assert pattern.findall(prose) == []


def test_every_command_has_a_text_and_a_page_that_explains_it() -> None:
    texts = read_texts()
    assert sorted(texts) == sorted(list_commands())
    assert [text.name for text in texts.values() if not (MANUAL / text.page).exists()] == []


def test_generated_pages_are_those_of_the_code() -> None:
    stale = [path.name for path, text in generated_pages().items() if not path.exists() or path.read_text() != text]
    assert stale == [], "make them again: python -m tests.manual.write"


def test_no_page_of_a_command_is_left_over() -> None:
    assert {page.name for page in COMMANDS.glob("*.md")} == {
        path.name for path in generated_pages() if path.parent == COMMANDS
    }


def test_every_error_stands_on_its_page() -> None:
    page = errors_page()
    assert [kind.__name__ for kind in list_errors() if f"| `{kind.__name__}` |" not in page] == []


@written
def test_outputs_are_filled_in(page: Path) -> None:
    assert [
        block.text for block in read_blocks(page) if block.language == "console" and "\n…\n" in f"\n{block.text}"
    ] == []


def test_policies_are_those_of_the_catalogue() -> None:
    """The table of families names each once; the pages that count them count right."""
    names = {entry.name for entry in POLICIES}
    table = (MANUAL / "cluster-replay.md").read_text(encoding="utf-8").partition("| family |")[2].partition("\n\n")[0]
    named = [name for name in re.findall(r"`([a-z0-9-]+)`", table) if name in names]
    assert sorted(named) == sorted(names)
    for page in (ROOT / "README.md", MANUAL / "cluster-replay.md"):
        assert re.search(rf"\b{len(names)} (?:scheduling )?policies", page.read_text(encoding="utf-8")), page.name


def test_the_glossary_has_at_most_thirty_words() -> None:
    rows = [
        line for line in (MANUAL / "glossary.md").read_text(encoding="utf-8").splitlines() if line.startswith("| **")
    ]
    assert 10 <= len(rows) <= 30
