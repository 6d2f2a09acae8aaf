"""Pages of the manual, read: their prose without what is code, their sentences, their blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
MANUAL = ROOT / "docs" / "manual"
COMMANDS = MANUAL / "commands"
_BLOCK = re.compile(r"^```(?P<info>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_TITLE = re.compile(r'title="([^"]+)"')
_CODE = re.compile(r"`[^`\n]+`")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_END = re.compile(r"(?<=[.!?:;])\s+(?=[A-Z0-9*“\"(]|bricolage|$)")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: its language, its text, and the file that it is, if it is one."""

    language: str
    text: str
    title: str | None


def list_pages() -> list[Path]:
    """All pages of the manual, in the order of their paths."""
    return sorted(MANUAL.rglob("*.md"))


def read_blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    blocks = []
    for match in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        title = _TITLE.search(match["info"])
        blocks.append(Block(match["info"].split(" ")[0].strip(), match["text"], title and title[1]))
    return blocks


def read_prose(page: Path) -> str:
    """The text of a page without its blocks; code in a line is one word, a link its text."""
    text = re.sub(r"<!--.*?-->", "", _BLOCK.sub("", page.read_text(encoding="utf-8")), flags=re.DOTALL)
    return _LINK.sub(r"\1", _CODE.sub("CODE", text))


def split_sentences(page: Path) -> list[str]:
    """The sentences of a page's paragraphs and lists; rows of tables and headings are none."""
    sentences = []
    for paragraph in re.split(r"\n\s*\n", read_prose(page)):
        lines = [line for line in paragraph.splitlines() if not line.lstrip().startswith(("|", "#", "!!!"))]
        for item in re.split(r"(?:^|\n)\s*(?:[*-]|\d+\.)\s+", "\n".join(lines)):
            text = " ".join(item.split())
            sentences += [sentence for sentence in _END.split(text) if len(sentence.split()) > 1]
    return sentences


def count_words(page: Path) -> int:
    """Words of a page's prose, tables and headings."""
    return len(re.findall(r"[A-Za-z0-9][\w'-]*", read_prose(page)))
