"""The self-check of a backend whose capability table was made on another version than the one installed.

For each kind of operator that the graphs need and the table vouches for, a few cases of the ONNX backend test suite
are run on the installed version: those most like the operators of the graphs. A kind is claimed when one of its cases passes and
none is wrong, crashes or hangs. What was found is kept for the version, the table and the device, so every kind is checked
once.
"""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import onnx

from bricolage.backends.capabilities import (
    CapabilityTable,
    committed_table,
    find_avoided,
    is_current,
    list_needed_kinds,
    table_digest,
)
from bricolage.backends.interface import Backend, OperatorKind, SelfCheck
from bricolage.backends.operator_features import RUNTIME
from bricolage.base import scratch
from bricolage.base.cache import UNFINISHED, cache_directory
from bricolage.base.progress import Progress, Silent
from bricolage.conformance.attempt import Result
from bricolage.conformance.bases import base_cases
from bricolage.conformance.suite import suite_cases
from bricolage.conformance.trial_cases import OperatorTrial, trials
from bricolage.costs.entries import EXPIRY_S
from bricolage.device.host import host
from bricolage.errors import NotWritable
from bricolage.graph.graph import Graph
from bricolage.measure.conformance_trials import run_trials
from bricolage.measure.pool import Pool

_LOG = logging.getLogger(__name__)
_CASES = 2
"""Cases that are run for one kind of operator."""
_BATCH = 16
_LIMIT_S = 20.0
"""Longest time of one case."""
_BUDGET_S = 60.0
"""Longest time for one backend; kinds that were not reached are not claimed this time."""
_LATE = "its self-check did not fit into the time given"
_HARMFUL = frozenset({"wrong", "crashes", "times-out"})
_BAD_LUCK = ("crashes", "times-out")
"""How the reasons begin that may have had another cause: they are checked again as failures of candidates are."""


def self_checked(
    backends: Sequence[Backend], graphs: Sequence[Graph], progress: Progress | None = None, *, retrying: bool = False
) -> tuple[Backend, ...]:
    """The backends as they may be used for the graphs: those whose capability table is of another version with the result
    of their self-check (`Backend.self_check`), which is run now where it is not known; the others as they are.

    Operators of a kind that is in none of the graphs are not checked and so not claimed by the former. `retrying`: whether
    crashes and time-outs, which may have been bad luck, are checked again.
    """
    checked_backends: list[Backend] = []
    with Pool() as pool:  # which starts a process only when it is asked for one
        for backend in backends:
            if is_current(backend):
                checked_backends.append(backend)
                continue
            checked = copy.copy(backend)
            checked.self_check = _check(backend, graphs, pool, progress or Silent(), retrying)
            checked_backends.append(checked)
    return tuple(checked_backends)


def known_findings(backend: Backend) -> dict[OperatorKind, str]:
    """What earlier self-checks of the installed version found: "" for a kind that passed, or the reason against it."""
    try:
        kept = json.loads(_file(backend).read_text(encoding="utf-8"))
        return {(name, version, kind): reason for name, version, kind, reason in kept["kinds"]}
    except (OSError, ValueError, KeyError, TypeError):  # none was made, or the file is damaged: it is made again
        return {}


def _check(backend: Backend, graphs: Iterable[Graph], pool: Pool, progress: Progress, retrying: bool) -> SelfCheck:
    table = committed_table(backend.name)
    assert table is not None
    wanted: dict[OperatorKind, set[frozenset[str]]] = {}
    for graph in graphs:
        for kind, traits in list_needed_kinds(backend.name, graph).items():
            wanted.setdefault(kind, set()).update(traits)
    findings = known_findings(backend)
    if retrying or _is_aged(_file(backend)):
        findings = {kind: reason for kind, reason in findings.items() if not reason.startswith(_BAD_LUCK)}
    missing = {kind: traits for kind, traits in wanted.items() if kind not in findings}
    if missing:
        _LOG.info("%s %s is checked: its table is of %s", backend.name, backend.table_version(), table.version)
        fresh = _run(backend, missing, table, pool, progress)
        findings |= fresh
        _keep(backend, {kind: reason for kind, reason in findings.items() if reason != _LATE})
        for (name, version, types), reason in fresh.items():
            if reason:
                _LOG.warning("%s does not take %s-%s at %s: %s", backend.name, name, version, types, reason)
    return findings


def _run(
    backend: Backend,
    wanted: Mapping[OperatorKind, set[frozenset[str]]],
    told: CapabilityTable,
    pool: Pool,
    progress: Progress,
) -> dict[OperatorKind, str]:
    """Runs a sample of cases for each kind of operator; the reason against each, "" where there is none."""
    chosen = _sample(wanted, told)
    results: dict[OperatorKind, list[tuple[OperatorTrial, Result]]] = {kind: [] for kind in wanted}
    progress.start(f"self-check of {backend.name} {backend.table_version()}", len(chosen))

    def report(trial: OperatorTrial, result: Result) -> None:
        results[trial.operator, trial.version, trial.kind].append((trial, result))
        progress.advance(note=trial.operator)

    end = time.monotonic() + _BUDGET_S
    run_trials(
        pool, backend.name, chosen, report, batch=_BATCH, limit_s=_LIMIT_S, should_stop=lambda: time.monotonic() > end
    )
    progress.finish()
    tried = {(trial.operator, trial.version, trial.kind) for trial in chosen}
    return {kind: _verdict(outcomes, kind in tried) for kind, outcomes in results.items()}


def _verdict(made: Sequence[tuple[OperatorTrial, Result]], tried: bool) -> str:
    if not made:
        return _LATE if tried else f"onnx {onnx.__version__} has no case to check it with"
    for trial, result in made:
        if result.outcome in _HARMFUL:
            return f"{result.outcome} in {trial.name.partition(' ')[0]}: {result.reason}"
    if not any(result.outcome == "passes" for _, result in made):
        return f"refused: {made[0][1].reason}"
    return ""


def _sample(wanted: Mapping[OperatorKind, set[frozenset[str]]], told: CapabilityTable) -> list[OperatorTrial]:
    """For each kind the cases that share the most features with the operators in the graphs, without those that the table
    warns of anyway."""
    types = frozenset(kind.removesuffix(RUNTIME).split(">")[0] for _, _, kind in wanted)
    operators = {name.rpartition("::")[2] for name, _, _ in wanted}
    groups: dict[OperatorKind, list[OperatorTrial]] = {}
    for trial in trials([*suite_cases(operators), *base_cases(operators)], types=types):
        key = (trial.operator, trial.version, trial.kind)
        if key in wanted and find_avoided(told, key, trial.traits) is None:
            groups.setdefault(key, []).append(trial)

    def likeness(trial: OperatorTrial) -> int:
        return max(len(trial.traits & traits) for traits in wanted[trial.operator, trial.version, trial.kind])

    return [
        trial
        for group in groups.values()
        for trial in sorted(group, key=lambda trial: (-likeness(trial), trial.name))[:_CASES]
    ]


def _file(backend: Backend) -> Path:
    """Where the results for the installed version, the table and the device are kept."""
    facts = (backend.table_version(), table_digest(backend.name), onnx.__version__, host().fingerprint())
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]
    return cache_directory() / "selfchecks" / f"{backend.name}-{key}.json"


def _is_aged(path: Path) -> bool:
    """Whether the file is so old that bad luck is worth another try."""
    try:
        return not 0 <= time.time() - path.stat().st_mtime < EXPIRY_S
    except OSError:
        return False


def _keep(backend: Backend, found: SelfCheck) -> None:
    """Replaces the file at once: of two processes that check the same, the later one's results stay."""
    path = _file(backend)
    text = json.dumps(
        {
            "backend": backend.name,
            "version": backend.table_version(),
            "kinds": [[*k, r] for k, r in sorted(found.items())],
        }
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with scratch.using(scratch.make(path.parent, UNFINISHED)) as folder:
            (folder / path.name).write_text(text, encoding="utf-8")
            (folder / path.name).replace(path)
    except (OSError, NotWritable) as error:
        _LOG.warning("the self-check of %s is not kept: %s", backend.name, error)
