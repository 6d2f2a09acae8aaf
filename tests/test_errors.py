"""Every place that raises a catalogue error gives the facts that its sentence needs."""

from __future__ import annotations

import ast
import pickle
import re
import string
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import bricolage.errors as catalogue
from bricolage.backends import registry
from bricolage.errors import BricolageError, InvalidGraph, UnknownInput, plain
from bricolage.verify.inputs import _draw

SOURCE = Path(catalogue.__file__).parents[1]
KINDS = {
    name: kind
    for name, kind in vars(catalogue).items()
    if isinstance(kind, type) and issubclass(kind, BricolageError) and kind.what != BricolageError.what
}


def fields(kind: type[BricolageError]) -> set[str]:
    """Facts that the templates of an error need."""
    found = {
        name for template in (kind.what, kind.hint) for _, name, _, _ in string.Formatter().parse(template) if name
    }
    return found - {"install"} | ({"extra"} if "install" in found and not kind.extra else set())


NAMED = re.compile(rf"\b({'|'.join(KINDS)})\b")


def raise_sites() -> list[tuple[str, str, set[str]]]:
    """(where, class, keywords) of each construction of a catalogue error with plain keywords."""
    sites: list[tuple[str, str, set[str]]] = []
    called = re.compile(rf"\b({'|'.join(KINDS)})\(")
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if called.search(text) is None:  # to read a tree takes ten times as long
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Call) or any(word.arg is None for word in node.keywords):
                continue
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if name in KINDS:
                sites.append((f"{path.relative_to(SOURCE)}:{node.lineno}", name, {str(w.arg) for w in node.keywords}))
    return sites


def test_facts_fit_the_templates() -> None:
    """One test of all sites: each worker of pytest would read all sources to number them."""
    sites = raise_sites()
    assert len(sites) > 50
    lacking = [(where, name, fields(KINDS[name]) - given) for where, name, given in sites]
    assert [one for one in lacking if one[2]] == []


def test_names_reach_the_terminal_as_text_and_not_at_any_length() -> None:
    hostile = "\x1b[31m\x1b]0;title\x07\u202e\n"
    error = UnknownInput(name=hostile, expected="x" * 10_000 + hostile)
    assert str(error).isprintable() and r"\x1b[31m\x1b]0;title\x07\u202e\n" in error.sentence
    assert len(str(error)) < 1_000 and "(10017 letters)" in str(error)
    assert error.facts["name"] == hostile, "who handles it has it as it is"
    assert plain("grün ✓") == "grün ✓"


@pytest.mark.parametrize(
    "referral",
    [
        "Please contribute by creating a PR at https://github.com/onnx/onnx-ir.",
        "Please file an issue at https://github.com/pytorch/pytorch/issues.",
        "This is a bug; please report it to the developers.",
        "Open an issue with the model attached.",
    ],
)
def test_nobody_is_sent_to_another_project(referral: str) -> None:
    error = InvalidGraph(reason=f"Maps are not supported yet. {referral} The node is 'n'.")
    assert "Maps are not supported yet. The node is 'n'" in str(error)
    assert "http" not in str(error) and "report" not in str(error)
    assert error.facts["reason"].endswith("The node is 'n'."), "who handles it has it as it is"


def provoked() -> set[str]:
    """Errors that a test expects something to raise: named in `pytest.raises` or caught by name."""
    found: set[str] = set()
    for path in Path(__file__).parent.rglob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        if NAMED.search(text) is None:  # to read a tree takes ten times as long
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ExceptHandler) and node.type is not None:
                where: ast.AST = node.type
            elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "raises":
                where = node
            else:
                continue
            found |= {getattr(part, "id", getattr(part, "attr", "")) for part in ast.walk(where)}
    return found


def test_every_error_of_the_catalogue_is_provoked_by_a_test() -> None:
    bases = {parent.__name__ for kind in KINDS.values() for parent in kind.__mro__[1:]}
    assert sorted(set(KINDS) - provoked() - bases) == []


@pytest.mark.parametrize("name", sorted(KINDS))
def test_what_happened_and_what_to_do(name: str) -> None:
    kind = KINDS[name]
    assert kind.hint, "a next step"
    assert not kind.what.endswith(".") and not kind.hint.endswith("."), "the command line adds them"
    assert kind.__doc__ is None or "\n\n" not in kind.__doc__


def plugin(**_: object) -> None:
    """No backend."""


def test_plugins_that_are_no_backends_or_have_another_s_name_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        with pytest.raises(
            catalogue.DuplicateBackend, match="registered twice: by bricolage itself and by elsewhere:Mine"
        ):
            registry.register("native", "elsewhere:Mine")
        registry.register("broken", "tests.absent:Backend")
        registry.register("none", f"{__name__}:plugin")
        for name, reason in (("broken", "ModuleNotFoundError"), ("none", "is no Backend named 'none'")):
            with pytest.raises(catalogue.BrokenPlugin, match=reason):
                registry.get(name)
    finally:
        registry._sources.cache_clear()
        registry.get.cache_clear()


def test_inputs_of_types_that_cannot_be_generated_are_named() -> None:
    nested = ir.SequenceType(ir.SequenceType(ir.TensorType(ir.DataType.FLOAT)))
    with pytest.raises(catalogue.UnsupportedType, match="'x' has the type"):
        _draw(ir.Value(name="x", type=nested), np.random.default_rng(0), 0)


@pytest.mark.parametrize("name", sorted(KINDS))
def test_errors_survive_a_process_boundary(name: str) -> None:
    facts = {field: 1.0 if field in ("error", "bound") else "x" for field in fields(KINDS[name])}
    error = KINDS[name](**facts)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and str(again) == str(error) and again.facts == facts
