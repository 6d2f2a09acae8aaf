"""`python -m benchmarks.door`: the share of (operator, types) pairs of ONNX Runtime that bricolage serves, what becomes of the
models of a file, and of trained networks.

    python -m benchmarks.door --json
    python -m benchmarks.door --cases FOLDER/cases.py --sample 200
    python -m benchmarks.door --operators Where,Conv --no-networks
    python -m benchmarks.door --valid

A pair is an operator with the element types of all of its inputs, at opset 21. It is served where `optimize` ships an answer
that is right; a pair is counted only where ONNX Runtime alone runs it. With `--valid` nothing is run: of the same models, and of
those of onnx's own suite, every graph that is made is shown to onnx's checker, its strict shape inference and ONNX Runtime. Exits
with 1 where an answer or a graph is wrong or something breaks.
"""

from __future__ import annotations

import argparse
import json
import pickle
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

from benchmarks.door import models, pairs, valid
from benchmarks.door.processes import apart
from benchmarks.real.__main__ import remark, rows_of
from benchmarks.tools.output import keep
from bricolage.backends import registry
from bricolage.base import scratch
from bricolage.device.host import host

_LIMIT_S = 300.0
_OUTCOMES = ("right", "refused", "wrong", "broken")
_BAD = ("wrong", "broken")


@dataclass
class Found:
    """Outcomes by name, and the reasons of those that are not right."""

    outcomes: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    path: Path | None = None
    """A file of rows, to which each is added; those that it has already are not tried again."""

    def __post_init__(self) -> None:
        path, self.path = self.path, None
        for line in path.read_text(encoding="utf-8").splitlines() if path is not None and path.exists() else ():
            if line.endswith("]"):  # a line cut off is no row
                self.note(*json.loads(line))
        self.path = path

    def note(self, name: str, outcome: str, reason: str) -> None:
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps([name, outcome, reason]) + "\n")
        self.outcomes[name] = outcome
        if reason and outcome not in ("right", "runs", "refuses"):
            self.reasons[name] = reason
        if outcome not in ("right", "runs", "refuses"):
            print(f"{outcome}: {name}: {reason}", file=sys.stderr, flush=True)

    @property
    def counts(self) -> dict[str, int]:
        found = Counter(self.outcomes.values())
        return {outcome: found[outcome] for outcome in _OUTCOMES}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.door", description=str(__doc__).split("\n\n")[0])
    parser.add_argument("--json", action="store_true", help="all that was found as JSON, not the figures alone")
    parser.add_argument("--output", type=Path, help="the same in a file")
    parser.add_argument("--sample", type=int, help="only so many of the pairs, always the same")
    parser.add_argument(
        "--rows",
        type=Path,
        help="a folder that keeps what became of each pair, case and network; another run goes on there",
    )
    parser.add_argument(
        "--minutes", type=float, help="no new pair after so many; they come in random order, always the same"
    )
    parser.add_argument("--operators", help="only pairs of these, for example Where,Conv")
    parser.add_argument("--cases", type=Path, help="a Python file with CASES, as benchmarks/README.md says")
    parser.add_argument("--only", default="", help="of the cases, those whose names begin so; commas between")
    parser.add_argument("--budget", type=float, default=10.0, help="seconds for each case and network")
    parser.add_argument("--no-pairs", action="store_true")
    parser.add_argument("--no-networks", action="store_true")
    parser.add_argument("--no-suite", action="store_true", help="with --valid, without the models of onnx's own suite")
    parser.add_argument("--valid", action="store_true", help="whether what is made of the models is valid, and no more")
    parser.add_argument("--child", choices=("onnxruntime", "pairs", "cases", "valid"), help=argparse.SUPPRESS)
    parser.add_argument("--names", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--pairs", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        _child(given)
        return 0
    document: dict[str, Any] = {
        "processor": str(host()),
        "versions": {backend.name: registry.version(backend.name) for backend in registry.available()},
        "onnx": onnx.__version__,
    }
    bad = 0
    if given.rows is not None:
        given.rows.mkdir(parents=True, exist_ok=True)
    if given.valid:
        document["models"], document["graphs"] = _valid(given)
        keep(document, given.output)
        _show(document, whole=given.json)
        return 1 if any(document[what][outcome] for what in ("models", "graphs") for outcome in _BAD) else 0
    if not given.no_pairs:
        document["pairs"], wrong = _pairs(given)
        bad += wrong
        keep(document, given.output)
    if given.cases:
        found = Found(path=given.rows and given.rows / f"{given.cases.stem}.jsonl")
        names = [name for name in _cases(given) if name not in found.outcomes]
        words = ["--cases", str(given.cases), "--budget", str(given.budget)]
        apart("cases", names, words, _LIMIT_S, found.note)
        document["cases"] = {"tried": len(found.outcomes), **found.counts, "reasons": found.reasons}
        bad += found.counts["wrong"] + found.counts["broken"]
        keep(document, given.output)
    if not given.no_networks:
        rows, skipped = rows_of("", ["--budget", str(given.budget)], given.rows)
        right = [row for row in rows if row.right and row.loaded]
        document["networks"] = {
            "tried": len(rows),
            "right": len(right),
            "right of float16, int8, ai.onnx.ml": sum(row.kind != "float32" for row in right),
            "slower": [row.network for row in rows if row.slower],
            "failed": {row.network: remark(row) for row in rows if row not in right},
            "skipped": skipped,
        }
        bad += sum(not row.failed for row in rows if row not in right)
    keep(document, given.output)
    _show(document, whole=given.json)
    return 1 if bad else 0


def _cases(given: argparse.Namespace) -> list[str]:
    """Names of those that are asked for."""
    return [name for name in models.read(given.cases) if name.startswith(tuple(given.only.split(",")))]


def _valid(given: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """Outcomes of models, and of the graphs that are made of them."""
    rows = Found(path=given.rows and given.rows / "valid.jsonl")
    operators = frozenset(given.operators.split(",")) if given.operators else None
    made = {} if given.no_pairs else {pair.name: pair for pair in pairs.pairs(operators)}
    kinds = {
        valid.SUITE: [] if given.no_suite else pairs.sample(list(valid.suite(operators)), given.sample),
        valid.PAIR: pairs.sample(list(made), given.sample),
        valid.CASE: _cases(given) if given.cases else [],
        valid.NETWORK: [] if given.no_networks else list(valid.NETWORKS),
    }
    names = [f"{kind} {name}" for kind, members in kinds.items() for name in members]
    with scratch.using(scratch.temporary()) as folder:
        path = folder / "pairs.pickle"
        path.write_bytes(pickle.dumps({name: made[name] for name in kinds[valid.PAIR]}))
        words = ["--pairs", str(path), *(["--cases", str(given.cases)] if given.cases else [])]
        until = time.monotonic() + 60 * given.minutes if given.minutes else None
        apart("valid", [name for name in names if name not in rows.outcomes], words, _LIMIT_S, rows.note, until)
    tried = {name: outcome for name, outcome in rows.outcomes.items() if name in set(names)}
    graphs = {
        name: outcome for name, outcome in rows.outcomes.items() if name.partition(": ")[0] in tried.keys() - {name}
    }
    return _counted(tried, rows), _counted(graphs, rows)


def _counted(outcomes: Mapping[str, str], rows: Found) -> dict[str, Any]:
    counts = Counter(outcomes.values())
    reasons = {name: rows.reasons[name] for name in outcomes if name in rows.reasons}
    return {"tried": len(outcomes), **{outcome: counts[outcome] for outcome in _OUTCOMES}, "reasons": reasons}


def _pairs(given: argparse.Namespace) -> tuple[dict[str, Any], int]:
    operators = frozenset(given.operators.split(",")) if given.operators else None
    print("making pairs …", file=sys.stderr)
    made = {pair.name: pair for pair in pairs.pairs(operators)}
    names = pairs.sample(list(made), given.sample)
    theirs, ours = (Found(path=given.rows and given.rows / f"{who}.jsonl") for who in ("onnxruntime", "bricolage"))
    until = time.monotonic() + 60 * given.minutes if given.minutes else None
    with scratch.using(scratch.temporary()) as folder:
        path = folder / "pairs.pickle"
        path.write_bytes(pickle.dumps({name: made[name] for name in names}))
        words = ["--pairs", str(path)]
        apart("onnxruntime", [name for name in names if name not in theirs.outcomes], words, _LIMIT_S, theirs.note)
        run = [name for name in names if theirs.outcomes.get(name) == "runs"]
        todo = [name for name in run if name not in ours.outcomes]
        apart("pairs", todo, words, _LIMIT_S, ours.note, until)
    counts = Counter(ours.outcomes[name] for name in run if name in ours.outcomes)
    asked = sum(counts.values())
    found = {
        "tried": len(names),
        "onnxruntime": len(run),
        "asked": asked,
        "share": counts["right"] / asked if asked else 1.0,
        **{outcome: counts[outcome] for outcome in _OUTCOMES},
        "reasons": {name: why for name, why in ours.reasons.items() if name in run},
    }
    return found, counts["wrong"] + counts["broken"]


def _child(given: argparse.Namespace) -> None:
    names: list[str] = json.loads(given.names.read_text(encoding="utf-8"))
    if given.child == "cases":
        with scratch.using(scratch.temporary()) as folder:
            models.tried(given.cases, names, given.budget, folder)
        return
    if given.child == "valid":
        valid.validated(names, given.cases, given.pairs)
        return
    made: dict[str, pairs.Pair] = pickle.loads(given.pairs.read_bytes())  # written by the parent a moment ago
    chosen = [made[name] for name in names]
    (pairs.run_by_onnxruntime if given.child == "onnxruntime" else pairs.served)(chosen)


def _show(document: dict[str, Any], *, whole: bool) -> None:
    if whole:
        print(json.dumps(document, indent=1))
    for what in ("pairs", "cases", "networks", "models", "graphs"):
        if what in document:
            told = {key: value for key, value in document[what].items() if not isinstance(value, dict | list)}
            words = ", ".join(
                f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in told.items()
            )
            print(f"{what}: {words}", file=sys.stderr if whole else sys.stdout)


if __name__ == "__main__":
    sys.exit(main())
