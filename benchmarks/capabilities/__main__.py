"""`python -m benchmarks.capabilities --backend NAME`: makes the capability table of a backend.

Finished results are kept in the user's cache directory, so an interrupted run goes on where it stopped, as long as the
backend's version and our lowerings are the same; `--fresh` begins again. `--docs` writes docs/reference/capabilities.md from all
tables.
`--stale` names the tables that are older than the lowerings which they rest on, with the command that makes each again, and ends
with 1 if there are any. `--changed` makes a table again for those operators only whose lowerings have changed since.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import onnx

from benchmarks.capabilities.document import document
from benchmarks.capabilities.lowerings import changed, changed_operators, digests
from benchmarks.capabilities.tabulate import make_table, merged, to_json
from benchmarks.tools.output import ResultLines
from bricolage.backends import registry
from bricolage.backends.capabilities import FOLDER, command, committed_table, is_current
from bricolage.base.cache import cache_directory
from bricolage.conformance.attempt import Result
from bricolage.conformance.bases import base_cases
from bricolage.conformance.suite import Case, suite_cases
from bricolage.conformance.trial_cases import OLDEST_OPSET, OperatorTrial, trials
from bricolage.measure.conformance_trials import run_trials
from bricolage.measure.pool import Pool

_BEGUN = "begun"
"""Name of the line of kept results that says when the first was made."""
_NAMED = 8
"""Files that a complaint names; of further ones their number."""
_DOCS = Path(__file__).parents[2] / "docs" / "reference" / "capabilities.md"


def main() -> int:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.capabilities", description=__doc__)
    parser.add_argument(
        "--backend",
        choices=[*registry.names(), "all"],
        help="make the table of this backend, or of each that is installed, with the restrictions of its table",
    )
    parser.add_argument("--docs", action="store_true", help="write docs/reference/capabilities.md from all tables")
    parser.add_argument("--jobs", type=int, default=1, help="child processes at a time")
    parser.add_argument("--batch", type=int, default=1, help="trials compiled together, for slow compilers")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds for one case")
    parser.add_argument("--fresh", action="store_true", help="forget the results of earlier runs")
    parser.add_argument("--limit", type=int, help="only the first N trials; the table is printed, not written")
    parser.add_argument(
        "--operators", help="only these, for example Cast,Conv; what the committed table says of others stays as it is"
    )
    parser.add_argument(
        "--changed",
        action="store_true",
        help="only operators whose lowerings have changed since the committed table; all where what all of them share has",
    )
    parser.add_argument("--match", help="only trials whose name contains this; every result is printed, no table")
    parser.add_argument(
        "--stale", action="store_true", help="name tables that are older than our lowerings; 1 if any is"
    )
    parser.add_argument(
        "--same-answers",
        action="store_true",
        help="measure nothing: record that the lowerings as they are now give the answers in the table of --backend",
    )
    restrict = parser.add_argument_group("restrictions for backends that compile slowly (recorded in the table)")
    restrict.add_argument("--single-only", action="store_true", help="skip the models of several operators")
    restrict.add_argument("--newest", action="store_true", help="only the newest version of each operator")
    restrict.add_argument("--types", help="only these main element types, for example float32,int64,bool")
    restrict.add_argument("--per-kind", type=int, help="at most N cases for an operator, version and type")
    options = parser.parse_args()
    if options.operators and options.changed:
        parser.error("--operators and --changed say the same; give one")
    if not options.backend and not options.docs and not options.stale:
        parser.error("give --backend, --docs or both, or --stale")
    if options.same_answers:
        _vouch([name for name in registry.names() if options.backend in (name, "all")])
    elif options.backend == "all":
        for backend in registry.available():
            known = committed_table(backend.name)
            restriction = known.restriction if known else {}
            _make(argparse.Namespace(**{**vars(options), **restriction, "backend": backend.name}))
    elif options.backend:
        _make(options)
    if options.docs:
        _DOCS.parent.mkdir(exist_ok=True)
        _DOCS.write_text(document(), encoding="utf-8")
        print(f"wrote {_DOCS}", file=sys.stderr)
    if options.stale and (old := stale()):
        print("\n".join(_complaint(name, files) for name, files in old.items()))
        return 1
    return 0


def _complaint(name: str, files: Sequence[str]) -> str:
    """What is wrong with a table that is older than `files`, and what to do."""
    known = committed_table(name)
    assert known is not None
    touched = changed_operators(known)
    which = (
        "any operator may answer otherwise"
        if touched is None
        else f"operators that may answer otherwise: {len(touched)}"
    )
    named = ", ".join([*files[:_NAMED], *([f"and {len(files) - _NAMED} more files"] if len(files) > _NAMED else [])])
    return (
        f"The capability table of {name} (made {known.made}) is older than lowerings that it rests on: {named}; {which}."
        f" Make it again with `{command(known)} --changed`, or, where every answer is known to be as it was, "
        f"with `python -m benchmarks.capabilities --backend {name} --same-answers --docs`."
    )


def stale() -> dict[str, list[str]]:
    """Tables that are older than what they rest on, with the files that have changed since."""
    found = {name: changed(known) for name in registry.names() if (known := committed_table(name)) is not None}
    return {name: files for name, files in found.items() if files}


def _vouch(names: Sequence[str]) -> None:
    for name in names:
        if (known := committed_table(name)) is not None:
            (FOLDER / f"{name}.json").write_text(to_json(replace(known, lowerings=digests(name))), encoding="utf-8")
            print(f"wrote {FOLDER / f'{name}.json'}", file=sys.stderr)
    committed_table.cache_clear()


def _operators(options: argparse.Namespace) -> frozenset[str] | None:
    """The operators whose cases are to run; None for all, as on another version than the committed table's."""
    known, backend = committed_table(options.backend), registry.get(options.backend)
    if options.changed:
        same = known is not None and is_current(backend) and known.onnx == onnx.__version__
        return changed_operators(known) if known is not None and same else None
    return frozenset(options.operators.split(",")) if options.operators else None


def _thinned(made: Sequence[OperatorTrial], count: int) -> list[OperatorTrial]:
    """At most `count` trials of each operator, version class and type key, and no models of several operators."""
    seen: dict[tuple[str, str, str], int] = defaultdict(int)
    kept: list[OperatorTrial] = []
    for trial in made:
        key = (trial.operator, trial.version, trial.kind)
        seen[key] += 1
        if trial.operator and seen[key] <= count:
            kept.append(trial)
    return kept


def _make(options: argparse.Namespace) -> None:
    version = registry.version(options.backend)
    restriction: dict[str, Any] = {
        key: value
        for key in ("single_only", "newest", "types", "per_kind")
        if (value := getattr(options, key)) not in (None, False)
    }
    print("reading the suite …", file=sys.stderr)
    types = frozenset(options.types.split(",")) if options.types else None
    operators = _operators(options)
    if operators is not None and not operators:
        _vouch([options.backend])
        return
    made = trials([*suite_cases(operators), *base_cases(operators)], newest_only=options.newest, types=types)
    if options.per_kind:
        made = _thinned(made, options.per_kind)
    if options.single_only:
        made = [trial for trial in made if trial.operator]
    if options.match:
        made = [trial for trial in made if options.match in trial.name]
    results, begun = _results(options, version, [*_probes(), *made[: options.limit]])
    loaded = [opset for opset, probe in enumerate(_probes(), OLDEST_OPSET) if results[probe.name].outcome == "passes"]
    pairs = [(trial, results[trial.name]) for trial in made[: options.limit]]
    if options.match:
        for trial, result in pairs:
            print(f"{result.outcome:9} {trial.name}  {result.reason}")
        return
    bound_to = registry.get(options.backend).table_version() or version
    most = max(loaded, default=0)
    resting_on = digests(options.backend)
    new = make_table(options.backend, bound_to, onnx.__version__, most, begun, restriction, pairs, resting_on)
    old = committed_table(options.backend)
    if operators is not None and old is not None:
        new = merged(old, new, operators)
    text = to_json(new)
    if options.limit is not None:
        print(text, end="")
        return
    FOLDER.mkdir(exist_ok=True)
    target = FOLDER / f"{options.backend}.json"
    target.write_text(text, encoding="utf-8")
    print(f"wrote {target}", file=sys.stderr)


def _probes() -> list[OperatorTrial]:
    """Relu at every opset: which of them the backend loads at all."""
    import numpy as np

    found: list[OperatorTrial] = []
    x = np.asarray([-1, 2], dtype=np.float32)
    for opset in range(OLDEST_OPSET, onnx.defs.onnx_opset_version() + 1):
        ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "xy"]
        graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "probe", ends[:1], ends[1:])
        imports = [onnx.helper.make_opsetid("", opset)]
        ir_version = max(10, onnx.helper.find_min_ir_version_for(imports))
        model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=ir_version)
        case = Case(f"opset {opset}", model, (x,), (np.maximum(x, 0),), 0.0, 0.0)
        nothing: frozenset[str] = frozenset()
        found.append(
            OperatorTrial(
                case.name, "", "", "", nothing, case.model, case.inputs, case.outputs, case.rtol, case.atol, False
            )
        )
    return found


def _results(options: argparse.Namespace, version: str, made: list[OperatorTrial]) -> tuple[dict[str, Result], str]:
    """Outcome of every trial, from the cache or from a run now, and the day on which the first of them was known."""
    folder = cache_directory() / "capabilities"
    resting_on = hashlib.sha256(json.dumps(digests(options.backend)).encode()).hexdigest()[:12]
    path = folder / f"{options.backend}-{version}-onnx-{onnx.__version__}-{resting_on}.jsonl"
    if options.fresh:
        path.unlink(missing_ok=True)
    kept = ResultLines(path)
    if _BEGUN not in kept.values:
        kept.add(_BEGUN, "", date.today().isoformat())
    todo = [trial for trial in made if trial.name not in kept.values]
    print(f"{len(made)} trials, {len(todo)} to run on {options.backend} {version}", file=sys.stderr)
    progress = _Progress(len(todo), kept)
    with Pool() as pool:
        run_trials(
            pool,
            options.backend,
            todo,
            progress.report,
            jobs=options.jobs,
            batch=options.batch,
            limit_s=options.time_limit,
        )
    results = {name: Result(*values) for name, values in kept.values.items() if name != _BEGUN}
    return results, kept.values[_BEGUN][-1]


class _Progress:
    """Keeps every result at once, and tells how far the run is every ten seconds."""

    def __init__(self, total: int, kept: ResultLines) -> None:
        self._total, self._kept = total, kept
        self._done, self._begin = 0, time.monotonic()
        self._told = self._begin

    def report(self, trial: OperatorTrial, result: Result) -> None:
        self._kept.add(trial.name, result.outcome, result.reason)
        self._done += 1
        now = time.monotonic()
        if now - self._told > 10:
            self._told = now
            left = (now - self._begin) / self._done * (self._total - self._done)
            print(f"{self._done} of {self._total}, {left:.0f} s left", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
