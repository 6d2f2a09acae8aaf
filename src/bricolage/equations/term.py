"""Terms over the vocabulary, and equations between them.

A term is a variable (a string) or a tuple of an operator's name and its operands. Equal subterms are computed once, and the
outputs of one split are one operator: the size of a term is the number of its distinct operators.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import permutations, product
from typing import Any, TypeAlias

from bricolage.equations.term_shapes import Shape, Unifier, format_terms, is_row, shape_names, substitute
from bricolage.equations.vocabulary import BY_NAME

Term: TypeAlias = "str | tuple[Any, ...]"
Terms: TypeAlias = tuple[Term, ...]


class BadSyntax(Exception):
    """A text that is no term."""


def format_term(term: Term) -> str:
    """`add(x, relu(y))`."""
    return term if isinstance(term, str) else f"{term[0]}({', '.join(map(format_term, term[1:]))})"


def read_term(source: str) -> Term:
    """The term of a text. Raises BadSyntax."""
    terms = _read_side(source)
    if len(terms) != 1:
        raise BadSyntax(f"'{source}' is not one term")
    return terms[0]


def read_equation(source: str) -> Equation:
    """The equation of a text `left = right`, each side one term or several with commas. Raises BadSyntax."""
    sides = source.split("=")
    if len(sides) != 2:
        raise BadSyntax(f"'{source}' is not of the form left = right")
    left, right = map(_read_side, sides)
    if len(left) != len(right):
        raise BadSyntax(f"one side has {len(left)} terms, the other {len(right)}")
    return Equation(left, right)


def _read_side(source: str) -> Terms:
    try:
        tree = ast.parse(f"({source.strip()},)", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BadSyntax(f"'{source.strip()}' is no term") from error
    if not isinstance(tree, ast.Tuple):
        raise BadSyntax(f"'{source.strip()}' is no term")
    return tuple(map(_read, tree.elts))


def _read(node: ast.expr) -> Term:
    if isinstance(node, ast.Name):
        return node.id
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.keywords:
        raise BadSyntax(f"'{ast.unparse(node)}' is no term")
    operator = BY_NAME.get(node.func.id)
    if operator is None:
        raise BadSyntax(f"there is no operator '{node.func.id}'")
    if len(node.args) != len(operator.inputs):
        raise BadSyntax(f"{operator.name} takes {len(operator.inputs)} operands, not {len(node.args)}")
    return (operator.name, *map(_read, node.args))


def subterms(term: Term) -> Iterator[Term]:
    """All subterms with repetitions, operands first."""
    if not isinstance(term, str):
        for child in term[1:]:
            yield from subterms(child)
    yield term


def nodes(*terms: Term) -> set[Term]:
    """The operators of terms; outputs of one split are one."""
    return {
        (BY_NAME[part[0]].node or part[0], *part[1:])
        for term in terms
        for part in subterms(term)
        if not isinstance(part, str)
    }


def variables(*terms: Term) -> list[str]:
    """The variables, by first occurrence."""
    return list(dict.fromkeys(part for term in terms for part in subterms(term) if isinstance(part, str)))


def replace_variables(term: Term, bound: Mapping[str, Term]) -> Term:
    """Variables replaced by terms."""
    if isinstance(term, str):
        return bound.get(term, term)
    return (term[0], *(replace_variables(child, bound) for child in term[1:]))


def embeddings(pattern: Term, term: Term, bound: Mapping[str, Term]) -> Iterator[Mapping[str, Term]]:
    """Every way to replace the variables of `pattern` so that it becomes `term`, up to the order of commutative operators."""
    if isinstance(pattern, str):
        if pattern not in bound:
            yield {**bound, pattern: term}
        elif bound[pattern] == term:
            yield bound
        return
    if isinstance(term, str) or pattern[0] != term[0]:
        return
    orders = [term[1:]]
    if BY_NAME[term[0]].commutative and term[1] != term[2]:
        orders.append((term[2], term[1]))
    for order in orders:
        yield from _all(pattern[1:], order, bound)


def _all(patterns: Sequence[Term], terms: Sequence[Term], bound: Mapping[str, Term]) -> Iterator[Mapping[str, Term]]:
    if not patterns:
        yield bound
        return
    for embedding in embeddings(patterns[0], terms[0], bound):
        yield from _all(patterns[1:], terms[1:], embedding)


@dataclass(frozen=True)
class Equation:
    """Terms that compute the same, one by one. Several terms on a side share variables (TASO's graphs with several outputs)."""

    left: Terms
    right: Terms

    def __str__(self) -> str:
        return " = ".join(", ".join(map(format_term, side)) for side in (self.left, self.right))

    @property
    def turned(self) -> Equation:
        """The same equation from right to left."""
        return Equation(self.right, self.left)

    @cached_property
    def size(self) -> int:
        """Operators of the larger side."""
        return max(len(nodes(*self.left)), len(nodes(*self.right)))

    @cached_property
    def typing(self) -> Typing:
        """Most general shapes. Raises IllTyped."""
        return Typing.of(self)

    @cached_property
    def canonical(self) -> Equation:
        """The same for all equations that differ in the names of variables, the order of commutative operators, of the sides and
        of the terms on them. The sides of several terms stay: the left is what is to be found."""
        choices = []
        for equation in (self, self.turned) if len(self.left) == 1 else (self,):
            pairs = list(zip(equation.left, equation.right, strict=True))
            for order in permutations(pairs):
                left, right = zip(*order, strict=True)
                choices += [_normalise_names(Equation(lefts, right)) for lefts in product(*map(_orders, left))]
        return min(choices, key=lambda choice: (choice._weight, str(choice)))

    @property
    def _weight(self) -> tuple[int, int, int]:
        """Fewest operators (equal operands in equal order are one), the larger side on the left."""
        left, right = len(nodes(*self.left)), len(nodes(*self.right))
        return left + right, -left, -len(variables(*self.left))

    def instance_of(self, other: Equation) -> bool:
        """Whether replacing variables in `other` (in one direction or the other) gives this equation."""
        if len(self.left) != 1 or len(other.left) != 1:
            return self.canonical == other.canonical
        (left,), (right,) = self.left, self.right
        for a, b in ((other.left[0], other.right[0]), (other.right[0], other.left[0])):
            if not isinstance(a, str) and any(
                True for bound in embeddings(a, left, {}) for _ in embeddings(b, right, bound)
            ):
                return True
        return False


def _orders(term: Term) -> list[Term]:
    """A term with the operands of commutative operators in every order."""
    if isinstance(term, str):
        return [term]
    orders: list[Term] = [(term[0], *children) for children in product(*map(_orders, term[1:]))]
    if BY_NAME[term[0]].commutative:
        orders += [(ordering[0], ordering[2], ordering[1]) for ordering in orders if ordering[1] != ordering[2]]
    return orders


def _normalise_names(equation: Equation) -> Equation:
    """Variables called x1, x2, ... by first occurrence; then commutative operands on the right in the order of their texts."""
    order = variables(*equation.left, *equation.right)
    bound: dict[str, Term] = {name: f"x{i}" for i, name in enumerate(order, 1)}
    return Equation(
        tuple(replace_variables(term, bound) for term in equation.left),
        tuple(_sort_operands(replace_variables(term, bound)) for term in equation.right),
    )


def _sort_operands(term: Term) -> Term:
    if isinstance(term, str):
        return term
    children = [_sort_operands(child) for child in term[1:]]
    return (term[0], *(sorted(children, key=format_term) if BY_NAME[term[0]].commutative else children))


@dataclass(frozen=True)
class Typing:
    """The most general shapes of an equation's variables and subterms, under which both sides are well-typed and agree."""

    shapes: Mapping[Term, Shape] = field(hash=False)

    @classmethod
    def of(cls, equation: Equation) -> Typing:
        """Raises IllTyped: no shapes make both sides well-typed."""
        unifier, shapes, count = Unifier(), dict[Term, Shape](), 0
        for term in (*equation.left, *equation.right):
            for part in subterms(term):
                if part in shapes:
                    continue
                count += 1
                if isinstance(part, str):
                    shapes[part] = (f"...{count}",)
                    continue
                operator = BY_NAME[part[0]]
                shapes[part] = _fresh(operator.output, count)
                for child, wanted in zip(part[1:], operator.inputs, strict=True):
                    unifier.unify(shapes[child], _fresh(wanted, count))
        for left, right in zip(equation.left, equation.right, strict=True):
            unifier.unify(shapes[left], shapes[right])
        term_shapes = {part: unifier.shape(shape) for part, shape in shapes.items()}
        return cls(_rename_sizes(term_shapes, variables(*equation.left, *equation.right)))

    def variables(self) -> dict[str, Shape]:
        """Shapes of the variables."""
        return {part: shape for part, shape in self.shapes.items() if isinstance(part, str)}

    def text(self) -> dict[str, str]:
        """The same, readable."""
        return {name: format_terms(shape) for name, shape in self.variables().items()}

    def names(self) -> list[str]:
        """All names of sizes and rows."""
        return list(dict.fromkeys(name for shape in self.shapes.values() for name in shape_names(shape)))


def _fresh(shape: Shape, number: int) -> Shape:
    def rename_size(size: Any) -> Any:
        if isinstance(size, str):
            return f"{size}{number}"
        return (size[0], *map(rename_size, size[1:])) if isinstance(size, tuple) else size

    return tuple(map(rename_size, shape))


def _rename_sizes(shapes: Mapping[Term, Shape], first: Sequence[str]) -> dict[Term, Shape]:
    """Sizes called d1, d2, ... and rows `...`, `...2`, in the order of the variables."""
    order = [name for part in (*first, *shapes) for name in shape_names(shapes[part])]
    rows, sizes = dict[str, Any](), dict[str, Any]()
    for name in order:
        if is_row(name):
            rows.setdefault(name, ("..." if not rows else f"...{len(rows) + 1}",))
        else:
            sizes.setdefault(name, f"d{len(sizes) + 1}")
    return {part: substitute(shape, {**rows, **sizes}) for part, shape in shapes.items()}


def is_directed(equation: Equation) -> bool:
    """Whether the left side can be replaced by the right one: it is no variable, and has all variables of the right."""
    return not any(isinstance(term, str) for term in equation.left) and set(variables(*equation.right)) <= set(
        variables(*equation.left)
    )
