"""What follows from rules, what does not, and what costs accuracy."""

from __future__ import annotations

import pytest

from bricolage.equations.float32_accuracy import inaccurate
from bricolage.equations.term import is_directed, read_equation
from bricolage.rulemaking.rulegen.derive import derivable, rules_of

RULES = [
    rule
    for number, source in enumerate(
        [
            "matmul(matmul(x, y), z) = matmul(x, matmul(y, z))",
            "matmul(transpose(x), transpose(y)) = transpose(matmul(y, x))",
            "transpose(transpose(x)) = x",
            "split_columns_0(concat_columns(x, y)) = x",
            "split_columns_1(concat_columns(x, y)) = y",
            "matmul(x, split_columns_0(y)) = split_columns_0(matmul(x, y))",
            "add(add(x, y), z) = add(x, add(y, z))",
        ]
    )
    for rule in rules_of(read_equation(source), str(number))
]

FOLLOWS = [
    "matmul(x, transpose(y)) = transpose(matmul(y, transpose(x)))",
    "split_columns_0(matmul(x, concat_columns(y, z))) = matmul(x, y)",
    "add(add(x, y), z) = add(add(z, x), y)",
    "matmul(matmul(a, b), matmul(c, d)) = matmul(a, matmul(matmul(b, c), d))",
]
FOLLOWS_NOT = [
    "matmul(x, y) = matmul(y, x)",
    "split_columns_1(matmul(x, concat_columns(y, z))) = matmul(x, z)",
    "add(x, x) = x",
    "add(matmul(x, y), matmul(x, z)) = matmul(x, add(y, z))",
]


@pytest.mark.parametrize("source", FOLLOWS)
def test_what_follows(source: str) -> None:
    assert derivable(read_equation(source), RULES)
    assert derivable(read_equation(source).turned, RULES)


@pytest.mark.parametrize("source", FOLLOWS_NOT)
def test_what_does_not_follow(source: str) -> None:
    assert not derivable(read_equation(source), RULES)


def test_rules_apply_only_where_both_sides_are_typed() -> None:
    """conv1 of a kernel of size 1 is no conv3, whatever pattern matches."""
    rules = rules_of(read_equation("conv3(x, enlarge(w)) = conv1(x, w)"), "enlarge")
    assert derivable(read_equation("relu(conv1(x, w)) = relu(conv3(x, enlarge(w)))"), rules)
    assert not derivable(read_equation("conv3(x, w) = conv3(x, enlarge(v))"), rules)


def test_several_terms_are_to_be_reached() -> None:
    whole = "matmul(x, concat_columns(v, w))"
    pair = f"matmul(x, v), matmul(x, w) = split_columns_0({whole}), split_columns_1({whole})"
    assert not derivable(read_equation(pair), RULES)  # true by the rules, but they never lead there
    assert derivable(read_equation(pair), rules_of(read_equation(pair), "pair"))


def test_directions() -> None:
    assert is_directed(read_equation("split_rows_0(concat_rows(x, y)) = x"))
    assert not is_directed(read_equation("x = split_rows_0(concat_rows(x, y))"))
    assert not is_directed(read_equation("relu(x) = split_rows_0(concat_rows(relu(x), y))"))


def test_cancellation_is_measured() -> None:
    """(x + y) w is accurate where x and y nearly cancel; x w + y w is not."""
    assert inaccurate(read_equation("matmul(add(x, y), w) = add(matmul(x, w), matmul(y, w))")) == ["right"]
    assert inaccurate(read_equation("add(mul(x, w), mul(y, w)) = mul(add(x, y), w)")) == ["left"]
    assert not inaccurate(read_equation("matmul(matmul(x, y), z) = matmul(x, matmul(y, z))"))
    assert not inaccurate(read_equation("transpose(add(x, y)) = add(transpose(x), transpose(y))"))
