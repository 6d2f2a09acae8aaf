"""Rule files: read, written, and refused where they are malformed or false."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bricolage.equations.term import Equation, read_equation
from bricolage.errors import BadRuleFile, FalseRule
from bricolage.rewrite.rulefile import read_rules, write_rules
from bricolage.rewrite.rules import generated
from bricolage.rulemaking import generation
from bricolage.rulemaking.rulegen.generate import generate_equations
from bricolage.rulemaking.rulegen.grammars import Grammar
from bricolage.rulemaking.verification import verify


def written(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


MALFORMED = {
    "not JSON": "not JSON",
    "[]": "no text 'rule'",
    '{"rule": 3}': "no text 'rule'",
    '{"rule": "relu(relu(x)) = relu(x)", "if": 1}': "'if' means nothing",
    '{"rule": "relu(relu(x)) = relu(x)", "inaccurate": ["top"]}': "left and right",
    '{"rule": "relu(relu(x))"}': "left = right",
    '{"rule": "relu(relu(x)) = gelu(x)"}': "no operator 'gelu'",
    '{"rule": "relu(x, x) = relu(x)"}': "takes 1 operands",
    '{"rule": "merge(x) = x"}': "no shapes fit",
    '{"rule": "relu(x) = relu(x)"}': "neither side",
    '{"rule": "relu(x) = relu(y)"}': "neither side",
    '{"rule": "relu(relu(x)) = relu(x)", "where": {"x": "[d1]"}}': "should be",
}


@pytest.mark.parametrize("line", MALFORMED)
def test_malformed_lines_are_refused(tmp_path: Path, line: str) -> None:
    path = written(tmp_path / "mine.jsonl", '{"rule": "relu(relu(x)) = relu(x)"}', "", line)
    with pytest.raises(BadRuleFile, match="line 3") as found:
        read_rules(path)
    assert MALFORMED[line] in str(found.value)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(BadRuleFile):
        read_rules(path)


def test_a_false_rule_is_refused_with_numbers(tmp_path: Path) -> None:
    path = written(tmp_path / "mine.jsonl", '{"rule": "relu(add(x, y)) = add(relu(x), relu(y))"}')
    one, other = read_rules(path)
    assert (one.name, other.name) == ("mine-1", "mine-1-back")
    with pytest.raises(FalseRule, match="becomes") as found:
        verify(one)
    assert "x = " in str(found.value)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    equations = [read_equation("transpose(transpose(x)) = x"), read_equation("add(relu(x), relu(x)) = relu(add(x, x))")]
    write_rules(tmp_path / "some.jsonl", equations)
    assert [str(one.stated) for one in read_rules(tmp_path / "some.jsonl") if not one.name.endswith("-back")] == [
        str(equation) for equation in equations
    ]


def test_the_shipped_file_is_as_it_would_be_written(tmp_path: Path) -> None:
    lines = generated.FILE.read_text(encoding="utf-8").splitlines()
    picked = lines[::29]
    write_rules(tmp_path / "some.jsonl", [read_equation(json.loads(line)["rule"]) for line in picked])
    assert (tmp_path / "some.jsonl").read_text(encoding="utf-8").splitlines() == picked


def test_only_what_is_proved_is_shipped() -> None:
    assert generation.is_proved(read_equation("matmul(matmul(x, y), z) = matmul(x, matmul(y, z))"))
    assert not generation.is_proved(read_equation("matmul(x, y) = matmul(y, x)"))
    assert not generation.is_proved(
        read_equation("max_columns(tanh(x)) = tanh(max_columns(x))")
    )  # true, but by no law of the prover


def test_a_grammar_end_to_end(tmp_path: Path) -> None:
    """From nothing to a file of proved rules, among them the known ones."""
    square = ("n", "n")
    grammar = Grammar(
        "w",
        dict.fromkeys("abc", square),
        ("matmul", "transpose", "concat_columns", "split_columns_0", "split_columns_1"),
        {"n": 3},
        3,
    )
    found = generate_equations([grammar], max_operators=3, proved=generation.is_proved)
    generation.write_generated(found, tmp_path / "rules.jsonl", tmp_path / "derived.txt")
    stated = {one.equation for one in read_rules(tmp_path / "rules.jsonl")}
    assert "matmul(matmul(x1, x2), x3) = matmul(x1, matmul(x2, x3))" in stated
    assert any("), matmul(" in equation for equation in stated)  # two products that share an input
    assert all(
        isinstance(read_equation(line), Equation)
        for line in (tmp_path / "derived.txt").read_text(encoding="utf-8").splitlines()
    )


@pytest.mark.slow
def test_the_shipped_rules_come_out_again(tmp_path: Path) -> None:
    found = generation.generate_rules()
    generation.write_generated(found, tmp_path / "rules.jsonl", tmp_path / "derived.txt")
    assert (tmp_path / "rules.jsonl").read_text(encoding="utf-8") == generated.FILE.read_text(encoding="utf-8")
    assert (tmp_path / "derived.txt").read_text(encoding="utf-8") == generated.DERIVED.read_text(encoding="utf-8")
