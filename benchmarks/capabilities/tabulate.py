"""From results to the committed table."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bricolage.backends.capabilities import BOTH, EVERYTHING, CapabilityTable
from bricolage.conformance.attempt import Result
from bricolage.conformance.trial_cases import OperatorTrial

_ORDER = ("passes", "refuses", "wrong", "crashes", "times-out")
_HARMFUL = frozenset({"wrong", "crashes", "times-out"})
_REASONS = 4  # reasons kept for one operator
_LONGEST = 40  # combinations that are still evidence of something
Pair = tuple[OperatorTrial, Result]


def make_table(
    backend: str,
    version: str,
    onnx_version: str,
    opset: int,
    made: str,
    restriction: Mapping[str, Any],
    pairs: Sequence[Pair],
    lowerings: Mapping[str, str] | None = None,
) -> CapabilityTable:
    """The table of one backend. The same results give the same table. `made`: the day of the oldest of them; `lowerings`: the
    digests of what they rest on."""
    told = [(trial, result) for trial, result in pairs if result.outcome != "void"]
    outcomes: dict[str, dict[str, dict[str, str]]] = defaultdict(lambda: defaultdict(dict))
    avoid: dict[str, dict[str, dict[str, list[str]]]] = defaultdict(lambda: defaultdict(dict))
    groups: dict[tuple[str, str, str], list[Pair]] = defaultdict(list)
    reasons: dict[str, Counter[str]] = defaultdict(Counter)
    for trial, result in told:
        if not trial.operator:
            continue
        groups[trial.operator, trial.version, trial.kind].append((trial, result))
        if result.outcome != "passes":
            reasons[trial.operator][f"{result.outcome}: {_generic(result.reason)}"] += 1
    for (operator, first, kind), members in sorted(groups.items()):
        outcomes[operator][first][kind] = _counts(result for _, result in members)
        wrong = _telling(members)
        if wrong:
            avoid[operator][first][kind] = wrong
    return CapabilityTable(
        backend=backend,
        version=version,
        onnx=onnx_version,
        opset=opset,
        made=made,
        counts=_tally(result for trial, result in told if trial.operator),
        models=_tally(result for trial, result in told if not trial.operator),
        restriction=dict(restriction),
        lowerings=dict(lowerings or {}),
        outcomes=outcomes,
        avoid=avoid,
        reasons={
            operator: [reason for reason, _ in sorted(found.items(), key=lambda item: (-item[1], item[0]))[:_REASONS]]
            for operator, found in sorted(reasons.items())
        },
    )


def merged(old: CapabilityTable, new: CapabilityTable, operators: Collection[str]) -> CapabilityTable:
    """A table with what another one, made of all their cases, says of some operators; of others it stays as it was. It counts as
    made on the new one's lowerings: who names the operators says that the others are lowered as before."""

    def put(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
        return {name: found for name, found in before.items() if name.split("::")[-1] not in operators} | dict(after)

    outcomes = put(old.outcomes, new.outcomes)
    counts = Counter[str]()
    for versions in outcomes.values():
        for kinds in versions.values():
            for told in kinds.values():
                for one in told.split(", "):
                    outcome, _, count = one.partition(" ")
                    counts[outcome] += int(count)
    return replace(
        old,
        counts={outcome: counts[outcome] for outcome in _ORDER},
        outcomes=outcomes,
        avoid=put(old.avoid, new.avoid),
        reasons=put(old.reasons, new.reasons),
        lowerings=new.lowerings,
    )


def _tally(results: Iterable[Result]) -> dict[str, int]:
    found: Counter[str] = Counter(result.outcome for result in results)
    return {outcome: found[outcome] for outcome in _ORDER}


def _counts(results: Iterable[Result]) -> str:
    return ", ".join(f"{outcome} {count}" for outcome, count in _tally(results).items() if count)


def _telling(members: Sequence[Pair]) -> list[str]:
    """What only harmful cases have: single features, else pairs, else triples of them, joined by ` & `. A harmful case
    that cannot be told from those that passed makes it everything."""
    passed = [trial.traits for trial, result in members if result.outcome == "passes"]
    harmful = [trial.traits for trial, result in members if result.outcome in _HARMFUL]
    if harmful and not passed:
        return [EVERYTHING]
    told: set[str] = set()
    for traits in harmful:
        for size in (1, 2, 3):
            found = [
                set(group)
                for group in itertools.combinations(sorted(traits), size)
                if not any(traits_passed.issuperset(group) for traits_passed in passed)
            ]
            if found:
                told.update(BOTH.join(sorted(group)) for group in found)
                break
        else:
            return [EVERYTHING]
    return [EVERYTHING] if len(told) > _LONGEST else sorted(told)


def _generic(reason: str) -> str:
    """The reason without names and paths that differ from run to run."""
    reason = re.sub(r"/\S*/", "", reason)
    return re.sub(r"0x[0-9a-f]+", "0x…", reason)


def to_json(table: CapabilityTable) -> str:
    """Sorted, and one line for each operator, so that changes can be read."""
    facts = vars(table)
    lines = ["{"]
    for key, value in facts.items():
        last = "" if key == "reasons" else ","
        if key in ("outcomes", "avoid", "reasons") and value:
            rows = [f"  {json.dumps(name)}: {json.dumps(value[name], sort_keys=True)}" for name in sorted(value)]
            lines.append(f' "{key}": {{\n' + ",\n".join(rows) + f"\n }}{last}")
        else:
            lines.append(f' "{key}": {json.dumps(value)}{last}')
    return "\n".join([*lines, "}"]) + "\n"
