"""Rules of other tools, held against ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from bricolage.errors import BadEquationFile
from bricolage.rewrite.catalogue import choose_rules, find_rule
from bricolage.rulemaking import taso
from bricolage.rulemaking.coverage import cover
from bricolage.rulemaking.taso import TermEquation

ASSOCIATIVE = "matmul(matmul(a,b),c)==matmul(a,matmul(b,c))"


def written(text: str | bytes, folder: Path) -> list[TermEquation]:
    path = folder / "rules"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return taso.read_equations(path)


def equation(text: str, folder: Path) -> TermEquation:
    (found,) = written(text, folder)
    return found


def test_equations_one_behind_another_are_read_each_once(tmp_path: Path) -> None:
    found = written(f"{ASSOCIATIVE}relu(a)==a {ASSOCIATIVE}", tmp_path)
    assert [str(one) for one in found] == [
        "matmul(matmul(a,b),c) == matmul(a,matmul(b,c))",
        "relu(a) == a",
    ]


def test_both_notations_say_the_same(tmp_path: Path) -> None:
    lisp = "(concat 1 2 (relu ?a) ?b)=>(concat 1 2 ?b (relu ?a))\n(relu ?a)=>?a"
    assert written(lisp, tmp_path) == written("concat(1,2,relu(a),b)==concat(1,2,b,relu(a))relu(a)==a", tmp_path)


MINUS_ONE = bytes([1 << 3]) + b"\xff" * 9 + b"\x01"
"""The field 1 of a message that is -1: the first variable."""


def message(*fields: tuple[int, int | bytes]) -> bytes:
    """A protocol buffer of small numbers and short parts."""
    parts = (
        bytes([number << 3, value & 127]) if isinstance(value, int) else bytes([number << 3 | 2, len(value)]) + value
        for number, value in fields
    )
    return b"".join(parts)


def test_tasos_own_file_is_read(tmp_path: Path) -> None:
    relu = message((1, 8), (2, message((1, 0), (2, 0))))
    twice = (message((1, 8), (2, MINUS_ONE + message((2, 0)))), relu)
    once = message((1, 8), (2, MINUS_ONE + message((2, 0))))
    output = message((1, 1), (2, 0), (3, 0), (4, 0))
    (found,) = written(message((1, message((1, twice[0]), (1, twice[1]), (2, once), (3, output)))), tmp_path)
    assert str(found) == "relu(relu(input_1)) == relu(input_1)"
    with pytest.raises(BadEquationFile, match="reads a later one"):
        written(message((1, message((1, relu), (2, once), (3, message((1, 0), (2, 0)))))), tmp_path)


@pytest.mark.parametrize(
    "text", ["matmul(a,b)", "relu(a)==", "relu(a)==matmul(a,,b)", "", "{}", "matmul(a,1)==a", "\x00\x01"]
)
def test_what_is_no_equation_is_refused_with_its_line(text: str, tmp_path: Path) -> None:
    with pytest.raises(BadEquationFile, match="line "):
        written(text, tmp_path)


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        (ASSOCIATIVE, ["generated-033"]),
        ("relu(relu(a))==relu(a)", ["generated"]),
        ("ewmul(a,ewadd(b,c))==ewadd(ewmul(a,b),ewmul(a,c))", ["algebra"]),
        ("concat(0,2,ewmul(a,b),ewmul(c,d))==ewmul(concat(0,2,b,c),concat(0,2,a,d))", ["merging"]),
        ("conv2d(1,1,0,2,x,w)==relu(conv2d(1,1,0,0,x,w))", ["identity"]),
        ("split_0(split(1,concat(1,4,a,conv2d(1,1,0,0,b,w))))==a", ["concat"]),
    ],
)
def test_what_rules_derive(text: str, rules: list[str], tmp_path: Path) -> None:
    found = cover(equation(text, tmp_path), choose_rules(rules))
    assert found.verdict == "derived" and found.truth == "proved"
    for name in found.rules:
        without = [rule for rule in choose_rules(rules) if rule.name != name and rule.name in found.rules]
        assert cover(found.equation, without).verdict == "not derived", "each rule that is named is needed"


def test_without_the_rule_it_is_not_derived(tmp_path: Path) -> None:
    found = cover(equation(ASSOCIATIVE, tmp_path), [find_rule("factor-out")])
    assert found.verdict == "not derived" and found.truth == "proved" and not found.rules


def test_what_commutes_needs_no_rule(tmp_path: Path) -> None:
    found = cover(equation("ewadd(a,ewmul(b,c))==ewadd(ewmul(c,b),a)", tmp_path), choose_rules(["identity"]))
    assert found.verdict == "derived" and found.rules == ()


@pytest.mark.parametrize(
    "text",
    ["matmul(a,b)==matmul(b,a)", "relu(ewadd(a,b))==ewadd(relu(a),relu(b))", "split_0(split(0,concat(0,a,b)))==b"],
)
def test_what_is_false_is_refuted(text: str, tmp_path: Path) -> None:
    assert cover(equation(text, tmp_path), choose_rules(["algebra"])).verdict == "false"


@pytest.mark.parametrize("text", ["lstm(a,b)==a", "split_0(split(0,a))==a", "conv2d(1,1,0,7,x,w)==x"])
def test_what_has_no_counterpart_says_so(text: str, tmp_path: Path) -> None:
    found = cover(equation(text, tmp_path), choose_rules(["algebra"]))
    assert found.verdict == "not expressed" and found.reason


def test_a_split_of_a_nested_join_finds_its_places(tmp_path: Path) -> None:
    text = "split_1(split(1,split_0(split(1,concat(1,concat(1,a,b),c)))))==b"
    assert cover(equation(text, tmp_path), choose_rules(["concat", "identity"])).truth == "proved"
