"""What rewriting did to a model, and which rules there are, as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from bricolage.base.codec import JsonObject
from bricolage.plan.shipped_program import ORIGINAL
from bricolage.report.tables import plain_table, plain_text
from bricolage.report.words import count

if TYPE_CHECKING:
    from bricolage.driver.rewrites.verified_rewrite import Amount, Rewritten
    from bricolage.rewrite.engine.apply import RuleUse
    from bricolage.rewrite.rule import Rule
    from bricolage.rewrite.search.graph_search import SearchResult
    from bricolage.rulemaking.coverage import RuleCoverage
    from bricolage.rulemaking.verification import Verified
    from bricolage.tune.rewrites import RewriteTuningResult

_COMMON_OPSET = 18  # loading brings models to it at least


def rewriting_table(found: Rewritten) -> RenderableType:
    """Before and after, the rules applied, and the check."""
    before, after = (f"{ms:.4g} ms" for ms in found.predicted_ms)
    stages = (
        ("before", found.before, before),
        ("constants folded", found.simplified, before),
        ("after", found.after, after),
    )
    rows = [[name, f"{a.operators:,}", _large(a.flops), _large(a.bytes) + "B", ms] for name, a, ms in stages]
    heads = [("", "left"), ("Operators", "right"), ("FLOPs", "right"), ("Bytes moved", "right"), ("Estimate", "right")]
    if found.tailored is not None:
        heads.append(("Measured", "right"))
        times = _collect_times(found.tailored)
        rows = [[*row, times.get(row[0], "")] for row in rows]
    parts: list[RenderableType] = [plain_table(heads, rows), Text("")]
    if found.applications:
        families = {application.rule: application.family for application in found.applications}
        applied = [[rule, families[rule], str(count)] for rule, count in found.counts.items()]
        parts += [plain_table([("Rule", "left"), ("Family", "left"), ("Applied", "right")], applied), Text("")]
    else:
        parts += [Text("no rule applies profitably"), Text("")]
    if found.searched is not None:
        parts.append(plain_text(_describe_search(found.searched)))
    if found.tailored is not None:
        parts.append(plain_text(_describe_tailoring(found.tailored)))
    if found.sizes:
        shown = ", ".join(f"{name}={size}" for name, size in found.sizes.items())
        parts.append(plain_text(f"counted and checked with {shown}; the model keeps these dimensions open"))
    parts.append(plain_text(f"equal to the original in float64: error {found.error:.1e}, bound {found.bound:.1e}"))
    return Group(*parts)


def as_json(found: Rewritten) -> JsonObject:
    """The same, and every application by number."""
    return {
        "before": _amount(found.before),
        "simplified": _amount(found.simplified),
        "after": _amount(found.after),
        "sizes": dict(found.sizes),
        "error": found.error,
        "bound": found.bound,
        "search": None if found.searched is None else _searched_json(found.searched),
        "predicted_ms": {"before": found.predicted_ms[0], "after": found.predicted_ms[1]},
        "tailored": None if found.tailored is None else _tailored_json(found.tailored),
        "rules": found.counts,
        "applications": [
            {"number": a.number, "rule": a.rule, "family": a.family, "removed": a.removed, "added": a.added}
            for a in found.applications
        ],
    }


def _collect_times(found: RewriteTuningResult) -> dict[str, str]:
    """Times of the original and of the chosen variant."""
    times = {}
    for stage, name in (("before", ORIGINAL), ("after", found.chosen)):
        raced = found.raced(name)
        if raced is not None and raced.cost.ms is not None:
            times[stage] = f"{raced.cost.ms:.4g} ms"
    return times


def _describe_tailoring(found: RewriteTuningResult) -> str:
    summary = f"{found.tried} graph variants were made for {found.implementation} with {count(found.threads, 'thread')}"
    best = found.raced(found.chosen)
    if found.rewrite_config is None or best is None or best.speedup is None:
        return f"{summary}; none is faster than the original, whose constants were folded"
    others = [
        f"{raced.name} {raced.speedup}"
        for raced in found.graph_variants
        if raced.speedup is not None and raced is not best
    ]
    rest = f"; others: {', '.join(others)}" if others else ""
    return f"{summary}; best: {found.rewrite_config}, {best.speedup} the speed of the original{rest}"


def _tailored_json(found: RewriteTuningResult) -> JsonObject:
    return {
        "backend": found.implementation.backend,
        "config": found.implementation.config.text,
        "threads": found.threads,
        "chosen": found.chosen,
        "rewrite_config": None if found.rewrite_config is None else str(found.rewrite_config),
        "tried": found.tried,
        "graph_variants": [
            {
                "name": raced.name,
                "ms": raced.cost.ms,
                "outcome": raced.cost.outcome,
                "speedup": None if raced.speedup is None else asdict(raced.speedup),
            }
            for raced in found.graph_variants
        ],
    }


def _describe_search(found: SearchResult) -> str:
    statistics = found.statistics
    counts, bound = statistics.counts, statistics.lower_bound
    seen = f"{counts.seen:,} graphs" if counts.seen else f"{counts.nodes:,} operators in {counts.classes:,} classes"
    after = f"{found.best.cost:.4g} ms after"
    if bound is not None:
        after += f" (no graph among them is below {bound:.4g} ms)"
    return (
        f"{seen} seen in {statistics.seconds:.1f} s, of {statistics.distinct} different parts among {statistics.parts}; "
        f"predicted {found.before:.4g} ms before, {after}"
    )


def _searched_json(found: SearchResult) -> JsonObject:
    return {
        "predicted_before_ms": found.before,
        "predicted_ms": [candidate.cost for candidate in found.candidates],
        "statistics": asdict(found.statistics),
    }


def rules_table(families: Mapping[str, Sequence[Rule]]) -> RenderableType:
    """Families with their rules: equation, then conditions."""
    parts: list[RenderableType] = []
    for family, members in families.items():
        rows = []
        for rule in members:
            text = plain_text(rule.equation)
            if rule.conditions:
                text.append("\n").append_text(plain_text(rule.conditions, "dim"))
            rows.append([plain_text(rule.name + (" (cost-based)" if rule.cost_based else "")), text])
        parts += [plain_table([("Rule", "left"), ("Equation and conditions", "fold")], rows, title=family), Text("")]
    return Group(*parts)


def uses_table(found: Sequence[RuleUse]) -> RenderableType:
    """Rules that apply to a model or nearly do, with the most frequent reason why not."""
    if not found:
        return plain_text("no rule applies, or nearly does")
    rows: list[list[str | Text]] = []
    for use in found:
        reasons = Counter(refusal.reason for refusal in use.refused)
        reason = f"{reasons.most_common(1)[0][0]} ({use.refused[0].operator})" if reasons else ""
        rows.append([use.rule, use.family, str(len(use.applied)), str(len(use.refused)), plain_text(reason, "dim")])
    heads = [
        ("Rule", "left"),
        ("Family", "left"),
        ("Applies", "right"),
        ("Nearly", "right"),
        ("Why not, mostly", "fold"),
    ]
    return plain_table(heads, rows)


def uses_json(found: Sequence[RuleUse]) -> list[JsonObject]:
    """The same, place by place."""
    return [
        {
            "rule": use.rule,
            "family": use.family,
            "applied": [{"number": a.number, "removed": a.removed, "added": a.added} for a in use.applied],
            "refused": [{"operator": refusal.operator, "reason": refusal.reason} for refusal in use.refused],
        }
        for use in found
    ]


def rules_markdown(families: Mapping[str, Sequence[Rule]]) -> str:
    """The page `docs/reference/rules.md`."""
    lines = [
        "# Rules",
        "",
        "Made by `bricolage rules list --markdown`; see [rewriting](../design/rewriting.md) for what a rule is. *Cost-based* rules",
        "are for searches; `bricolage rewrite` leaves them out.",
    ]
    for family, members in families.items():
        lines += ["", f"## {family}", ""]
        if family == "generated":
            equations = sum(not rule.name.endswith("-back") for rule in members)
            lines.append(f"{equations} equations found by enumeration; see [how](../design/rewriting.md).")
            continue
        for rule in members:
            notes = [f"from opset {rule.since}"] if rule.since > _COMMON_OPSET else []
            notes += ["cost-based"] if rule.cost_based else []
            noted = f" ({', '.join(notes)})" if notes else ""
            lines.append(f"* **{rule.name}**{noted}: {rule.equation}")
            if rule.conditions:
                lines.append(f"  <br>{rule.conditions}")
    return "\n".join(lines) + "\n"


def rules_json(families: Mapping[str, Sequence[Rule]]) -> JsonObject:
    """Rules by family."""
    return {
        family: [
            {
                "name": rule.name,
                "equation": rule.equation,
                "conditions": rule.conditions,
                "since_opset": rule.since,
                "cost_based": rule.cost_based,
            }
            for rule in members
        ]
        for family, members in families.items()
    }


def render_verification(found: Sequence[Verified]) -> RenderableType:
    """Rules with what is proved of them."""
    rows: list[list[str | Text]] = [
        [
            check.rule,
            check.status,
            f"{len(check.proofs)} of {len(check.verdicts)}",
            _chance(check),
            plain_text(_notes(check), "dim"),
        ]
        for check in found
    ]
    heads = [
        ("Rule", "left"),
        ("Verdict", "left"),
        ("Examples", "right"),
        ("Chance of error", "right"),
        ("Notes", "fold"),
    ]
    counts = Counter(check.status for check in found)
    total = ", ".join(f"{count} {status}" for status, count in counts.items())
    return Group(plain_table(heads, rows), Text(""), plain_text(f"{total}; what is not proved agrees in float64"))


def verified_json(found: Sequence[Verified]) -> list[JsonObject]:
    """The same, example by example."""
    return [
        {
            "rule": check.rule,
            "family": check.family,
            "status": check.status,
            "examples": [{"verdict": type(verdict).__name__.lower(), **asdict(verdict)} for verdict in check.verdicts],
        }
        for check in found
    ]


def coverage(found: Sequence[RuleCoverage]) -> RenderableType:
    """Equations of another tool with the rules that derive each."""
    rows: list[list[str | Text]] = [
        [str(number), entry.verdict, entry.truth, _derivation(entry), plain_text(str(entry.equation), "dim")]
        for number, entry in enumerate(found, 1)
    ]
    heads = [("", "right"), ("Verdict", "left"), ("Itself", "left"), ("By", "fold"), ("Equation", "fold")]
    counts = Counter(entry.verdict for entry in found)
    total = ", ".join(f"{times} {verdict}" for verdict, times in counts.most_common())
    return Group(plain_table(heads, rows), Text(""), plain_text(f"{count(len(found), 'equation')}: {total}"))


def coverage_json(found: Sequence[RuleCoverage]) -> list[JsonObject]:
    """The same."""
    return [{**asdict(entry), "equation": str(entry.equation), "rules": list(entry.rules)} for entry in found]


def _derivation(one: RuleCoverage) -> str:
    if one.verdict != "derived":
        return one.reason
    names = " + ".join(one.rules) or "both sides are one graph"
    return f"{names} (constant weights)" if one.constant_weights else names


def _chance(one: Verified) -> str:
    return f"{one.error_bound:.0e}" if one.proofs else ""


def _notes(one: Verified) -> str:
    """Why examples are not proved; functions of which only laws are known; literals read as numbers that no float is."""
    from bricolage.rulemaking.proof import Unprovable

    reasons = dict.fromkeys(verdict.reason for verdict in one.verdicts if isinstance(verdict, Unprovable))
    functions = dict.fromkeys(name for proof in one.proofs for name in proof.functions)
    readings = dict.fromkeys(text for proof in one.proofs for text in proof.readings)
    parts = [*reasons]
    parts += [f"by laws of {', '.join(functions)}"] if functions else []
    parts += [f"reads {', '.join(readings)}"] if readings else []
    return "; ".join(parts)


def _amount(amount: Amount) -> dict[str, int]:
    return {"operators": amount.operators, "flops": amount.flops, "bytes": amount.bytes}


def _large(number: int) -> str:
    for unit, factor in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= factor:
            return f"{number / factor:.2f} {unit}"
    return f"{number} "
