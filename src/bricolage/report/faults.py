"""What `bisect` and `reduce` found, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from bricolage.api.bisect import Examined
from bricolage.api.reduce import Repro
from bricolage.base.codec import JsonObject
from bricolage.report import words
from bricolage.report.tables import plain_table, plain_text
from bricolage.trust.bisect import Diagnosis, FaultyChange
from bricolage.trust.case import describe_inputs
from bricolage.trust.fault_files import where_next
from bricolage.trust.probe import Verdict
from bricolage.trust.repro import culprit as at_fault

_MARK = "wrong"


def render_bisection(examined: Sequence[Examined]) -> RenderableType:
    """A line for each program, and for those that fail their numbered changes with the culprits."""
    rows = [[_name(program), str(program.diagnosis.verdict)] for program in examined]
    parts: list[RenderableType] = [plain_table([("Program", "fold"), ("Answer", "fold")], rows)]
    for program in examined:
        if program.diagnosis.faulty:
            parts += [Text(""), *_details(program)]
    if examined and not any(program.diagnosis.faulty for program in examined):
        parts += [Text(""), plain_text("nothing is wrong")]
    return Group(*parts)


def _details(examined: Examined) -> list[RenderableType]:
    diagnosis = examined.diagnosis
    guilty = {culprit.change.number: culprit for culprit in diagnosis.culprits}
    rows = [
        [str(change.number), change.title, _MARK if change.number in guilty else ""] for change in diagnosis.changes
    ]
    heads = [("No", "right"), ("Change", "fold"), ("", "left")]
    parts: list[RenderableType] = [plain_table(heads, rows, title=_name(examined))]
    for culprit in diagnosis.culprits:
        parts += [Text(""), *(plain_text(line) for line in _describe_culprit(culprit))]
    if not diagnosis.culprits:
        parts += [Text(""), plain_text(_unknown(diagnosis))]
    parts += [plain_text(f"{diagnosis.tried} programs were tried")]
    parts += [plain_text(f"wrote {path}") for path in examined.files]
    return parts


def _describe_culprit(culprit: FaultyChange) -> list[str]:
    lines = [
        f"change {culprit.change.number} {'is' if culprit.confirmed else 'may be'} at fault: {culprit.change.title}",
        f"  without it: {culprit.without}",
        f"  with it:    {culprit.present}",
    ]
    if culprit.operators:
        lines.append(f"  enough for it: {', '.join(culprit.operators)}")
    return [*lines, f"  look at: {where_next(culprit)}"]


def _unknown(found: Diagnosis) -> str:
    if not found.changes:
        return "nothing has changed this program"
    return "the program is wrong even with every change disabled"


def bisected_json(examined: Sequence[Examined]) -> JsonObject:
    """The same as data."""
    return {"programs": [_as_json(program) for program in examined]}


def _as_json(examined: Examined) -> JsonObject:
    diagnosis = examined.diagnosis
    changes = [
        {"number": c.number, "kind": c.kind, "title": c.title, "operators": list(c.operators)}
        for c in diagnosis.changes
    ]
    culprits = [
        {
            "number": culprit.change.number,
            "kind": culprit.change.kind,
            "rule": culprit.change.rule or None,
            "confirmed": culprit.confirmed,
            "without": _verdict(culprit.without),
            "with": _verdict(culprit.present),
            "operators": list(culprit.operators),
            "next": where_next(culprit),
        }
        for culprit in diagnosis.culprits
    ]
    return {
        "program": diagnosis.name,
        "sizes": dict(examined.sizes),
        **_verdict(diagnosis.verdict),
        "changes": changes,
        "culprits": culprits,
        "tried": diagnosis.tried,
        "files": [str(path) for path in examined.files],
    }


def render_reduction(found: Repro | None) -> RenderableType:
    """What was made smaller, and how small it is."""
    if found is None:
        return plain_text("nothing is wrong")
    reduction = found.reduced
    kinds = ", ".join(node.op_type for node in reduction.case.model.graph)
    rows = [
        ["Program", found.diagnosis.name],
        ["At fault", at_fault(reduction)],
        ["Operators", f"{reduction.before} to {reduction.case.operators}: {kinds}"],
        ["Inputs", "; ".join(describe_inputs(reduction.case))],
        ["Answer", str(reduction.verdict)],
        [
            "Tried",
            f"{reduction.tried} models{'' if reduction.finished else '; stopped before nothing smaller was left to try'}",
        ],
    ]
    return plain_table([("", "left"), ("", "fold")], rows)


def reduced_json(found: Repro | None) -> JsonObject:
    """The same as data."""
    if found is None:
        return {"reduced": None}
    reduction = found.reduced
    return {
        "program": found.diagnosis.name,
        "reduced": {
            "at_fault": at_fault(reduction),
            "before": reduction.before,
            "operators": [node.op_type for node in reduction.case.model.graph],
            "inputs": describe_inputs(reduction.case),
            **_verdict(reduction.verdict),
            "tried": reduction.tried,
            "finished": reduction.finished,
        },
        "files": [str(path) for path in found.files],
    }


def _verdict(verdict: Verdict) -> JsonObject:
    return {
        "outcome": verdict.outcome,
        "error": verdict.error,
        "bound": verdict.bound,
        "reason": verdict.reason,
    }


def _name(examined: Examined) -> str:
    shape = words.format_shape(examined.sizes) if examined.sizes else ""
    return f"{examined.diagnosis.name}{f' at {shape}' if shape else ''}"
