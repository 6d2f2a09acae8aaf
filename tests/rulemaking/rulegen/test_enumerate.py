"""The enumeration against brute force: nothing that is equal is missed, nothing that differs is joined."""

from __future__ import annotations

from collections import defaultdict
from itertools import product

import numpy as np
import pytest

from bricolage.equations.evaluate_term import concrete, evaluate_term, is_equal
from bricolage.equations.number_domains import Residues
from bricolage.equations.term import Equation, Term, nodes, read_term
from bricolage.equations.term_shapes import Shape, substitute
from bricolage.equations.vocabulary import BY_NAME
from bricolage.rulemaking.rulegen.enumerate import Enumeration
from bricolage.rulemaking.rulegen.generate import GenerationResult, generate_equations
from bricolage.rulemaking.rulegen.grammars import Grammar

SQUARE: Shape = ("n", "n")
GRAMMARS = {
    "products": Grammar("w", {"a": SQUARE, "b": SQUARE}, ("matmul", "add", "transpose"), {"n": 3}, 2),
    "functions": Grammar("w", {"a": ("n",), "b": ("n",), "s": ()}, ("relu", "sigmoid", "scale", "mul"), {"n": 16}, 2),
    "parts": Grammar(
        "w",
        {"a": SQUARE, "x": ("n", ("+", "n", "n"))},
        ("relu", "concat_columns", "split_columns_0", "split_columns_1"),
        {"n": 3},
        3,
    ),
}


def every_term(grammar: Grammar) -> dict[Term, Shape]:
    """All terms of a grammar, one by one."""
    found: dict[Term, Shape] = dict(grammar.variables)
    for _ in range(grammar.max_operators):
        for name in grammar.operators:
            operator = BY_NAME[name]
            for children in product(list(found), repeat=len(operator.inputs)):
                term = (name, *children)
                shape = operator.shape(*(found[child] for child in children))
                deep = shape is not None and any(isinstance(p, tuple) for s in shape if isinstance(s, tuple) for p in s)
                scalar = found[children[0]] == () and name != "mul"
                if term in found or shape is None or deep or scalar or len(nodes(term)) > grammar.max_operators:
                    continue
                found[term] = shape
    return found


@pytest.mark.parametrize("name", GRAMMARS)
def test_classes_are_those_of_brute_force(name: str) -> None:
    grammar = GRAMMARS[name]
    generator, xp = np.random.default_rng(7), Residues()
    shapes = {v: substitute(shape, grammar.sizes) for v, shape in grammar.variables.items()}
    arrays = {v: xp.draw(generator, 8, concrete(shape)) for v, shape in shapes.items()}
    classes: dict[object, list[Term]] = defaultdict(list)
    for term, shape in every_term(grammar).items():
        classes[shape, evaluate_term(term, arrays, shapes, xp).tobytes()].append(term)
    found = Enumeration(
        Grammar(grammar.name, grammar.variables, grammar.operators, grammar.sizes, grammar.max_operators + 1)
    ).run()
    small = [term for term in found.terms if len(nodes(term)) <= grammar.max_operators]
    assert len(small) == len(classes)  # one representative for each class
    by_term = {term: key for key, terms in classes.items() for term in terms}
    assert {by_term[term] for term in small} == set(classes)
    for term in small:  # of the smallest size in its class
        assert len(nodes(term)) == min(len(nodes(other)) for other in classes[by_term[term]])
    for equation in found.equations:
        (left,), (right,) = equation.left, equation.right
        if left in by_term and right in by_term:
            assert by_term[left] == by_term[right]


def test_the_same_every_time() -> None:
    grammar = GRAMMARS["products"]
    one, other = (generate_equations([grammar], max_operators=2, seed=5) for _ in range(2))
    assert one == other
    assert {str(e) for e in generate_equations([grammar], max_operators=2, seed=6).rules} == {str(e) for e in one.rules}


def test_what_is_found_is_true_and_small() -> None:
    found = generate_equations([GRAMMARS["products"]], max_operators=2)
    assert all(is_equal(equation, seed=9) for equation in (*found.rules, *found.derived))
    stated = {str(equation) for equation in found.rules}
    assert {"transpose(transpose(x1)) = x1", "matmul(matmul(x1, x2), x3) = matmul(x1, matmul(x2, x3))"} & stated
    assert all(equation.size <= 2 for equation in found.rules)


def test_what_is_not_proved_is_left_out() -> None:
    found: GenerationResult = generate_equations([GRAMMARS["products"]], max_operators=2, proved=lambda _: False)
    assert not found.rules and not found.derived and found.unproved


def test_maxima_of_many_numbers_hide_nothing() -> None:
    """max(relu(x), y) is max(x, y) wherever anything is positive, which is nearly everywhere."""
    false = Equation(
        (read_term("max_columns(concat_columns(relu(x), y))"),), (read_term("max_columns(concat_columns(x, y))"),)
    )
    assert not is_equal(false)
