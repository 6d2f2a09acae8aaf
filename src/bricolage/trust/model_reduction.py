"""The least model, shapes and numbers that still show a fault in the same way.

Operators go first, by delta debugging: what a cut leaves open gets the values of the float64 reference. Then outputs, dimensions,
numbers and attributes are made smaller one at a time, as long as that leads anywhere. Nothing is drawn at random, so the same
fault gives the same model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from bricolage.backends.reference import REFERENCE
from bricolage.base.budget import choose_seconds
from bricolage.base.deadline import Deadline
from bricolage.base.progress import Progress
from bricolage.errors import BricolageError, EndlessRewriting, NoReference
from bricolage.graph.extract import extract_region
from bricolage.graph.graph import Graph, Region
from bricolage.graph.identity import Identities
from bricolage.graph.prepare import simplify
from bricolage.graph.store import Store
from bricolage.plan.program_step import Step
from bricolage.rewrite.catalogue import rules
from bricolage.rewrite.engine.apply import apply_everywhere
from bricolage.rewrite.rule import Rule
from bricolage.search.isolate import Finding, Remembered, Subset, isolate_faults
from bricolage.trust.bisect import Diagnosis, FaultyChange
from bricolage.trust.case import FaultCase, fewer_outputs, simpler_attributes, simpler_values, smaller_shapes
from bricolage.trust.changed_program import SubjectProgram
from bricolage.trust.probe import Prober, Verdict
from bricolage.trust.workplace import Workplace
from bricolage.verify.oracle import Oracle
from bricolage.work import bits
from bricolage.work.implementation import Implementation

_CLEARLY = 10.0
"""Times the bound; a model whose error is less than this, and less than at first, may be another fault's."""


@dataclass(frozen=True)
class Suspect:
    """Who answers wrong: an implementation, or a rule that is applied wherever it can be before the reference runs the model."""

    implementation: Implementation
    rule: Rule | None = None


@dataclass(frozen=True)
class Reduced:
    """The least case that was found."""

    case: FaultCase
    suspect: Suspect
    verdict: Verdict
    before: int
    """Operators at first."""
    tried: int
    finished: bool
    """Whether nothing smaller is left to try; otherwise the time was up."""


class Reducer:
    """Makes cases smaller for one suspect."""

    def __init__(
        self, suspect: Suspect, prober: Prober, store: Store, bound: float, stop: Deadline, progress: Progress
    ) -> None:
        """`bound`: relative error that is accepted of any model. `stop`: when to be content with what there is."""
        self._suspect, self._prober, self._store, self._bound = suspect, prober, store, bound
        self._stop, self._progress = stop, progress
        self._symptom, self._least = "", 0.0
        self._tried = 0
        self._best: tuple[FaultCase, Verdict] | None = None

    def run(self, oracle: Oracle, numbers: Sequence[int]) -> Reduced | None:
        """The least case in the operators `numbers` of the oracle's graph; None where these alone do not show a fault."""
        graph = oracle.graph
        oracle.remember(Region(graph, 1 << number) for number in numbers)
        cut = FaultCase(*self._part(oracle, frozenset(numbers)))
        first = self.verdict(cut)
        if first is None or first.right or first.outcome == "refused":
            return None
        self._symptom = first.symptom
        self._least = min(first.error or 0.0, _CLEARLY * first.bound)
        self._best = cut, first
        self._progress.start(f"reducing {len(numbers)} operators")
        with self._stop.catching_interrupts():
            isolate_faults(numbers, Remembered(lambda part: self._finding(FaultCase(*self._part(oracle, part)))))
            while self._smaller():
                pass
        self._progress.finish()
        case, verdict = self._best
        return Reduced(case, self._suspect, verdict, len(numbers), self._tried, not self._stop())

    def verdict(self, case: FaultCase) -> Verdict | None:
        """What the suspect makes of a case; None where there is no reference for it."""
        self._tried += 1
        model = case.model.clone()
        graph = Graph(model)
        name = f"weights-case-{self._tried}.data"
        self._store.share([model], name, temporary=True)
        oracle = Oracle(graph, case.inputs, self._store, self._bound, str(self._tried), name=f"case-{self._tried}")
        try:
            inputs, expected, bound = oracle.files(graph.everything)
            shown = self._rewritten(graph)
        except (NoReference, EndlessRewriting, BricolageError, ValueError):
            return None
        path = self._store.region(shown.everything, Identities(shown).key(shown.everything))
        outputs = [info.name for info in shown.outputs]
        verdict = self._prober.run([Step(self._suspect.implementation, path)], outputs, (inputs, expected, bound))
        for file in (inputs, expected, path):
            file.unlink(missing_ok=True)
        self._store.forget(name)
        return verdict

    def _rewritten(self, graph: Graph) -> Graph:
        rule = self._suspect.rule
        if rule is None:
            return graph
        model = graph.model.clone()
        apply_everywhere(model, rule, lambda _: True, lambda _: None)
        return simplify(model)

    def _part(self, oracle: Oracle, numbers: Subset) -> tuple[ir.Model, Mapping[str, Any]]:
        region = Region(oracle.graph, bits.of(numbers))
        return extract_region(region), oracle.entering(region)

    def _finding(self, case: FaultCase) -> Finding:
        """Whether a case shows the fault in the same way; the least one that does is kept."""
        if self._stop():
            return "unresolved"
        assert self._best is not None
        best, _ = self._best
        self._progress.advance(0, f"{case.operators} operators, {case.elements} numbers")
        verdict = self.verdict(case)
        if verdict is None:
            return "unresolved"
        if verdict.right:
            return "right"
        if verdict.symptom != self._symptom or (verdict.error or 0.0) < self._least:
            return "unresolved"
        if (case.operators, case.elements) <= (best.operators, best.elements):
            self._best = case, verdict
        return "wrong"

    def _smaller(self) -> bool:
        """Whether something could be made smaller."""
        makers: tuple[Callable[[FaultCase], Iterator[FaultCase | None]], ...] = (
            fewer_outputs,
            smaller_shapes,
            simpler_values,
            simpler_attributes,
        )
        reduced = False
        for maker in makers:
            while self._one(maker):
                reduced = True
        return reduced and not self._stop()

    def _one(self, maker: Callable[[FaultCase], Iterator[FaultCase | None]]) -> bool:
        """Takes the first of the smaller cases that shows the fault."""
        assert self._best is not None
        for case in maker(self._best[0]):
            if self._stop():
                return False
            if case is not None and self._finding(case) == "wrong":
                return True
        return False


def reduce_culprit(program: SubjectProgram, diagnosis: Diagnosis, oracle: Oracle, place: Workplace) -> Reduced | None:
    """The first culprit that fails by itself, made smaller for as long as the budget lasts; None where there is none."""
    options = place.options
    stop = Deadline(choose_seconds(options, options.profile.shares.reducing_s))
    for suspect, graph, numbers in _suspects(program, diagnosis.culprits):
        suspect_oracle = oracle if graph is oracle.graph else place.oracle(graph)
        reduced = Reducer(suspect, place.prober, place.store, options.bound, stop, place.progress).run(
            suspect_oracle, numbers
        )
        if reduced is not None:
            return reduced
    return None


def _suspects(program: SubjectProgram, culprits: tuple[FaultyChange, ...]) -> list[tuple[Suspect, Graph, list[int]]]:
    """Who may be at fault, the graph to look at, and the numbers of its operators, those that are surer first."""
    suspects: list[tuple[Suspect, Graph, list[int]]] = []
    for culprit in culprits:
        change = culprit.change
        if change.kind == "rewrite":
            rule = next((rule for rule in rules() if rule.name == change.rule), None)
            before = program.before(change)
            if rule is not None and before is not None:
                suspects.append((Suspect(REFERENCE, rule), before, list(range(len(before)))))
            continue
        assert change.region is not None
        placed = program.subject.placement[change.region]
        suspects.append((Suspect(placed.implementation), program.graph, bits.members(placed.region)))
    return suspects
