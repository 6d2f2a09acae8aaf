"""The pages hold what is generated, and name only what exists. `python -m tests.test_docs` writes what is generated anew."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from bricolage.cli.arguments import reference

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "bricolage"
CLI = ROOT / "docs" / "cli.md"
PAGES = sorted(
    [*ROOT.glob("docs/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md"]
)
GENERATED = {"rules.md", "capabilities.md"}
OPTIONS = re.compile(r"(?<=<!-- options -->\n).*?(?=\n<!-- /options -->)", re.DOTALL)
ABOUT = {
    "native-engine.md": SOURCES / "backends" / "native",
    "fusion.md": SOURCES / "backends" / "native",
    "rewriting.md": SOURCES / "rewrite",
    "egraphs.md": SOURCES / "rewrite" / "egraph",
}
"""Pages about one folder name paths below it."""
_PATH = re.compile(r"`((?:[\w.-]+/)+(?:[\w.-]+\.(?:py|md))?)`")
_MODULE = re.compile(r"\b((?:bricolage|benchmarks|tests)(?:\.\w+)+)")
_LINK = re.compile(r"(?<!`)\[[^\]\n]*(?:\n[^\]\n]*)?\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
written = pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name not in GENERATED], ids=lambda page: page.name
)


def with_options(page: str) -> str:
    """The text of the command reference with the table of options as it should be."""
    return OPTIONS.sub(lambda _: reference(), page)


def anchors(page: Path) -> set[str]:
    """Names by which links reach the headings of a page, as GitHub makes them."""
    headings = _HEADING.findall(page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def missing_paths(page: Path) -> Iterator[str]:
    """Paths in backticks that lead nowhere."""
    bases = [ROOT, SOURCES, ROOT / "docs", ROOT / "benchmarks", *([ABOUT[page.name]] if page.name in ABOUT else [])]
    for path in _PATH.findall(page.read_text(encoding="utf-8")):
        if not any((base / path).exists() for base in bases):
            yield path


def missing_modules(page: Path) -> Iterator[str]:
    """Modules that do not exist; what stands behind a module's name must occur in its text."""
    for name in _MODULE.findall(page.read_text(encoding="utf-8")):
        first, *parts = name.split(".")
        here = SOURCES if first == "bricolage" else ROOT / first
        while parts and (here / parts[0]).is_dir():
            here /= parts.pop(0)
        file = here / f"{parts[0]}.py" if parts else here / "__init__.py"
        if parts and file.exists():
            parts.pop(0)
        else:
            file = here / "__init__.py"
        if not all(re.search(rf"\b{part}\b", file.read_text(encoding="utf-8")) for part in parts):
            yield name


def missing_links(page: Path) -> Iterator[str]:
    """Targets of links within the repository that do not exist, headings included."""
    for link in _LINK.findall(page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield link


def test_the_table_of_options_is_the_one_of_the_code() -> None:
    page = CLI.read_text(encoding="utf-8")
    assert OPTIONS.search(page) is not None
    assert page == with_options(page), "make it again: make docs"


@written
def test_paths_exist(page: Path) -> None:
    assert list(missing_paths(page)) == []


@written
def test_modules_exist(page: Path) -> None:
    assert list(missing_modules(page)) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    assert list(missing_links(page)) == []


if __name__ == "__main__":
    CLI.write_text(with_options(CLI.read_text(encoding="utf-8")), encoding="utf-8")


def test_install_lines_name_extras_that_there_are() -> None:
    """Also those in hints of errors. A path installs a checkout; the name alone adds extras to what is installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = dict[str, Path]()
    for path in [*PAGES, *SOURCES.rglob("*.py")]:
        for extras in re.findall(
            r"pip install (?:-c \S+ )?'(?:bricolage|\.)\[([\w,]+)\]'", path.read_text(encoding="utf-8")
        ):
            found |= dict.fromkeys(extras.split(","), path)
    assert len(found) > 5
    assert {extra: path for extra, path in found.items() if extra not in project["optional-dependencies"]} == {}


def test_the_readme_installs_from_where_it_stands() -> None:
    lines = [
        line.strip() for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines() if "pip install" in line
    ]
    assert lines and all("'.[" in line for line in lines), "the name alone is found on no index"
