"""TVM tuned with a stated budget, TVM as its rules of thumb make it, and others, on whole networks.

    python -m benchmarks.tvm_tuned --seconds 600 --output out/tvm-tuned.json
    python -m benchmarks.tvm_tuned --workload mobilenet-v3,tinybert --trials 200 --json

For each workload a search tries schedules of TVM's tensor programs (docs/manual/tune.md) until its seconds or trials are spent, in
a cost database of its own. Its last part races what it found against the same configuration untuned, in turns, in worker
processes, checked against float64: `ratio` is untuned over tuned, with a 95 % interval. A second race, of TVM tuned and of every
configuration of TVM untuned and of the backends of `--beside`, says where TVM stands. The graph is not rewritten.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from benchmarks.latency import select
from benchmarks.tools.output import keep
from benchmarks.tuning import decide, private_costs, search
from benchmarks.workloads import export, workloads
from bricolage.api.bench import bench
from bricolage.base.options import Options
from bricolage.device.host import host
from bricolage.errors import BricolageError
from bricolage.plan import artifact
from bricolage.plan.race_outcome import Contestant
from bricolage.runtime.executable import Executable
from bricolage.tune.tuning_options import TuningOptions
from bricolage.work.implementation import Implementation

BACKEND = "tvm"
NETWORKS = "mobilenet-v3,tinybert,resnet-50"
BESIDE = "onnxruntime,openvino,native"
_RIVAL = "tuned"
"""Name of the artifact of TVM tuned, and so of a contestant."""


@dataclass(frozen=True)
class TunedNetwork:
    """One workload. Times in milliseconds."""

    workload: str
    configuration: str
    """Of TVM; the one that was fastest after the search."""
    untuned_ms: float | None
    tuned_ms: float | None
    """None where nothing was found, or nothing raced."""
    ratio: float
    """Untuned over tuned, from paired rounds; 1 where nothing was found."""
    ratio_ci: tuple[float, float]
    reason: str
    """Why nothing was searched or raced."""
    tasks: int
    changed: int
    """For which something else than the rules of thumb was chosen."""
    trials: int
    search_s: float
    raced_ms: float
    """The configuration with what was found, in the second race ..."""
    raced_ci: tuple[float, float]
    raced_error: float | None
    """... and its error against float64."""
    others_ms: Mapping[str, float] = field(default_factory=dict)
    """The fastest right configuration of each backend, TVM untuned among them, in the second race."""
    others_ci: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def measure(name: str, options: Options, tuning: TuningOptions, beside: Sequence[str], race_s: float) -> TunedNetwork:
    """Tunes TVM on one workload and races it.

    Raises:
        BricolageError: TVM does not run the workload, or is wrong.
    """
    workload = workloads()[name]
    found = search(name, options, tuning, "joint")
    best = min(found.implementations, key=lambda one: one.after_ms or one.before_ms or float("inf"))
    decision = decide(name, options)
    racing = replace(options, backends=(BACKEND, *beside), budget_s=race_s)
    with tempfile.TemporaryDirectory() as folder:
        rival = _artifact(decision, best.tuned.implementation, Path(folder))
        inputs = workload.example_inputs(options.seed)
        raced = bench(export(workload), racing, inputs=inputs, rivals=(rival,)).buckets[0].race.contestants
    tuned = next(one for one in raced if one.name.startswith(_RIVAL))
    if tuned.median_ms is None or tuned.ci_ms is None:
        raise BricolageError(message=f"TVM tuned did not finish the race on {name}: {tuned.reason}")
    others: dict[str, Contestant] = {}
    for one in sorted(
        (one for one in raced if one is not tuned and one.accepted), key=lambda one: one.median_ms or 0.0
    ):
        if one.median_ms is not None and one.ci_ms is not None:
            others.setdefault(one.name.split()[0], one)
    tasks = best.tuned.tasks
    return TunedNetwork(
        name,
        str(best.tuned.implementation),
        best.before_ms,
        best.after_ms,
        1.0 if best.gain is None else best.gain.value,
        (1.0, 1.0) if best.gain is None else (best.gain.low, best.gain.high),
        best.reason,
        len(tasks),
        sum(bool(task.choice) for task in tasks),
        sum(task.trials for task in tasks),
        found.seconds,
        tuned.median_ms,
        tuned.ci_ms,
        tuned.error,
        {backend: one.median_ms for backend, one in others.items() if one.median_ms is not None},
        {backend: one.ci_ms for backend, one in others.items() if one.ci_ms is not None},
    )


def _artifact(decision: Executable, tuned: Implementation, folder: Path) -> Path:
    """The artifact of a decision for TVM alone, with the whole on a tuned implementation."""
    plan, directory = artifact.load_artifact(decision.save(folder / "decided.bricolage"))
    bucket = plan.buckets[0]
    regions = tuple(replace(region, implementation=tuned) for region in bucket.program.regions)
    path = folder / f"{_RIVAL}.bricolage"
    tuned_bucket = bucket.with_regions(regions, bucket.program.schedule)
    artifact.save(replace(plan, buckets=(tuned_bucket,)), directory, path)
    return path


def table(rows: Sequence[TunedNetwork], beside: Sequence[str]) -> str:
    """All as a Markdown table; in brackets 95 % intervals."""
    names = (BACKEND, *beside)
    heads = (
        "workload",
        "untuned ms",
        "tuned ms",
        "ratio [95 % CI]",
        "changed",
        "trials",
        "search s",
        "tuned, raced",
        "error",
        *names,
    )
    lines = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
    for row in rows:
        cells = [
            *(row.workload, _number(row.untuned_ms), _number(row.tuned_ms)),
            f"**{row.ratio:.3f}** [{row.ratio_ci[0]:.3f}, {row.ratio_ci[1]:.3f}]",
            *(f"{row.changed} of {row.tasks}", str(row.trials), f"{row.search_s:.0f}"),
            f"{row.raced_ms:.3g} [{row.raced_ci[0]:.3g}, {row.raced_ci[1]:.3g}]",
            "–" if row.raced_error is None else f"{row.raced_error:.1e}",
            *(_cell(row, name) for name in names),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    mean = statistics.geometric_mean(row.ratio for row in rows) if rows else float("nan")
    return "\n".join([*lines, f"\nGeometric mean of the ratios: {mean:.3f}"])


def _number(ms: float | None) -> str:
    return "–" if ms is None else f"{ms:.3g}"


def _cell(row: TunedNetwork, backend: str) -> str:
    if backend not in row.others_ms:
        return "–"
    low, high = row.others_ci[backend]
    return f"{row.others_ms[backend]:.3g} [{low:.3g}, {high:.3g}]"


def main() -> int:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tvm_tuned", description=__doc__.partition("\n")[0])
    parser.add_argument("--workload", default=NETWORKS, help="names or families, separated by commas")
    parser.add_argument("--seconds", type=float, default=600.0, help="the most that each search may take")
    parser.add_argument(
        "--trials", type=int, help="schedules that each search tries; as many as the time allows by default"
    )
    parser.add_argument("--technique", default="bandit")
    parser.add_argument("--beside", default=BESIDE, help="backends of the second race, separated by commas")
    parser.add_argument("--race-seconds", type=float, default=180.0, help="for the second race, compiling included")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--output", type=Path, help="also write the JSON here, after each workload")
    given = parser.parse_args()
    rows, failures = list[TunedNetwork](), list[str]()
    threads = {"threads": given.threads} if given.threads else {}
    options = Options(budget_s=given.seconds, backends=(BACKEND,), rewrite=False, **threads)
    tuning = TuningOptions(technique=given.technique, trials=given.trials)
    beside = tuple(filter(None, given.beside.split(",")))
    for name in select(given.workload.split(",")):
        try:
            with private_costs(fresh=True):
                rows.append(measure(name, options, tuning, beside, given.race_seconds))
            print(table(rows[-1:], beside).splitlines()[2], file=sys.stderr, flush=True)
        except BricolageError as error:
            failures.append(f"{name}: {error}")
            print(failures[-1], file=sys.stderr, flush=True)
        budget = {"seconds": given.seconds, "trials": given.trials, "technique": given.technique}
        document = {
            "hardware": str(host()),
            "budget": budget,
            "rows": [asdict(row) for row in rows],
            "failures": failures,
        }
        keep(document, given.output)
    print(
        json.dumps(document, indent=1) if given.json else "\n".join([str(host()), "", table(rows, beside), *failures])
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
