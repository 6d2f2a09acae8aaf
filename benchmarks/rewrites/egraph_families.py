"""Random e-graphs for the extraction benchmark; each is a function of its size and seed."""

from __future__ import annotations

import random
from collections.abc import Callable

from bricolage.egraph.egraph import EGraph, NoAnalysis
from bricolage.egraph.extraction.extraction_problem import ExtractionNode, ExtractionProblem
from bricolage.egraph.saturate import EGraphRule, SaturationLimits, saturate
from bricolage.egraph.tree_pattern import Apply, Variable


def layered(nodes: int, seed: int) -> ExtractionProblem:
    """Acyclic, wide, much shared: up to four nodes a class, each with one to three children among the 30 classes before."""
    return _random(nodes, seed, backward=0.0)


def cyclic(nodes: int, seed: int) -> ExtractionProblem:
    """As `layered`, but one child in seven comes from the 30 classes after: nearly all classes lie on cycles."""
    return _random(nodes, seed, backward=0.15)


def _random(nodes: int, seed: int, backward: float) -> ExtractionProblem:
    chance = random.Random(seed)
    size = nodes * 2 // 5
    classes: list[list[ExtractionNode]] = []
    for number in range(size):
        alternatives = []
        for position in range(chance.randint(1, 4)):
            children = set()
            for _ in range(chance.randint(1, 3) if number else 0):
                # The first node has only earlier children, so that everything can be derived.
                if position and chance.random() < backward:
                    children.add(min(size - 1, number + chance.randint(1, 30)))
                else:
                    children.add(max(0, number - chance.randint(1, 30)))
            alternatives.append(ExtractionNode(chance.lognormvariate(0.0, 1.0), tuple(children)))
        classes.append(alternatives)
    return ExtractionProblem(tuple(tuple(each) for each in classes), (size - 1,))


def chains(nodes: int, seed: int) -> ExtractionProblem:
    """Every bracketing of products of ten matrices; the products overlap, so that they can share what they compute.

    The cost is the number of multiplications, in millions.
    """
    chance = random.Random(seed)
    length, step = 10, 4
    products = max(1, nodes // 120)
    sizes = [chance.choice((1, 8, 64, 128, 256, 512)) for _ in range(products * step + length + 1)]
    numbers: dict[tuple[int, int], int] = {}
    classes: list[list[ExtractionNode]] = []

    def product(low: int, high: int) -> int:
        if (low, high) not in numbers:
            alternatives = [ExtractionNode(0.0, ())] if high == low + 1 else []
            for middle in range(low + 1, high):
                cost = sizes[low] * sizes[middle] * sizes[high] / 1e6
                alternatives.append(ExtractionNode(cost, (product(low, middle), product(middle, high))))
            numbers[low, high] = len(classes)
            classes.append(alternatives)
        return numbers[low, high]

    roots = [product(step * index, step * index + length) for index in range(products)]
    return ExtractionProblem(tuple(tuple(each) for each in classes), tuple(roots))


def merges(nodes: int, seed: int) -> ExtractionProblem:
    """Blocks of parallel operators in a row, where any two of one kind may run as one on joined operands.

    Joining operators of which one needs the other closes a cycle, as Tensat's multi-pattern rules do.
    """
    chance = random.Random(seed)
    classes: list[list[ExtractionNode]] = [[ExtractionNode(0.0, ())]]

    def add(*alternatives: ExtractionNode) -> int:
        classes.append(list(alternatives))
        return len(classes) - 1

    source, made = 0, 1
    window: list[tuple[int, int, float]] = []
    while made < nodes:
        branches = []
        for _ in range(chance.randint(2, 4)):
            last = source
            for _ in range(chance.randint(1, 3)):
                cost = chance.uniform(0.1, 1.0)
                weights = add(ExtractionNode(0.0, ()))
                operator = add(ExtractionNode(cost, (last, weights)))
                for other, operand, other_cost in chance.sample(window, min(len(window), 4)):
                    joined = add(ExtractionNode(0.02 * chance.random(), (operand, last)))
                    both = add(ExtractionNode((cost + other_cost) * chance.uniform(0.6, 1.05), (joined,)))
                    split = add(ExtractionNode(0.0, (both,)))
                    classes[operator].append(ExtractionNode(0.0, (split,)))
                    classes[other].append(ExtractionNode(0.0, (split,)))
                    made += 5
                window.append((operator, last, cost))
                last = operator
                made += 2
            branches.append(last)
        window = window[-12:]
        source = add(ExtractionNode(0.01, tuple(dict.fromkeys(branches))))
        made += 1
    return ExtractionProblem(tuple(tuple(each) for each in classes), (source,))


def covers(nodes: int, seed: int) -> ExtractionProblem:
    """Set cover with three sets for each element: no structure helps here, the hard core of extraction."""
    chance = random.Random(seed)
    elements = nodes // 4
    sets = elements // 2
    classes: list[tuple[ExtractionNode, ...]] = [(ExtractionNode(chance.uniform(1.0, 2.0), ()),) for _ in range(sets)]
    classes += [
        tuple(ExtractionNode(0.0, (number,)) for number in chance.sample(range(sets), 3)) for _ in range(elements)
    ]
    classes.append((ExtractionNode(0.0, tuple(range(sets, sets + elements))),))
    return ExtractionProblem(tuple(classes), (len(classes) - 1,))


def polynomials(nodes: int, seed: int) -> ExtractionProblem:
    """Random polynomials, eight terms each, saturated with the laws of arithmetic until there are enough nodes.

    An addition costs 1 and a multiplication 4; polynomials of one e-graph share factors.
    """
    chance = random.Random(seed)
    x, y, z = Variable("x"), Variable("y"), Variable("z")
    rules: list[EGraphRule[None]] = []
    for sign in "+*":
        rules.append(EGraphRule(f"commute {sign}", (Apply(sign, (x, y)),), (Apply(sign, (y, x)),)))
        left, right = Apply(sign, (Apply(sign, (x, y)), z)), Apply(sign, (x, Apply(sign, (y, z))))
        rules.append(EGraphRule(f"associate {sign}", (left,), (right,)))
    product, total = Apply("*", (x, Apply("+", (y, z)))), Apply("+", (Apply("*", (x, y)), Apply("*", (x, z))))
    rules += [EGraphRule("distribute", (product,), (total,)), EGraphRule("factor", (total,), (product,))]
    egraph = EGraph(NoAnalysis())
    factors = [egraph.add(f"v{number}") for number in range(8)]
    roots = []
    for _ in range(max(1, nodes // 1_000)):
        terms = [egraph.add("*", chance.sample(factors, 2)) for _ in range(8)]
        while len(terms) > 1:
            terms.append(egraph.add("+", [terms.pop(0), terms.pop(0)]))
        roots += terms
    saturate(egraph, rules, SaturationLimits(nodes=nodes, seconds=600.0, matches=10**9))
    prices = {"+": 1.0, "*": 4.0}
    return egraph.snapshot(lambda _, node: prices.get(str(node.operator), 0.0), roots)[0]


FAMILIES: dict[str, Callable[[int, int], ExtractionProblem]] = {
    "layered": layered,
    "cyclic": cyclic,
    "chains": chains,
    "merges": merges,
    "covers": covers,
    "polynomials": polynomials,
}
