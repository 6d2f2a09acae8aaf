from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.egraph.egraph import EGraph, ENode, NoAnalysis
from bricolage.egraph.extraction.extraction_problem import ExtractionProblem, strong_components
from bricolage.egraph.extraction.methods import extract
from bricolage.egraph.saturate import EGraphRule, SaturationLimits, saturate
from bricolage.egraph.tree_pattern import AnyOperator, Apply, EGraphMatch, OperatorIndex, Term, Variable
from bricolage.errors import BadRule

X, Y, Z = Variable("x"), Variable("y"), Variable("z")


def plus(left: Term, right: Term) -> Apply:
    return Apply("+", (left, right))


def times(left: Term, right: Term) -> Apply:
    return Apply("*", (left, right))


ALGEBRA = [
    EGraphRule("commute +", (plus(X, Y),), (plus(Y, X),)),
    EGraphRule("commute *", (times(X, Y),), (times(Y, X),)),
    EGraphRule("associate +", (plus(plus(X, Y), Z),), (plus(X, plus(Y, Z)),)),
    EGraphRule("associate *", (times(times(X, Y), Z),), (times(X, times(Y, Z)),)),
    EGraphRule("distribute", (times(X, plus(Y, Z)),), (plus(times(X, Y), times(X, Z)),)),
    EGraphRule("factor", (plus(times(X, Y), times(X, Z)),), (times(X, plus(Y, Z)),)),
]

Expression = str | tuple[str, "Expression", "Expression"]
EXPRESSIONS = st.recursive(
    st.sampled_from(["p", "q", "r"]), lambda inner: st.tuples(st.sampled_from("+*"), inner, inner), max_leaves=4
)


def add(egraph: EGraph[None], term: Expression) -> int:
    if isinstance(term, str):
        return egraph.add(term)
    return egraph.add(term[0], [add(egraph, term[1]), add(egraph, term[2])])


def value(term: Expression, point: dict[str, int]) -> int:
    if isinstance(term, str):
        return point[term]
    left, right = value(term[1], point), value(term[2], point)
    return left + right if term[0] == "+" else left * right


def steps(term: Expression) -> Iterator[Expression]:
    """All terms one application of a rule of ALGEBRA away."""
    if isinstance(term, str):
        return
    operator, left, right = term
    yield (operator, right, left)
    if not isinstance(left, str) and left[0] == operator:
        yield (operator, left[1], (operator, left[2], right))
    if operator == "*" and not isinstance(right, str) and right[0] == "+":
        yield ("+", ("*", left, right[1]), ("*", left, right[2]))
    if operator == "+" and not isinstance(left, str) and not isinstance(right, str):  # noqa: SIM102
        if left[0] == right[0] == "*" and left[1] == right[1]:
            yield ("*", left[1], ("+", left[2], right[2]))
    yield from ((operator, other, right) for other in steps(left))
    yield from ((operator, left, other) for other in steps(right))


def operators(term: Expression) -> set[Expression]:
    """The distinct operations of a term: what it costs when equal parts are computed once."""
    return set() if isinstance(term, str) else {term} | operators(term[1]) | operators(term[2])


def reachable(term: Expression, most: int) -> set[Expression] | None:
    """All terms that rules lead to; None when they are more than `most`."""
    found, border = {term}, [term]
    while border:
        for other in steps(border.pop()):
            if other not in found:
                found.add(other)
                border.append(other)
        if len(found) > most:
            return None
    return found


def cost(number: int, node: ENode) -> float:
    return 1.0 if node.children else 0.0


@given(EXPRESSIONS)
@settings(max_examples=60, deadline=None)
def test_saturation_finds_what_brute_force_finds(term: Expression) -> None:
    equal = reachable(term, 3_000)
    if equal is None:
        return
    egraph = EGraph(NoAnalysis())
    root = add(egraph, term)
    done = saturate(egraph, ALGEBRA, SaturationLimits(rounds=50, nodes=20_000, seconds=60.0, matches=10**9))
    assert done.stop == "saturated"
    for other in sorted(equal, key=repr)[:200]:
        assert egraph.find(add(egraph, other)) == egraph.find(root)
    problem, _ = egraph.snapshot(cost, [root])
    found = extract(problem, "exact")
    # Saturation may use equalities under others that single steps do not show, so it may do better, never worse.
    assert found.cost <= min(len(operators(other)) for other in equal)


@given(EXPRESSIONS)
@settings(max_examples=60, deadline=None)
def test_what_is_extracted_computes_the_same(term: Expression) -> None:
    egraph = EGraph(NoAnalysis())
    root = add(egraph, term)
    saturate(egraph, ALGEBRA, SaturationLimits(rounds=4, nodes=400, seconds=60.0))
    problem, _ = egraph.snapshot(cost, [root])
    choice = extract(problem, "exact").choice

    def read(number: int) -> Expression:
        node = problem.classes[number][choice[number]]
        assert isinstance(node.key, ENode)
        name = str(node.key.operator)
        place = {egraph.find(n): p for p, n in enumerate(egraph.classes())}
        below = [read(place[egraph.find(child)]) for child in node.key.children]
        return (name, below[0], below[1]) if below else name

    for numbers in itertools.product((2, 3, 7), repeat=3):
        point = dict(zip("pqr", numbers, strict=True))
        assert value(read(problem.roots[0]), point) == value(term, point)


def cyclic(problem: ExtractionProblem) -> bool:
    edges = [{child for node in nodes for child in node.children} for nodes in problem.classes]
    return len(set(strong_components(edges))) < len(edges) or any(n in below for n, below in enumerate(edges))


GROWING = [
    *ALGEBRA,
    EGraphRule("zero", (plus(X, Apply("0")),), (X,)),
    EGraphRule("idempotent", (times(X, X),), (X,)),
    EGraphRule("absorb", (plus(X, times(X, Y)),), (X,)),
]


def test_cycles_appear_and_extraction_avoids_them() -> None:
    egraph = EGraph(NoAnalysis())
    root = add(egraph, ("+", ("*", "p", "p"), "0"))
    saturate(egraph, GROWING, SaturationLimits(rounds=3))
    problem, _ = egraph.snapshot(cost, [root])
    assert cyclic(problem)
    assert extract(problem, "exact").cost == 0.0


def test_variables_that_occur_twice_bind_one_class() -> None:
    egraph = EGraph(NoAnalysis())
    p, q = egraph.add("p"), egraph.add("q")
    pp, pq = egraph.add("*", [p, p]), egraph.add("*", [p, q])
    assert [match.roots for match in OperatorIndex(egraph).matches([times(X, X)])] == [(pp,)]
    egraph.merge(p, q)
    egraph.rebuild()
    assert egraph.find(pp) == egraph.find(pq)
    assert [match.roots for match in OperatorIndex(egraph).matches([times(X, X)])] == [(egraph.find(pp),)]


def test_patterns_join_on_shared_variables_and_operators() -> None:
    egraph = EGraph(NoAnalysis())
    p, q, r = (egraph.add(name) for name in "pqr")
    first = egraph.add(("conv", 3), [p, q])
    second = egraph.add(("conv", 3), [p, r])
    egraph.add(("conv", 1), [p, r])
    egraph.add(("conv", 3), [q, r])
    conv = AnyOperator("conv", lambda key: isinstance(key, tuple) and key[0] == "conv")
    pair = [Apply(conv, (X, Y)), Apply(conv, (X, Z))]
    found = {match.roots for match in OperatorIndex(egraph).matches(pair) if match.class_of("y") < match.class_of("z")}
    assert found == {(first, second)}


def test_multi_patterns_merge_operators_in_the_first_rounds_only() -> None:
    """Two products that share an operand become halves of one product, as with Tensat."""

    def distinct(egraph: EGraph[None], match: EGraphMatch) -> bool:
        return egraph.find(match.class_of("y")) < egraph.find(match.class_of("z"))

    joined = Apply("matmul", (X, Apply("concat", (Y, Z))))
    rule = EGraphRule(
        "merge matmuls",
        (Apply("matmul", (X, Y)), Apply("matmul", (X, Z))),
        (Apply("first", (joined,)), Apply("second", (joined,))),
        distinct,
    )
    prices = {"matmul": 10.0, "concat": 0.5, "pair": 0.0}
    for rounds, expected in ((0, 20.0), (1, 10.5)):
        egraph = EGraph(NoAnalysis())
        x, a, b = (egraph.add(name) for name in "xab")
        root = egraph.add("pair", [egraph.add("matmul", [x, a]), egraph.add("matmul", [x, b])])
        done = saturate(egraph, [rule], SaturationLimits(multi_rounds=rounds))
        assert done.stop == "saturated"
        assert done.applied == ({"merge matmuls": 1} if rounds else {})
        problem, _ = egraph.snapshot(lambda _, node: prices.get(str(node.operator), 0.0), [root])
        assert extract(problem, "exact").cost == expected


def test_reasons_to_stop() -> None:
    def run(**limits: object) -> str:
        egraph = EGraph(NoAnalysis())
        add(egraph, ("+", "p", ("+", "q", ("+", "r", ("+", "s", "t")))))
        done = saturate(egraph, ALGEBRA, SaturationLimits(**limits))  # type: ignore[arg-type]
        assert egraph.class_count == len(list(egraph.classes()))
        return done.stop

    assert run() == "saturated"
    assert run(rounds=2) == "rounds"
    assert run(nodes=20) == "nodes"
    assert run(seconds=0.0) == "seconds"
    assert run(applications=3) == "applications"


def test_applications_are_counted_exactly() -> None:
    for most in range(5):
        egraph = EGraph(NoAnalysis())
        add(egraph, ("+", "p", ("+", "q", ("+", "r", "s"))))
        done = saturate(egraph, ALGEBRA, SaturationLimits(applications=most))
        assert sum(done.applied.values()) == most


def test_rules_with_too_many_matches_are_banned_and_come_back() -> None:
    egraph = EGraph(NoAnalysis())
    add(egraph, ("+", "p", ("+", "q", ("+", "r", "s"))))
    done = saturate(egraph, ALGEBRA, SaturationLimits(matches=4, ban_rounds=1, rounds=60))
    assert any(each.banned for each in done.rounds)
    assert done.stop == "saturated"
    again = EGraph(NoAnalysis())
    add(again, ("+", "p", ("+", "q", ("+", "r", "s"))))
    saturate(again, ALGEBRA)
    assert (again.node_count, again.class_count) == (egraph.node_count, egraph.class_count)


def test_functions_on_the_right_build_or_decline() -> None:
    """Folding of constants, whose operators are the numbers themselves."""

    def fold(egraph: EGraph[None], match: EGraphMatch) -> list[int] | None:
        numbers = []
        for name in ("x", "y"):
            constants = [node.operator for node in egraph.nodes(match.class_of(name)) if isinstance(node.operator, int)]
            if not constants:
                return None
            numbers.append(constants[0])
        return [egraph.add(sum(numbers))]

    egraph = EGraph(NoAnalysis())
    p, one, two = egraph.add("p"), egraph.add(1), egraph.add(2)
    root = egraph.add("+", [egraph.add("+", [p, one]), two])
    saturate(egraph, [*ALGEBRA, EGraphRule("fold", (plus(X, Y),), fold)])
    assert egraph.find(egraph.add("+", [p, egraph.add(3)])) == egraph.find(root)


def test_bad_rules_are_refused() -> None:
    with pytest.raises(BadRule, match="y is not bound"):
        EGraphRule("bad", (Apply("f", (X,)),), (Y,))
    with pytest.raises(BadRule, match="2 patterns, 1 terms"):
        EGraphRule("bad", (Apply("f", (X,)), Apply("g", (X,))), (X,))
    with pytest.raises(BadRule, match="no pattern"):
        EGraphRule("bad", (), ())
