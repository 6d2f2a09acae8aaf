"""Unity's substitutions as choices of the programme: partition, combine, replicate and reduce, inner dimensions included. Each
computes what the whole graph computes, on numbers, and none is cheaper than the one that is found."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.training.contraction_layouts import contraction_layouts
from bricolage.device.collective import Ring
from bricolage.device.device import Link
from bricolage.search.sharding.layout_programme import best_sharding
from bricolage.search.sharding.layouts import REPLICATED, split_axis, splits
from bricolage.search.sharding.sharding_problem import DividedOperator, DividedTensor, ShardingProblem, Signature
from tests.search.sharding.problems import cost, least

WORKERS, SIZE = 2, 4
Parts = list[np.ndarray]


class Graph:
    """Square tensors; operators by name, as a problem and as numpy computes them."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.operators: list[DividedOperator] = []
        self.values: list[np.ndarray] = []

    def given(self, seed: int, *lying: str) -> int:
        ways = [Signature((), (way,), 0.0) for way in lying or (REPLICATED, *splits((SIZE, SIZE), WORKERS))]
        self.values.append(np.random.default_rng(seed).integers(-4, 5, (SIZE, SIZE)).astype(float))
        return self._add("given", (), ways)

    def call(self, name: str, *reads: int) -> int:
        expression, linear = {"mm": ("ab,bc->ac", True), "relu": ("ab->ab", False), "double": ("ab->ab", True)}.get(
            name, ("", True)
        )
        if name == "add":  # both are divided alike, or both are summands
            ways = [Signature((way, way), (way,), 0.5) for way in (REPLICATED, "P", "S(0)", "S(1)")]
        else:
            found = contraction_layouts(expression, dict.fromkeys("abc", SIZE), WORKERS, linear=linear)
            ways = [
                Signature(inputs, (out,), 8.0 if all(split_axis(one) is None for one in (*inputs, out)) else 4.0)
                for inputs, out in found
            ]
        self.values.append(COMPUTE[name](*(self.values[one] for one in reads)))
        return self._add(name, reads, ways)

    def _add(self, name: str, reads: tuple[int, ...], ways: list[Signature]) -> int:
        self.operators.append(DividedOperator(name, reads, (len(self.operators),), tuple(ways)))
        return len(self.operators) - 1

    def problem(self) -> ShardingProblem:
        tensors = tuple(DividedTensor(f"t{number}", 1e5) for number in range(len(self.operators)))
        return ShardingProblem(tuple(self.operators), tensors, Ring.described(WORKERS, self.link))

    def run(self, choices: tuple[int, ...]) -> list[np.ndarray]:
        """What the devices have in the end, whole, by tensor."""
        held: list[tuple[str, Parts]] = []
        for operator, choice in zip(self.operators, choices, strict=True):
            way = operator.signatures[choice]
            if not operator.reads:
                held.append((way.outputs[0], divided(self.values[len(held)], way.outputs[0])))
                continue
            inputs = [
                converted(*held[tensor], target) for tensor, target in zip(operator.reads, way.inputs, strict=True)
            ]
            outputs = [COMPUTE[operator.name](*(parts[device] for parts in inputs)) for device in range(WORKERS)]
            held.append((way.outputs[0], outputs))
        return [joined(*one) for one in held]


COMPUTE = {
    "mm": lambda a, b: a @ b,
    "add": lambda a, b: a + b,
    "relu": lambda a: np.maximum(a, 0.0),
    "double": lambda a: 2.0 * a,
}


def divided(whole: np.ndarray, layout: str) -> Parts:
    """Partition, or replicate; of summands the first device has it, the others zeros."""
    axis = split_axis(layout)
    if axis is not None:
        return np.split(whole, WORKERS, axis)
    return [whole if layout == "R" or not device else np.zeros_like(whole) for device in range(WORKERS)]


def joined(layout: str, parts: Parts) -> np.ndarray:
    """Combine, or reduce."""
    axis = split_axis(layout)
    return np.concatenate(parts, axis) if axis is not None else parts[0] if layout == "R" else sum(parts)


def converted(source: str, parts: Parts, target: str) -> Parts:
    return parts if source == target else divided(joined(source, parts), target)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Two given tensors, and up to three operators."""
    graph = Graph(Link(("0", "1"), draw(st.sampled_from((0.01, 1.0))), draw(st.sampled_from((1.0, 2000.0)))))
    graph.given(1), graph.given(2)
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(("mm", "mm", "add", "relu", "double")))
        some = st.integers(0, len(graph.operators) - 1)
        graph.call(name, *(draw(some) for _ in range(1 if name in ("relu", "double") else 2)))
    return graph


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_no_substitution_is_cheaper_and_each_is_right(graph: Graph) -> None:
    problem = graph.problem()
    found = best_sharding(problem)
    assert found.ms == pytest.approx(least(problem)) == pytest.approx(cost(problem, found.choices))
    for whole, computed in zip(graph.values, graph.run(found.choices), strict=True):
        assert np.array_equal(whole, computed)


def test_all_choices_of_a_product_with_a_sum_are_right() -> None:
    """Also those that partition the inner dimension: what is added to a sum of products has to become summands."""
    graph = Graph(Link(("0", "1"), 1.0))
    graph.call("add", graph.call("mm", graph.given(1), graph.given(2)), graph.given(3))
    problem, tried = graph.problem(), 0
    for choices in itertools.product(*(range(len(one.signatures)) for one in graph.operators)):
        if np.isfinite(cost(problem, choices)):
            tried += 1
            assert np.array_equal(graph.run(choices)[-1], graph.values[-1]), choices
    reduced = [way for way in graph.operators[-1].signatures if way.outputs == ("P",)]
    assert tried > 50 and reduced


def test_two_layers_are_partitioned_along_columns_and_rows_and_reduced_once() -> None:
    """Megatron's pair of weights that lie so, with what is added behind it: one reduction, of what the second product gives."""
    graph = Graph(Link(("0", "1"), 1e3, 1e3))
    inner = graph.call("relu", graph.call("mm", graph.given(1, "R"), graph.given(2, "S(1)")))
    second = graph.call("mm", inner, graph.given(3, "S(0)"))
    graph.call("relu", graph.call("add", second, graph.given(4, "R")))
    plan = best_sharding(graph.problem())
    way = graph.operators[second].signatures[plan.choices[second]]
    assert way.inputs == ("S(1)", "S(0)") and way.outputs == ("P",)
    assert 0.0 < plan.conversion_ms <= 1.01 * graph.problem().ring.all_reduce_ms(1e5)
