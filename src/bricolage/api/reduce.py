"""`reduce`: the least model that shows a fault."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bricolage.api.faults import TRIAL_S, Workplace, opened_for
from bricolage.backends.reference import REFERENCE
from bricolage.base.budget import choose_seconds
from bricolage.base.deadline import Deadline
from bricolage.base.options import Options
from bricolage.base.progress import Progress, Silent
from bricolage.errors import NotReduced
from bricolage.graph.graph import Graph
from bricolage.rewrite.catalogue import rules
from bricolage.trust.bisect import Diagnosis, FaultyChange, bisect_changes
from bricolage.trust.changed_program import SubjectProgram
from bricolage.trust.model_reduction import Reduced, Reducer, Suspect
from bricolage.trust.repro import write_repro
from bricolage.verify.oracle import Oracle
from bricolage.work import bits as bitset


@dataclass(frozen=True)
class Repro:
    """A fault, and the folder's files that show it."""

    diagnosis: Diagnosis
    """Of the program in which it was found."""
    reduced: Reduced
    files: tuple[Path, ...]


def reduce(
    source: Any,
    output: Path,
    options: Options | None = None,
    *,
    example_inputs: Any = None,
    inputs: Mapping[str, np.ndarray] | None = None,
    unclaimed: bool = False,
    trial_s: float = TRIAL_S,
    progress: Progress | None = None,
) -> Repro | None:
    """Looks for a program that fails as `bisect` does, and makes the model, its shapes and its numbers smaller as long as the
    change at fault still fails in the same way; None where none of them fails, and nothing is written then.

    Args:
        output: an existing folder for the repro.
        options: as for `bisect`; the budget is that of making the model smaller. After it, or a Ctrl-C, the least model by
            then is written.
        source, example_inputs, inputs, unclaimed, trial_s, progress: as for `bisect`.

    Raises:
        As `bisect`; and NotReduced: no change at fault fails in the same way by itself.
        NotWritable: the folder is not writable.
    """
    options, progress = options or Options(), progress or Silent()
    with opened_for(source, options, example_inputs, inputs, unclaimed, trial_s, progress) as place:
        for _, subject, oracle in place.subjects():
            program = SubjectProgram(subject, place.store, place.resources)
            diagnosis = bisect_changes(program, place.prober, oracle.files(oracle.graph.everything), progress)
            if not diagnosis.faulty:
                continue
            reduced = _reduce_culprit(program, diagnosis, oracle, place, options, progress)
            if reduced is None:
                raise NotReduced(program=diagnosis.name, verdict=diagnosis.verdict)
            return Repro(diagnosis, reduced, write_repro(reduced, output, options.threads))
    return None


def _reduce_culprit(
    program: SubjectProgram, found: Diagnosis, oracle: Oracle, place: Workplace, options: Options, progress: Progress
) -> Reduced | None:
    """The first culprit that fails by itself, made smaller; None where there is none."""
    stop = Deadline(choose_seconds(options, options.profile.shares.reducing_s))
    for suspect, graph, numbers in _suspects(program, found.culprits):
        suspect_oracle = oracle if graph is oracle.graph else place.oracle(graph)
        reduced = Reducer(suspect, place.prober, place.store, options.bound, stop, progress).run(
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
