"""Terms, equations, and their most general shapes."""

from __future__ import annotations

import pytest

from bricolage.equations.term import BadSyntax, Equation, format_term, nodes, read_equation, read_term
from bricolage.equations.term_shapes import IllTyped, Unifier, format_terms, matches_ground, substitute, substitute_size
from bricolage.equations.vocabulary import BY_NAME, OPERATORS


def equation(source: str) -> Equation:
    return read_equation(source)


@pytest.mark.parametrize("source", ["x", "add(x, relu(y))", "split_rows_0(concat_rows(a, a))"])
def test_terms_are_written_as_they_are_read(source: str) -> None:
    assert format_term(read_term(source)) == source


@pytest.mark.parametrize(
    "source", ["", "add(x)", "nothing(x)", "add(x, 1)", "x + y", "add(x, y", "x, y", "add(a=x, b=y)"]
)
def test_what_is_no_term(source: str) -> None:
    with pytest.raises(BadSyntax):
        read_term(source)


def test_sides_have_equally_many_terms() -> None:
    with pytest.raises(BadSyntax, match="one side has 2"):
        equation("x, y = x")


def test_operators_count_once() -> None:
    assert len(nodes(read_term("add(relu(x), relu(x))"))) == 2
    assert len(nodes(read_term("concat_rows(split_rows_1(x), split_rows_0(x))"))) == 2


def test_most_general_shapes() -> None:
    assert equation("matmul(matmul(a, b), c) = matmul(a, matmul(b, c))").typing.text() == {
        "a": "[..., d1, d2]",
        "b": "[..., d2, d3]",
        "c": "[..., d3, d4]",
    }
    assert equation("add(a, b) = add(b, a)").typing.text() == {"a": "[...]", "b": "[...]"}
    assert equation("conv1_group2(x, w) = conv3_group2(x, enlarge(w))").typing.text() == {
        "x": "[d1, d2+d2, d3, d4]",
        "w": "[d5+d5, d2, 1, 1]",
    }


@pytest.mark.parametrize(
    "source", ["matmul(x, s) = scale(x, s)", "merge(x) = x", "split_rows_0(x) = x", "relu(s) = mean_spatial(t)"]
)
def test_sides_without_common_shapes(source: str) -> None:
    if source.startswith("relu"):
        assert equation(source).typing.text()["s"].endswith("1, 1]")  # shapes may also become fixed
        return
    with pytest.raises(IllTyped):
        _ = equation(source).typing


def test_unification_of_rows() -> None:
    unifier = Unifier()
    unifier.unify(("...a", "m", "n"), ("...b", "k"))
    assert unifier.shape(("...b", "k")) == ("...a", "m", "n")
    with pytest.raises(IllTyped):
        unifier.unify(("m",), (("+", "m", "k"),))


def test_matching_of_shapes() -> None:
    bound: dict[str, object] = {}
    assert matches_ground(("...", "m", ("+", "a", "b")), ("p", "q", ("+", "r", 2)), bound)
    assert bound == {"...": ("p",), "m": "q", "a": "r", "b": 2}
    assert not matches_ground(("m", "m"), ("p", "q"), {})
    assert substitute(("...", ("half", "m")), {"...": (2, 3), "m": 5}) == (2, 3, ("half", 5))
    assert [substitute_size((kind, 5), {}) for kind in ("half", "pad")] == [3, 7]
    assert format_terms(("...", ("+", "a", ("*", "b", "c")))) == "[..., a+(b*c)]"


def test_equations_up_to_names_and_order() -> None:
    one = equation("mul(add(a, b), c) = add(mul(a, c), mul(b, c))")
    other = equation("add(mul(y, z), mul(y, x)) = mul(y, add(x, z))")
    assert one.canonical == other.canonical
    assert one.canonical != equation("mul(add(a, b), c) = add(mul(a, c), mul(b, a))").canonical


def test_instances() -> None:
    general = equation("relu(relu(x)) = relu(x)")
    assert (
        equation("relu(relu(add(a, b))) = relu(add(b, a))").instance_of(general) is False
    )  # the operands differ in order
    assert equation("relu(relu(add(a, b))) = relu(add(a, b))").instance_of(general)
    assert equation("relu(a) = relu(relu(a))").instance_of(general)
    assert not general.instance_of(equation("relu(relu(add(a, b))) = relu(add(a, b))"))


def test_every_operator_says_what_it_makes() -> None:
    assert len(BY_NAME) == len(OPERATORS)
    for operator in OPERATORS:
        given = [substitute(shape, {"...": ("p",)}) for shape in operator.inputs]
        assert operator.shape(*given) == substitute(operator.output, {"...": ("p",)})
        assert operator.shape(*given, ("p",)) is None
