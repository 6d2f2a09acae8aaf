"""The search of one part of a presolved problem: an incumbent that only improves and a bound that only rises.

`prove` is exact. It raises the bound by landmarks, then by the linear relaxation with landmarks as cuts, throws out nodes
whose reduced cost says that they are in no better solution, and lastly solves the binary program; while its answer has
a cycle, landmarks that the answer misses are added and it is solved again.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from bricolage.egraph.extraction.extraction_problem import choice_cost, restrict, strong_components
from bricolage.egraph.extraction.greedy import greedy_dag, greedy_tree, improve
from bricolage.egraph.extraction.ilp import IntegerProgram, IntegerSolution
from bricolage.egraph.extraction.landmarks import Landmarks
from bricolage.egraph.extraction.presolve import SubProblem

PRECISE = 1e-9
"""Relative difference between cost and bound that counts as none; HiGHS computes in float64 with tolerances."""
_WIDEST_DAG = 20_000  # classes; greedy on the DAG takes quadratic time and memory
_ASCENT_SHARE = 0.3  # of the time
_TARGETS = 24  # landmarks sought after each solution of the relaxation
_LEAST_RISE = 1e-4  # of the bound in one round of the relaxation; below, the binary program takes over


class SubProblemSearch:
    """Holds `best` (an acyclic choice), its `cost`, and `bound`. Deadlines are those of `time.monotonic()`."""

    def __init__(self, part: SubProblem, deadline: float = math.inf) -> None:
        self._part = part
        self._deadline = deadline
        self.problem = problem = part.problem
        tried = [greedy_tree(problem)]
        if len(problem.classes) <= _WIDEST_DAG and time.monotonic() < deadline:
            tried.append(greedy_dag(problem))
        self.best = improve(problem, min(tried, key=lambda choice: choice_cost(problem, choice)), deadline)
        self.cost = choice_cost(problem, self.best)
        self.bound = 0.0
        self._graph = Landmarks(problem)
        self._landmarks: list[tuple[int, list[int]]] = []
        self._allowed: npt.NDArray[np.bool_] = np.ones(len(self._graph.owner), np.bool_)
        self._costs = np.array(self._graph.cost)

    @property
    def proven(self) -> bool:
        """Whether the bound shows that the incumbent is optimal, up to rounding."""
        return self.cost - self.bound <= PRECISE * self.cost

    def chosen(self) -> dict[int, int]:
        """The best choice, in terms of the problem that the part comes from."""
        return self._part.chosen(self.best)

    def prove(self, deadline: float) -> None:
        """Until the incumbent is proven optimal or time is over."""
        self.ascend(time.monotonic() + _ASCENT_SHARE * (deadline - time.monotonic()))
        if not self.proven:
            self._relax(deadline)
        while not self.proven and self.step_program(deadline):
            pass

    def step_program(self, deadline: float) -> bool:
        """Solves the binary program once and cuts off the cycles of its answer; whether there is reason to go on."""
        solved = self._program.solve(self._allowed, deadline - time.monotonic())
        # The nodes left out are in no solution below the incumbent, so the bound holds up to its cost.
        self._raise_bound(min(solved.bound, self.cost))
        return self._take(solved)

    def ascend(self, deadline: float) -> None:
        """A first bound, from landmarks alone; and what they leave of the costs shows where to look for a choice."""
        ascent = self._graph.ascend(self.problem.roots, deadline)
        self._raise_bound(ascent.bound)
        self._derive(ascent.left)
        self._landmarks = ascent.landmarks

    @cached_property
    def _program(self) -> IntegerProgram:
        program = IntegerProgram(self._graph, self.problem.roots, self.cost or 1.0)
        for root, landmark in self._landmarks:
            program.cut(root, landmark)
        return program

    def _raise_bound(self, bound: float) -> None:
        self.bound = max(self.bound, bound)

    def offer(self, choice: dict[int, int]) -> None:
        """Takes an acyclic choice for the incumbent if it is better."""
        cost = choice_cost(self.problem, choice)
        if cost < self.cost:
            self.best, self.cost = choice, cost

    def _relax(self, deadline: float) -> None:
        last = -math.inf
        chance = random.Random(0)
        while not self.proven and time.monotonic() < deadline:
            relaxed = self._program.relax(self._allowed, deadline - time.monotonic())
            if relaxed is None:
                return
            self._raise_bound(min(relaxed.value, self.cost))
            self._repair(relaxed.x)
            # In any solution with such a node the cost is at least value + reduced.
            slack = self.cost - relaxed.value + PRECISE * self.cost
            self._allowed &= relaxed.reduced <= slack
            if relaxed.value - last < _LEAST_RISE * self.cost:
                return
            last = relaxed.value
            if not self._cut_relaxed(relaxed.x, relaxed.y, deadline, chance):
                return

    def _cut_relaxed(
        self, x: npt.NDArray[np.float64], y: npt.NDArray[np.float64], deadline: float, chance: random.Random
    ) -> bool:
        """Adds landmarks that this solution of the relaxation misses; whether there were any."""
        order = np.lexsort((self._costs, -x)).tolist()
        added = False
        for threshold in (0.5, 0.1, 1e-6):
            derived = self._graph.derived(np.flatnonzero(x >= threshold).tolist())
            targets = [c for c in range(len(derived)) if y[c] > threshold and not derived[c]]
            for target in chance.sample(targets, min(_TARGETS, len(targets))):
                if time.monotonic() > deadline:
                    return added
                landmark = self._graph.separate(target, order, 0)
                if landmark is not None and x[landmark].sum() < y[target] - 0.01:
                    self._program.cut(target, landmark)
                    added = True
        return added

    def _repair(self, x: npt.NDArray[np.float64]) -> None:
        """The tree-greedy choice where what the relaxation chose is cheap."""
        self._derive((self._costs * (1.0 - np.clip(x, 0.0, 1.0))).tolist())

    def _derive(self, discounted: list[float]) -> None:
        """Offers the choice that is tree-greedy by these costs of nodes."""
        costs = [[discounted[node] for node in nodes] for nodes in self._graph.nodes_of]
        self.offer(improve(self.problem, greedy_tree(self.problem, costs), self._deadline))

    def _take(self, solved: IntegerSolution) -> bool:
        """Offers an acyclic solution, or repairs a cyclic one and cuts it off; whether there is reason to go on."""
        if solved.nodes is None:
            return False
        graph = self._graph
        choice = {graph.owner[node]: graph.position[node] for node in solved.nodes}
        acyclic = restrict(self.problem, choice)
        if acyclic is not None:
            self.offer(acyclic)
            return False
        x = np.zeros(len(graph.owner))
        x[solved.nodes] = 1.0
        self._repair(x)
        order = np.lexsort((self._costs, -x)).tolist()
        for target in self._cyclic(choice):
            landmark = graph.separate(target, order, len(solved.nodes))
            if landmark is not None:
                self._program.cut(target, landmark)
        return solved.optimal

    def _cyclic(self, choice: dict[int, int]) -> Sequence[int]:
        """The roots and the classes on cycles of `choice`."""
        successors = [
            self.problem.classes[number][choice[number]].children if number in choice else ()
            for number in range(len(self.problem.classes))
        ]
        component = strong_components(successors)
        sizes = np.bincount(component)
        return sorted({*self.problem.roots, *(n for n, home in enumerate(component) if sizes[home] > 1)})
