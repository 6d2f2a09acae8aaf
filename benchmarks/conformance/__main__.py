"""`python -m benchmarks.conformance`: the ONNX backend suite through bricolage and through ONNX Runtime's own ONNX backend.

Exits with 1 where an answer is wrong, where bricolage passes fewer cases than ONNX Runtime, or where the results differ from the
list of what need not pass. The last line has the figure. Results are kept in `--output`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import onnx

from benchmarks.conformance import expected
from benchmarks.conformance.contestants import BRICOLAGE, ONNX_RUNTIME, names
from benchmarks.conformance.processes import run
from bricolage.conformance.attempt import Result
from bricolage.conformance.suite import Case, suite_cases, tenth

_OUTCOMES = ("passes", "refuses", "wrong", "crashes", "times-out")
_REASONS = 25


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.conformance", description=__doc__)
    parser.add_argument(
        "--contestant", action="append", help="who runs the cases (repeatable); by default bricolage and ONNX Runtime"
    )
    parser.add_argument("--match", default="", help="only cases whose name contains this")
    parser.add_argument("--tenth", action="store_true", help="only the fixed tenth that the tests run")
    parser.add_argument("--reasons", action="store_true", help="count the reasons of what did not pass")
    parser.add_argument("--accept", action="store_true", help="write the list of what need not pass from a whole run")
    parser.add_argument("--output", type=Path, default=Path("out/conformance.json"))
    options = parser.parse_args()
    contestants = options.contestant or [BRICOLAGE, ONNX_RUNTIME]
    unknown = set(contestants) - set(names())
    if unknown:
        parser.error(f"contestants are: {', '.join(names())}")
    print("reading the suite …", file=sys.stderr)
    suite = [case for case in suite_cases() if options.match in case.name]
    suite = tenth(suite) if options.tenth else suite
    found = {contestant: _run(contestant, suite) for contestant in contestants}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(
        json.dumps(
            {who: {name: asdict(one) for name, one in results.items()} for who, results in found.items()}, indent=1
        ),
        encoding="utf-8",
    )
    for contestant, results in found.items():
        _table(contestant, suite, results)
        if options.reasons:
            _reasons(results)
    if BRICOLAGE not in found:
        return 0
    if options.accept:
        expected.write(expected.compiled(found[BRICOLAGE]))
    return _verdict(found)


def _run(contestant: str, suite: list[Case]) -> dict[str, Result]:
    results: dict[str, Result] = {}
    begin = told = time.monotonic()

    def report(case: Case, result: Result) -> None:
        nonlocal told
        results[case.name] = result
        if time.monotonic() - told > 10:
            told = time.monotonic()
            print(f"{contestant}: {len(results)} of {len(suite)}, {told - begin:.0f} s", file=sys.stderr)

    run(contestant, suite, report)
    return results


def _table(contestant: str, suite: list[Case], results: dict[str, Result]) -> None:
    print(f"\n{contestant:20}" + "".join(f"{outcome:>10}" for outcome in _OUTCOMES))
    for kind in dict.fromkeys(case.kind for case in suite):
        counts = Counter[str](results[case.name].outcome for case in suite if case.kind == kind)
        print(f"  {kind:18}" + "".join(f"{counts[outcome]:10}" for outcome in _OUTCOMES))
    for name, result in results.items():
        if result.outcome not in ("passes", "refuses"):
            print(f"  {result.outcome}: {name}: {result.reason}")


def _reasons(results: dict[str, Result]) -> None:
    counts = Counter(f"{one.outcome}: {one.reason}" for one in results.values() if one.outcome != "passes")
    for reason, count in counts.most_common(_REASONS):
        print(f"  {count:5}  {reason}")


def _verdict(found: dict[str, dict[str, Result]]) -> int:
    complaints = expected.complaints(found[BRICOLAGE], expected.entries())
    print()
    for line in complaints:
        print(line)
    ours = Counter(result.outcome for result in found[BRICOLAGE].values())
    wrong = sum(count for outcome, count in ours.items() if outcome not in ("passes", "refuses"))
    line = f"conformance with onnx {onnx.__version__}: bricolage passes {ours['passes']}, refuses {ours['refuses']}, {wrong} wrong"
    fewer = False
    if ONNX_RUNTIME in found:
        theirs = Counter(result.outcome for result in found[ONNX_RUNTIME].values())
        fewer = ours["passes"] < theirs["passes"]
        bad = sum(count for outcome, count in theirs.items() if outcome not in ("passes", "refuses"))
        line += f"; ONNX Runtime passes {theirs['passes']}, refuses {theirs['refuses']}, {bad} wrong"
    print(line)
    return 1 if complaints or wrong or fewer else 0


if __name__ == "__main__":
    sys.exit(main())
