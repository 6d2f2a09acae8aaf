from __future__ import annotations

import math
import random
import time
from pathlib import Path

import pytest
from hypothesis import given, settings

from benchmarks.rewrites.egraph_families import FAMILIES, cyclic, merges
from benchmarks.rewrites.extraction import read_egraph
from bricolage.egraph.extraction.extraction_problem import ExtractionNode, ExtractionProblem, choice_cost, restrict
from bricolage.egraph.extraction.greedy import greedy_dag, greedy_tree, improve
from bricolage.egraph.extraction.landmarks import Landmarks
from bricolage.egraph.extraction.methods import ExtractionLimits, Method, extract
from bricolage.egraph.extraction.neighbourhood import refine
from bricolage.egraph.extraction.presolve import presolve
from bricolage.egraph.extraction.subproblem_search import SubProblemSearch
from bricolage.errors import BadExtractionProblem, MissingFile, NoExtraction
from tests.egraph.extraction.problems import brute_force, order_programme, problems

DATA = Path(__file__).parents[2] / "data" / "egraphs"
KNOWN = {"vgg_acyclic": 4.866774947848171, "resnet50_acyclic": 4.41599300802045}
METHODS: tuple[Method, ...] = ("tree", "dag", "exact", "anytime")


def valid(problem: ExtractionProblem, choice: dict[int, int]) -> bool:
    """Acyclic, and exactly what the roots need."""
    needed = restrict(problem, choice)
    return needed is not None and needed == choice and set(problem.roots) <= set(choice)


@given(problems())
@settings(max_examples=70, deadline=None)
def test_exact_equals_brute_force(problem: ExtractionProblem) -> None:
    best = brute_force(problem)
    if math.isinf(best):
        with pytest.raises(NoExtraction):
            extract(problem, "exact")
        return
    found = extract(problem, "exact")
    assert found.proven
    assert found.cost == pytest.approx(best, abs=1e-9)
    assert found.lower_bound == found.cost
    assert valid(problem, dict(found.choice))


@given(problems())
@settings(max_examples=40, deadline=None)
def test_every_method_is_valid_and_between_its_bounds(problem: ExtractionProblem) -> None:
    best = brute_force(problem)
    if math.isinf(best):
        for method in METHODS:
            with pytest.raises(NoExtraction):
                extract(problem, method)
        return
    for method in METHODS:
        found = extract(problem, method)
        assert valid(problem, dict(found.choice))
        assert found.cost == choice_cost(problem, found.choice)
        assert found.lower_bound <= best + 1e-9 <= found.cost + 2e-9
        assert not found.proven or found.cost == pytest.approx(best, abs=1e-8)


@given(problems())
@settings(max_examples=40, deadline=None)
def test_presolve_keeps_the_optimum(problem: ExtractionProblem) -> None:
    best = brute_force(problem)
    if math.isinf(best):
        return
    reduced = presolve(problem)
    rest = sum(brute_force(part.problem) for part in reduced.parts)
    assert reduced.constant + rest == pytest.approx(best, abs=1e-9)
    assert sum(part.problem.node_count for part in reduced.parts) <= problem.node_count


@given(problems())
@settings(max_examples=40, deadline=None)
def test_exact_without_presolve_and_relaxation_equals_brute_force(problem: ExtractionProblem) -> None:
    """The program alone must cope with cycles, which presolve usually removes from graphs this small."""
    best = brute_force(problem)
    if math.isinf(best):
        return
    whole = presolve(problem, deadline=-math.inf)
    found = whole.constant
    for part in whole.parts:
        search = SubProblemSearch(part)
        while search.step_program(time.monotonic() + 60.0):
            pass
        assert search.proven
        found += search.cost
    assert found == pytest.approx(best, abs=1e-9)


@pytest.mark.thinned("seed")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("family", "size"), [("cyclic", 60), ("layered", 70), ("merges", 50)])
def test_exact_equals_the_programme_with_order_variables(family: str, size: int, seed: int) -> None:
    problem = FAMILIES[family](size, seed)
    found = extract(problem, "exact", ExtractionLimits(60.0))
    assert found.proven
    assert found.cost == pytest.approx(order_programme(problem), rel=1e-6)


@given(problems())
@settings(max_examples=40, deadline=None)
def test_every_landmark_is_hit_by_every_extraction(problem: ExtractionProblem) -> None:
    best = brute_force(problem)
    if math.isinf(best):
        return
    graph = Landmarks(problem)
    ascent = graph.ascend(problem.roots, math.inf)
    assert ascent.bound <= best + 1e-9
    landmarks = [
        (root, graph.separate(root, sorted(range(len(graph.owner)), key=graph.cost.__getitem__), 0))
        for root in problem.roots
    ]
    for method in METHODS:
        choice = extract(problem, method).choice
        chosen = {node for node, owner in enumerate(graph.owner) if choice.get(owner) == graph.position[node]}
        for _, landmark in [*ascent.landmarks, *landmarks]:
            assert landmark is not None
            assert chosen & set(landmark)


@given(problems())
@settings(max_examples=40, deadline=None)
def test_neighbourhoods_never_make_it_worse(problem: ExtractionProblem) -> None:
    best = brute_force(problem)
    if math.isinf(best):
        return
    start = greedy_tree(problem)
    assert choice_cost(problem, improve(problem, start)) <= choice_cost(problem, start)
    refined = refine(problem, start, time.monotonic() + 0.02, random.Random(0))
    assert valid(problem, refined)
    assert best - 1e-9 <= choice_cost(problem, refined) <= choice_cost(problem, start)


@pytest.mark.parametrize("name", KNOWN)
def test_known_optima(name: str) -> None:
    found = extract(read_egraph(DATA / f"{name}.json"), "exact", ExtractionLimits(60.0))
    assert found.proven
    assert found.cost == pytest.approx(KNOWN[name], abs=1e-12)


@pytest.mark.parametrize(("name", "greedy"), [("vgg", 4.8508), ("resnet50", 4.3969)])
def test_cyclic_instances_are_proven_and_no_worse_than_greedy(name: str, greedy: float) -> None:
    problem = read_egraph(DATA / f"{name}.json")
    found = extract(problem, "exact", ExtractionLimits(120.0))
    assert found.proven
    assert valid(problem, dict(found.choice))
    assert found.cost <= min(choice_cost(problem, greedy_dag(problem)), choice_cost(problem, greedy_tree(problem)))
    assert found.cost <= greedy


@pytest.mark.parametrize("family", FAMILIES)
def test_families_better_than_greedy_within_bounds(family: str) -> None:
    problem = FAMILIES[family](400, 1)
    greedy = min(extract(problem, "tree").cost, extract(problem, "dag").cost)
    for seconds in (0.2, 1.0, 5.0):  # a busy machine may take the first ones away before any search begins
        found = extract(problem, "anytime", ExtractionLimits(seconds))
        assert valid(problem, dict(found.choice)) and found.lower_bound <= found.cost
        if found.cost <= greedy:
            break
    assert found.cost <= greedy


@pytest.mark.slow  # four seconds of search; what `anytime` gives is tested above
def test_anytime_leaves_the_greedy_behind_where_a_proof_takes_too_long() -> None:
    problem = cyclic(1500, 0)
    greedy = min(extract(problem, "tree").cost, extract(problem, "dag").cost)
    found = extract(problem, "anytime", ExtractionLimits(4.0))
    assert valid(problem, dict(found.choice))
    assert 0.0 < found.lower_bound < found.cost < 0.95 * greedy


def test_no_time_still_gives_a_choice_and_a_bound() -> None:
    problem = merges(500, 0)
    found = extract(problem, "anytime", ExtractionLimits(0.0))
    assert valid(problem, dict(found.choice))
    assert 0.0 <= found.lower_bound <= found.cost
    assert not found.proven


def test_sharing_is_paid_once_and_cycles_are_refused() -> None:
    # Two users of class 3: alone each would take its own cheap leaf, together the shared one is cheaper.
    shared = ExtractionProblem(
        (
            (ExtractionNode(0.0, (1, 2)),),
            (ExtractionNode(3.0, ()), ExtractionNode(0.0, (3,))),
            (ExtractionNode(3.0, ()), ExtractionNode(0.0, (3,))),
            (ExtractionNode(4.0, ()),),
        ),
        (0,),
    )
    assert extract(shared, "tree").cost == 6.0
    assert extract(shared, "exact").cost == 4.0
    # 0 and 1 are free as long as they lean on each other.
    leaning = ExtractionProblem(
        ((ExtractionNode(0.0, (1,)), ExtractionNode(5.0, ())), (ExtractionNode(0.0, (0,)), ExtractionNode(7.0, ()))),
        (0, 1),
    )
    assert extract(leaning, "exact").cost == 5.0
    with pytest.raises(NoExtraction, match="class 0"):
        extract(ExtractionProblem(((ExtractionNode(0.0, (1,)),), (ExtractionNode(0.0, (0,)),)), (0,)))


def test_trees_too_large_for_a_float() -> None:
    """Each class needs the one before it twice over, through two others: the tree doubles at every step."""
    classes: list[tuple[ExtractionNode, ...]] = [(ExtractionNode(1.0, ()),)]
    for _ in range(1_030):
        low = len(classes) - 1
        classes += [
            (ExtractionNode(1.0, (low,)),),
            (ExtractionNode(2.0, (low,)),),
            (ExtractionNode(1.0, (low + 1, low + 2)),),
        ]
    problem = ExtractionProblem(tuple(classes), (len(classes) - 1,))
    for method in METHODS:
        assert extract(problem, method).cost == 1.0 + 4.0 * 1_030


def test_bad_problems_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadExtractionProblem, match="costs -1"):
        ExtractionProblem(((ExtractionNode(-1.0, ()),),), (0,))
    with pytest.raises(BadExtractionProblem, match="costs nan"):
        ExtractionProblem(((ExtractionNode(math.nan, ()),),), (0,))
    with pytest.raises(BadExtractionProblem, match="needs class 1"):
        ExtractionProblem(((ExtractionNode(1.0, (1,)),),), (0,))
    with pytest.raises(BadExtractionProblem, match="names class 3"):
        ExtractionProblem(((ExtractionNode(1.0, ()),),), (3,))
    with pytest.raises(MissingFile):
        read_egraph(tmp_path / "absent.json")
    for number, text in enumerate(["", "[]", '{"nodes": {"a": {}}}', '{"nodes": {}}']):
        path = tmp_path / f"{number}.json"
        path.write_text(text, encoding="utf-8")
        with pytest.raises(BadExtractionProblem, match="not a serialised e-graph"):
            read_egraph(path)
