"""The pages hold what is generated, and name only what exists. `python -m tests.test_docs` writes what is generated anew."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from bricolage.rewrite import catalogue
from bricolage.rewrite.rules import generated
from tests.train.predict.changes_table import changes_table

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "bricolage"
DOCS = ROOT / "docs"
LOG = DOCS / "log"
"""What was measured and said on a day: it is not written anew when a file moves."""
PAGES = sorted(
    [
        *(page for page in DOCS.rglob("*.md") if LOG not in page.parents),
        *(ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md"),
    ]
)
GENERATED = {"rules.md", "capabilities.md", "errors.md"}
TABLES = {DOCS / "design" / "training.md": ("changes", changes_table)}
"""Page → the name of the table that the code generates in it, and what generates it."""
_PATH = re.compile(r"`((?:[\w.-]+/)+(?:[\w.-]+\.(?:py|md))?)`")
_MODULE = re.compile(r"\b((?:bricolage|benchmarks|tests)(?:\.\w+)+)")
_LINK = re.compile(r"(?<!`)\[[^\]\n]*(?:\n[^\]\n]*)?\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
written = pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name not in GENERATED], ids=lambda page: page.relative_to(ROOT).as_posix()
)


def with_table(page: Path) -> str:
    """The text of a page with its generated table as it should be."""
    name, make = TABLES[page]
    found, count = re.subn(
        rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)",
        lambda marks: f"{marks[1]}{make()}\n{marks[2]}",
        page.read_text(encoding="utf-8"),
        flags=re.DOTALL,
    )
    assert count == 1, f"{page.name} has no place for its table"
    return found


def anchors(page: Path) -> set[str]:
    """Names by which links reach the headings of a page, as GitHub makes them."""
    headings = _HEADING.findall(page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def missing_paths(page: Path) -> Iterator[str]:
    """Paths in backticks that lead nowhere."""
    bases = [ROOT, SOURCES, DOCS, ROOT / "benchmarks"]
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


@pytest.mark.parametrize("page", TABLES, ids=lambda page: page.name)
def test_generated_tables_are_those_of_the_code(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == with_table(page), "make it again: make docs"


@written
def test_paths_exist(page: Path) -> None:
    assert list(missing_paths(page)) == []


@written
def test_modules_exist(page: Path) -> None:
    assert list(missing_modules(page)) == []


@pytest.mark.parametrize("page", [*PAGES, *LOG.rglob("*.md")], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    assert list(missing_links(page)) == []


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


def test_every_package_is_on_the_map() -> None:
    page = (DOCS / "design" / "where.md").read_text(encoding="utf-8")
    packages = sorted(path.parent.name for path in SOURCES.glob("*/__init__.py"))
    assert [name for name in packages if f"`{name}/" not in page] == []


def test_pages_count_the_rules_that_there_are() -> None:
    hand, found, listed = (
        len(catalogue.written_rules()),
        len(generated.generated_rules()),
        len(generated.substitutions()),
    )
    equations = len(generated.FILE.read_text(encoding="utf-8").splitlines())
    proofs = (DOCS / "design" / "proofs.md").read_text(encoding="utf-8")
    table = proofs.partition("## What is not proved")[2].partition("\n## ")[0]
    first = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    unproved = sum(cell.count("`") // 2 for cell in first)
    said = {
        "docs/design/proofs.md": (
            f"proves {hand - unproved} of {hand} written rules",
            f"of the {found} that were found",
        ),
        "docs/design/rewriting.md": (
            f"lists {listed:,} distinct substitutions",
            f"the {equations} equations",
            f"{listed - equations:,} that follow",
            f"Of the {equations} rules",
        ),
    }
    for page, sentences in said.items():
        text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
        assert [one for one in sentences if one not in text] == [], page


if __name__ == "__main__":
    for changed in TABLES:
        changed.write_text(with_table(changed), encoding="utf-8")
