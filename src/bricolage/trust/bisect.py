"""Which change of a program makes its answer wrong: one bisection for all kinds of changes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bricolage.base.progress import Progress
from bricolage.search.isolate import Finding, Remembered, Subset, culprits, isolate_faults
from bricolage.trust.changed_program import Impossible, SubjectProgram
from bricolage.trust.changes import Change
from bricolage.trust.probe import Prober, Verdict
from bricolage.work import bits as bitset


@dataclass(frozen=True)
class FaultyChange:
    """A change at fault, with its evidence: the program with all changes but those at fault, without it and with it."""

    change: Change
    without: Verdict
    present: Verdict
    operators: tuple[str, ...] = ()
    """Of a region: those that are wrong on its backend already when all others are computed in float64."""

    @property
    def confirmed(self) -> bool:
        """Whether switching this change off, and nothing else, mends the answer."""
        return self.without.right and not self.present.right


@dataclass(frozen=True)
class Diagnosis:
    """What was found out about a program."""

    name: str
    verdict: Verdict
    """With all changes."""
    changes: tuple[Change, ...]
    culprits: tuple[FaultyChange, ...]
    """In the order of the list; none where the answer is right, or cannot be had for a reason that is no fault."""
    tried: int
    """Programs that were run."""

    @property
    def faulty(self) -> bool:
        """Whether something is wrong: a backend that declines a region is not at fault."""
        return self.verdict.outcome not in ("ok", "refused")


def bisect_changes(
    program: SubjectProgram, prober: Prober, files: tuple[Path, Path, float], progress: Progress
) -> Diagnosis:
    """Runs the program, and finds the changes at fault where it fails. `files` are those of the graph as it came (see
    `bricolage.verify.oracle`)."""
    before = prober.count
    search = _Search(program, prober, files, progress)
    verdict = search.verdict(program.everything, fresh=True)
    faulty_changes: tuple[FaultyChange, ...] = ()
    if verdict.outcome not in ("ok", "refused"):
        search.symptom = verdict.symptom
        faulty_changes = search.culprits()
    return Diagnosis(program.subject.name, verdict, program.changes, faulty_changes, prober.count - before)


class _Search:
    def __init__(
        self, program: SubjectProgram, prober: Prober, files: tuple[Path, Path, float], progress: Progress
    ) -> None:
        self._program, self._prober, self._files, self._progress = program, prober, files, progress
        self._known: dict[Subset, Verdict] = {}
        self._sure: set[Subset] = set()
        self.symptom = ""

    def verdict(self, in_force: Subset, *, fresh: bool = False) -> Verdict:
        """What comes of the program with these changes; `fresh`: in a worker that had run nothing before."""
        if in_force not in self._known or (fresh and in_force not in self._sure):
            self._known[in_force] = self._run(in_force, None, fresh=fresh)
        if fresh:
            self._sure.add(in_force)
        return self._known[in_force]

    def culprits(self) -> tuple[FaultyChange, ...]:
        program = self._program
        self._progress.start(f"bisecting {len(program.changes)} changes of {program.subject.name}")
        test = Remembered(lambda subset: self._finding(self.verdict(subset)))
        if test(frozenset()) != "right":
            self._progress.finish()
            return ()
        out = culprits(program.everything, test)
        rest = program.everything - out
        without = self.verdict(rest, fresh=True)
        faulty_changes = []
        for number in sorted(out):
            change = program.change(number)
            present = self.verdict(rest | {number}, fresh=True)
            faulty_changes.append(FaultyChange(change, without, present, self._narrow_region(change, rest | {number})))
        self._progress.finish()
        return tuple(faulty_changes)

    def _narrow_region(self, change: Change, in_force: Subset) -> tuple[str, ...]:
        """The operators of a region that suffice for the fault."""
        if change.kind != "region" or change.region is None:
            return ()
        i, graph = change.region, self._program.graph
        members = bitset.members(self._program.subject.placement[i].region)

        def test(subset: Subset) -> Finding:
            return self._finding(self._run(in_force, (i, subset)))

        if test(frozenset(members)) != "wrong":
            return ()
        return tuple(graph.operators[number].name for number in isolate_faults(members, Remembered(test)))

    def _run(self, in_force: Subset, partly: tuple[int, Subset] | None, *, fresh: bool = False) -> Verdict:
        program = self._program
        self._progress.advance(0, f"{len(in_force)} of {len(program.changes)} changes")
        try:
            steps = program.steps(in_force, partly)
        except Impossible:
            return Verdict("refused", None, self._files[2], "these changes cannot be in force alone")
        return self._prober.run(steps, program.outputs, self._files, fresh=fresh)

    def _finding(self, verdict: Verdict) -> Finding:
        if verdict.right:
            return "right"
        return "wrong" if verdict.symptom == self.symptom else "unresolved"
