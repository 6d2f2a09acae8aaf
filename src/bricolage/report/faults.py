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


def bisected(examined: Sequence[Examined]) -> RenderableType:
    """A line for each program, and for those that fail their numbered changes with the culprits."""
    rows = [[_name(one), str(one.diagnosis.verdict)] for one in examined]
    parts: list[RenderableType] = [plain_table([("Program", "fold"), ("Answer", "fold")], rows)]
    for one in examined:
        if one.diagnosis.faulty:
            parts += [Text(""), *_details(one)]
    if examined and not any(one.diagnosis.faulty for one in examined):
        parts += [Text(""), plain_text("nothing is wrong")]
    return Group(*parts)


def _details(examined: Examined) -> list[RenderableType]:
    found = examined.diagnosis
    guilty = {culprit.change.number: culprit for culprit in found.culprits}
    rows = [[str(change.number), change.title, _MARK if change.number in guilty else ""] for change in found.changes]
    heads = [("No", "right"), ("Change", "fold"), ("", "left")]
    parts: list[RenderableType] = [plain_table(heads, rows, title=_name(examined))]
    for culprit in found.culprits:
        parts += [Text(""), *(plain_text(line) for line in _told(culprit))]
    if not found.culprits:
        parts += [Text(""), plain_text(_unknown(found))]
    parts += [plain_text(f"{found.tried} programs were tried")]
    parts += [plain_text(f"wrote {path}") for path in examined.files]
    return parts


def _told(culprit: FaultyChange) -> list[str]:
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
    return {"programs": [_as_json(one) for one in examined]}


def _as_json(examined: Examined) -> JsonObject:
    found = examined.diagnosis
    changes = [
        {"number": c.number, "kind": c.kind, "title": c.title, "operators": list(c.operators)} for c in found.changes
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
        for culprit in found.culprits
    ]
    return {
        "program": found.name,
        "sizes": dict(examined.sizes),
        **_verdict(found.verdict),
        "changes": changes,
        "culprits": culprits,
        "tried": found.tried,
        "files": [str(path) for path in examined.files],
    }


def reduced(found: Repro | None) -> RenderableType:
    """What was made smaller, and how small it is."""
    if found is None:
        return plain_text("nothing is wrong")
    made = found.reduced
    kinds = ", ".join(node.op_type for node in made.case.model.graph)
    rows = [
        ["Program", found.diagnosis.name],
        ["At fault", at_fault(made)],
        ["Operators", f"{made.before} to {made.case.operators}: {kinds}"],
        ["Inputs", "; ".join(describe_inputs(made.case))],
        ["Answer", str(made.verdict)],
        ["Tried", f"{made.tried} models{'' if made.finished else '; stopped before nothing smaller was left to try'}"],
    ]
    return plain_table([("", "left"), ("", "fold")], rows)


def reduced_json(found: Repro | None) -> JsonObject:
    """The same as data."""
    if found is None:
        return {"reduced": None}
    made = found.reduced
    return {
        "program": found.diagnosis.name,
        "reduced": {
            "at_fault": at_fault(made),
            "before": made.before,
            "operators": [node.op_type for node in made.case.model.graph],
            "inputs": describe_inputs(made.case),
            **_verdict(made.verdict),
            "tried": made.tried,
            "finished": made.finished,
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
