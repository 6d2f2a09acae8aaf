"""`docs/reference/capabilities.md` from the committed tables."""

from __future__ import annotations

from benchmarks.capabilities.lowerings import changed
from bricolage.backends import registry
from bricolage.backends.capabilities import EVERYTHING, CapabilityTable, committed_table
from bricolage.backends.operator_features import RUNTIME

_OUTCOMES = ("passes", "refuses", "wrong", "crashes", "times-out")
_HEAD = """# What each backend can run

Made by `python -m benchmarks.capabilities --docs` from the tables in `src/bricolage/backends/capabilities`; do not edit.

A table is the outcome of the ONNX backend test suite (package `onnx.backend.test`) on one backend. The single-operator
cases are tried at each version of the operator in force from opset 18 on, with shapes, axes and weights as constants
and as run-time values, and in further element types with the reference implementation's results. Where the suite has no case for
a type of an input that the operator's definition allows, or for an attribute away from its default, one is generated, and
some are written for operators that it leaves out (sequences, classical models): in the tables of onnxruntime,
openvino, torch and native so
far. Each case is compiled
and run in a child process on one thread as a region would be, bound to buffers where its shapes are static, and
compared at the suite's tolerance (or four units in the last place of the largest element). A backend claims an operator
only where cases like it passed, and never where a feature (an attribute's value, a rank, an optional input), or a
combination of features, occurred in wrong cases only.
"""


def document() -> str:
    """The page: a summary of the tables, and a matrix of operators and backends."""
    tables = [found for name in registry.names() if (found := committed_table(name)) is not None]
    return "\n".join([_HEAD, *_summary(tables), "", *_matrix(tables), ""])


def _summary(tables: list[CapabilityTable]) -> list[str]:
    lines = [
        "## Summary",
        "",
        "Single-operator cases by outcome; in brackets the models of several operators.",
        "",
        f"| backend | version | made | onnx | opset ≤ | {' | '.join(_OUTCOMES)} | left out |",
        f"|---|---|---|---|---|{'---:|' * len(_OUTCOMES)}---|",
    ]
    for found in tables:
        cells = [f"{found.counts.get(o, 0)} ({found.models.get(o, 0)})" for o in _OUTCOMES]
        left_out = (
            ", ".join(f"{key.replace('_', ' ')}: {value}" for key, value in found.restriction.items()) or "nothing"
        )
        lines.append(
            f"| {found.backend} | {found.version} | {found.made} | {found.onnx} | {found.opset} | {' | '.join(cells)} "
            f"| {left_out} |"
        )
    return [*lines, "", *_older(tables)]


def _older(tables: list[CapabilityTable]) -> list[str]:
    """Tables that are older than our lowerings, with what has changed since."""
    old = [f"{found.backend} ({found.made})" for found in tables if changed(found)]
    if not old:
        return ["No table is older than the lowerings of ours that it rests on."]
    return [
        f"Older than the lowerings of ours that they rest on: {', '.join(old)}. `--stale` names the files that have changed since."
    ]


def _matrix(tables: list[CapabilityTable]) -> list[str]:
    operators = sorted({operator for found in tables for operator in found.outcomes})
    lines = [
        "## Operators",
        "",
        "Element types accepted out of those tried, over all versions, with constant parameters. ✗ marks operators",
        "that gave a wrong answer or crashed in some case; `-` means not tried.",
        "",
        f"| operator | {' | '.join(found.backend for found in tables)} |",
        f"|---|{':---:|' * len(tables)}",
    ]
    lines.extend(f"| {operator} | {' | '.join(_cell(found, operator) for found in tables)} |" for operator in operators)
    return lines


def _cell(found: CapabilityTable, operator: str) -> str:
    tried: set[str] = set()
    accepted: set[str] = set()
    for version, kinds in found.outcomes.get(operator, {}).items():
        for kind, outcome in kinds.items():
            if kind.endswith(RUNTIME) and kind.removesuffix(RUNTIME) in kinds:
                continue
            plain = kind.removesuffix(RUNTIME)
            tried.add(plain)
            wrong = found.avoid.get(operator, {}).get(version, {}).get(kind, [])
            if outcome.startswith("passes") and EVERYTHING not in wrong:
                accepted.add(plain)
    if not tried:
        return "-"
    return f"{len(accepted)}/{len(tried)}" + (" ✗" if operator in found.avoid else "")
