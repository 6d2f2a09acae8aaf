"""From grammars to rules: enumerate, test at other shapes, prune what follows from smaller rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from bricolage.base.progress import Progress, Silent
from bricolage.equations.evaluate_term import is_equal
from bricolage.equations.term import Equation, Term, Terms, format_term, subterms, variables
from bricolage.equations.term_shapes import IllTyped
from bricolage.equations.vocabulary import BY_NAME
from bricolage.rulemaking.rulegen.derive import TypedRule, derivable, rules_of
from bricolage.rulemaking.rulegen.enumerate import Enumeration
from bricolage.rulemaking.rulegen.grammars import GRAMMARS, Grammar


@dataclass
class GenerationResult:
    """What a generation found. All equations are canonical; none is an instance of another."""

    rules: list[Equation] = field(default_factory=list)
    """They follow from none of those before them."""
    derived: list[Equation] = field(default_factory=list)
    """They follow from the rules."""
    visited: int = 0
    """Terms that were evaluated."""
    candidates: int = 0
    """Pairs of terms with equal fingerprints, up to the names of variables."""
    false: int = 0
    """Candidates that differ at other shapes."""
    instances: int = 0
    """Candidates that are instances of others."""
    unproved: int = 0
    """Candidates that follow from no rule and for which there is no proof: they are left out."""


def generate_equations(
    grammars: Sequence[Grammar] = GRAMMARS,
    *,
    max_operators: int = 4,
    seed: int = 0,
    proved: Callable[[Equation], bool] = lambda _: True,
    progress: Progress | None = None,
) -> GenerationResult:
    """Enumerates the grammars, with at most `max_operators` operators on a side. The same arguments give the same rules.

    Only what `proved` says yes to becomes a rule.
    """
    progress = progress or Silent()
    generation_result = GenerationResult()
    selection = _Selection(generation_result, proved)
    progress.start("enumerating", len(grammars))
    candidates: dict[str, Equation] = {}
    for grammar in grammars:
        limited = replace(grammar, max_operators=min(max_operators, grammar.max_operators))
        enumeration = Enumeration(limited, seed).run()
        generation_result.visited += enumeration.visited
        for equation in enumeration.equations:
            candidates.setdefault(str(_rename_variables(equation)), equation)
        progress.advance(1, grammar.name)
    progress.finish()
    generation_result.candidates = len(candidates)
    ordered = sorted(candidates.items(), key=lambda item: (*_weight(item[1]), item[0]))
    progress.start("pruning", len(ordered))
    for _, equation in ordered:
        selection.consider(equation)
        progress.advance(1, f"{len(generation_result.rules)} rules")
    progress.finish()
    pairs = sorted(_pairs(generation_result, max_operators), key=lambda pair: (*_weight(pair), str(pair)))
    progress.start("rules with two roots", len(pairs))
    for equation in pairs:
        selection.consider(equation)
        progress.advance(1, f"{len(generation_result.rules)} rules")
    progress.finish()
    return generation_result


def _weight(equation: Equation) -> tuple[int, int, int]:
    """Small equations first, and of those that differ in variables alone, the more general; so operators count as often as they
    are written."""
    written = [sum(not isinstance(part, str) for term in side for part in subterms(term)) for side in _sides(equation)]
    return max(written), sum(written), -len(variables(*equation.left, *equation.right))


def _sides(equation: Equation) -> tuple[Terms, Terms]:
    return equation.left, equation.right


def _rename_variables(equation: Equation) -> Equation:
    """A cheap stand-in for the canonical equation, equal for most of those that differ in names alone."""
    order = variables(*equation.left, *equation.right)
    names = {name: f"x{i}" for i, name in enumerate(order, 1)}

    def visit(term: Term) -> Term:
        if isinstance(term, str):
            return names[term]
        children = [visit(child) for child in term[1:]]
        return (term[0], *(sorted(children, key=format_term) if BY_NAME[term[0]].commutative else children))

    return Equation(tuple(map(visit, equation.left)), tuple(map(visit, equation.right)))


class _Selection:
    """Sorts equations, small ones first, into rules and what follows from them."""

    def __init__(self, found: GenerationResult, proved: Callable[[Equation], bool]) -> None:
        self._found = found
        self._proved = proved
        self._listed: dict[tuple[str, str], list[Equation]] = {}
        self._rules: list[TypedRule] = []

    def consider(self, equation: Equation) -> None:
        if any(equation.instance_of(other) for other in self._similar(equation)):
            self._found.instances += 1
            return
        if not _true(equation):
            self._found.false += 1
            return
        equation = equation.canonical
        if derivable(equation, self._rules):
            self._found.derived.append(equation)
        elif not self._proved(equation):
            self._found.unproved += 1
            return
        else:
            self._found.rules.append(equation)
            self._rules += rules_of(equation, str(equation))
        self._listed.setdefault(_roots(equation), []).append(equation)

    def _similar(self, equation: Equation) -> Iterator[Equation]:
        left, right = _roots(equation)
        for key in dict.fromkeys([(left, right), (right, left), (left, ""), ("", left), ("", right), (right, "")]):
            yield from self._listed.get(key, ())


def _roots(equation: Equation) -> tuple[str, str]:
    """The operators at the (first) roots, "" for a variable."""
    left, right = ("" if isinstance(side[0], str) else str(side[0][0]) for side in (equation.left, equation.right))
    return left, right


def _true(equation: Equation) -> bool:
    try:
        return is_equal(equation)
    except IllTyped:
        return False


def _pairs(found: GenerationResult, max_operators: int) -> Iterator[Equation]:
    """Rules with two roots: where both parts of a split equal something without it, these are parts of one term.

    matmul(x, v) = split_0(t) and matmul(x, w) = split_1(t) with t = matmul(x, concat(v, w)) is how parallel products are merged.
    The equations of one part have other names than those of the other, so they are brought together through t.
    """
    parts: dict[str, dict[str, list[tuple[Term, Term]]]] = {}
    for equation in (*found.rules, *found.derived):
        for part_term, other in ((equation.left[0], equation.right[0]), (equation.right[0], equation.left[0])):
            if isinstance(part_term, str) or isinstance(other, str) or not BY_NAME[part_term[0]].node:
                continue
            whole = _rename_variables(Equation((part_term[1],), (other,)))
            parts.setdefault(format_term(whole.left[0]), {}).setdefault(part_term[0], []).append(
                (whole.left[0], whole.right[0])
            )
    for by_part in parts.values():
        for name, firsts in by_part.items():
            if not name.endswith("_0"):
                continue
            second = f"{name[:-1]}1"
            for term, a in firsts:
                for _, b in by_part.get(second, ()):
                    pair = Equation((a, b), ((name, term), (second, term)))
                    shared = set(variables(a)) & set(variables(b))
                    complete = set(variables(term)) == set(variables(a, b))
                    if a != b and shared and complete and pair.size <= max_operators:
                        yield pair
