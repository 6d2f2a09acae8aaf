"""Every place that raises a catalogue error gives the facts that its sentence needs."""

from __future__ import annotations

import ast
import pickle
import string
from pathlib import Path

import pytest

import bricolage.errors as catalogue
from bricolage.errors import BricolageError, UnknownInput, plain

SOURCE = Path(catalogue.__file__).parent
KINDS = {
    name: kind
    for name, kind in vars(catalogue).items()
    if isinstance(kind, type) and issubclass(kind, BricolageError) and kind.what != BricolageError.what
}


def fields(kind: type[BricolageError]) -> set[str]:
    """Names in the templates of an error."""
    return {name for template in (kind.what, kind.hint) for _, name, _, _ in string.Formatter().parse(template) if name}


def raise_sites() -> list[tuple[str, str, set[str]]]:
    """(where, class, keywords) of each construction of a catalogue error with plain keywords."""
    sites: list[tuple[str, str, set[str]]] = []
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or any(word.arg is None for word in node.keywords):
                continue
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if name in KINDS:
                sites.append((f"{path.relative_to(SOURCE)}:{node.lineno}", name, {str(w.arg) for w in node.keywords}))
    return sites


def test_there_are_raise_sites() -> None:
    assert len(raise_sites()) > 50


@pytest.mark.parametrize(
    ("where", "name", "given"), raise_sites(), ids=lambda v: str(sorted(v) if isinstance(v, set) else v)[:40]
)
def test_facts_fit_the_templates(where: str, name: str, given: set[str]) -> None:
    assert fields(KINDS[name]) <= given, f"{where} raises {name} without {fields(KINDS[name]) - given}"


def test_names_reach_the_terminal_as_text_and_not_at_any_length() -> None:
    hostile = "\x1b[31m\x1b]0;title\x07\u202e\n"
    error = UnknownInput(name=hostile, expected="x" * 10_000 + hostile)
    assert str(error).isprintable() and r"\x1b[31m\x1b]0;title\x07\u202e\n" in error.sentence
    assert len(str(error)) < 1_000 and "(10017 letters)" in str(error)
    assert error.facts["name"] == hostile, "who handles it has it as it is"
    assert plain("grün ✓") == "grün ✓"


@pytest.mark.parametrize("name", sorted(KINDS))
def test_errors_survive_a_process_boundary(name: str) -> None:
    facts = {field: 1.0 if field in ("error", "bound") else "x" for field in fields(KINDS[name])}
    error = KINDS[name](**facts)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and str(again) == str(error) and again.facts == facts
