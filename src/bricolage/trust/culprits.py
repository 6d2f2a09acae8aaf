"""The change at fault that fails by itself, shown by the least model."""

from __future__ import annotations

from bricolage.backends.reference import REFERENCE
from bricolage.base.deadline import Deadline
from bricolage.graph.graph import Graph
from bricolage.rewrite.catalogue import rules
from bricolage.trust.bisect import Diagnosis, FaultyChange
from bricolage.trust.changed_program import SubjectProgram
from bricolage.trust.model_reduction import Reduced, Reducer, Suspect
from bricolage.trust.workplace import Workplace
from bricolage.verify.oracle import Oracle
from bricolage.work import bits as bitset


def reduce_culprit(program: SubjectProgram, diagnosis: Diagnosis, oracle: Oracle, place: Workplace) -> Reduced | None:
    """The first culprit that fails by itself, made smaller for as long as the budget lasts; None where there is none."""
    options = place.options
    stop = Deadline(options.budget_s if options.budget_s is not None else options.profile.shares.reducing_s)
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
        suspects.append((Suspect(placed.implementation), program.graph, bitset.members(placed.region)))
    return suspects
