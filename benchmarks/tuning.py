"""What a search for kernels gains over rules of thumb: a backend tuned against itself, on whole networks.

    python -m benchmarks.tuning --workload six --json
    python -m benchmarks.tuning --workload six --backend tvm --budget 600 --output out/tvm.json
    python -m benchmarks.tuning --workload resnet-50 --technique random --fresh
    python -m benchmarks.tuning --workload resnet-50 --order sequential --fresh

For each workload `tune` searches for so many seconds; then a decision for that backend alone, which finds the result in the cost
database, races all of its configurations, tuned and not, in turns, checked against float64. `ratio` is the fastest usual one over
the fastest tuned one in that race. The graph is not rewritten. With `--fresh` each workload has a cost database of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

from benchmarks.latency import select
from benchmarks.tools.output import keep
from benchmarks.workloads import export, workloads
from bricolage.api.optimize import optimize
from bricolage.api.tune import tune
from bricolage.base.options import Options
from bricolage.costs.connection import VARIABLE
from bricolage.device.host import host
from bricolage.driver.joint_tuning import Order
from bricolage.driver.model_tuning import Tuned
from bricolage.errors import BricolageError
from bricolage.plan.plan import Bucket
from bricolage.plan.race_outcome import Contestant
from bricolage.runtime.executable import Executable
from bricolage.tune.tuning_options import TuningOptions


@dataclass(frozen=True)
class Row:
    """One workload; milliseconds of the whole."""

    workload: str
    backend: str
    usual: str
    """The fastest of the usual configurations."""
    usual_ms: float
    tuned: str
    """The fastest of those that a search has changed; empty where it found nothing."""
    tuned_ms: float
    ratio: float
    """Usual over tuned; the tuned one ships only where that is surely more than a gain of 2 %, so that the loss of a ratio below
    1 is nobody's."""
    ratio_ci: tuple[float, float]
    shipped: str
    error: float
    """Of the tuned one's answer, against float64."""
    tasks: int
    changed: int
    """For which something else than the rules of thumb was chosen."""
    trials: int
    search_s: float


def search(name: str, options: Options, tuning: TuningOptions, order: Order) -> Tuned:
    """Searches for one workload with its own inputs; what it finds stays in the cost database.

    Raises:
        BricolageError: no backend runs it.
    """
    workload = workloads()[name]
    return tune(export(workload), options, tuning=tuning, order=order, inputs=workload.example_inputs(options.seed))


def decide(name: str, options: Options) -> Executable:
    """A decision that finds in the cost database what was searched for.

    Raises:
        BricolageError: no backend runs the workload, or all are wrong.
    """
    workload = workloads()[name]
    deciding = Options(options.precision, threads=options.threads, backends=options.backends, rewrite=options.rewrite)
    return optimize(export(workload), deciding, inputs=workload.example_inputs(options.seed), replan=True)


def run(name: str, backend: str, options: Options, tuning: TuningOptions, order: Order) -> Row:
    """Searches for one workload and races what was found.

    Raises:
        BricolageError: the backend does not run it, or is wrong.
    """
    found = search(name, options, tuning, order)
    bucket = decide(name, options).plan.buckets[0]
    usual, tuned = _fastest(bucket, tuned=False), _fastest(bucket, tuned=True)
    if usual is None or usual.median_ms is None:
        raise BricolageError(message=f"{backend} does not run {name}")
    tasks = [task for one in found.implementations for task in one.tuned.tasks]
    ratio, low, high = _ratio(bucket, usual, tuned)
    return Row(
        name,
        backend,
        usual.name,
        usual.median_ms,
        "" if tuned is None else tuned.name,
        usual.median_ms if tuned is None or tuned.median_ms is None else tuned.median_ms,
        ratio,
        (low, high),
        bucket.race.chosen,
        float("nan") if tuned is None or tuned.error is None else tuned.error,
        len(tasks),
        sum(bool(task.choice) for task in tasks),
        sum(task.trials for task in tasks),
        found.seconds,
    )


def _fastest(bucket: Bucket, *, tuned: bool) -> Contestant | None:
    own = [
        one
        for one in bucket.race.contestants
        if one.implementation is not None
        and one.median_ms is not None
        and one.accepted
        and one.implementation.tuned == tuned
    ]
    return min(own, key=lambda one: (one.name != bucket.race.best_baseline, one.median_ms or 0.0), default=None)


def _ratio(bucket: Bucket, usual: Contestant, tuned: Contestant | None) -> tuple[float, float, float]:
    """Usual over tuned with its interval. The race has everybody's ratio to the best baseline, which is the usual one."""
    if tuned is None:
        return 1.0, 1.0, 1.0
    if usual.name == bucket.race.best_baseline and tuned.speedup is not None and tuned.speedup_ci is not None:
        return tuned.speedup, *tuned.speedup_ci
    assert usual.median_ms is not None and tuned.median_ms is not None
    value = usual.median_ms / tuned.median_ms
    return value, value, value


def table(rows: Sequence[Row]) -> str:
    """All as a Markdown table."""
    lines = [
        "| workload | backend | usual | ms | tuned ms | ratio [95 % CI] | ships | error | tasks changed | trials | search s |",
        "|---|---|---|---:|---:|---:|---|---:|---:|---:|---:|",
    ]
    for row in rows:
        cells = [
            *(row.workload, row.backend, row.usual, f"{row.usual_ms:.3g}", f"{row.tuned_ms:.3g}"),
            f"**{row.ratio:.3f}** [{row.ratio_ci[0]:.3f}, {row.ratio_ci[1]:.3f}]",
            *(row.shipped, f"{row.error:.1e}", f"{row.changed} of {row.tasks}", str(row.trials), f"{row.search_s:.0f}"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    mean = statistics.geometric_mean(row.ratio for row in rows) if rows else float("nan")
    return "\n".join([*lines, f"| geometric mean | | | | | **{mean:.3f}** | | | | | |"])


@contextmanager
def private_costs(*, fresh: bool) -> Iterator[None]:
    """The database of costs: the usual one, or one that ends with the block."""
    if not fresh:
        yield
        return
    before = {name: os.environ.get(name) for name in ("BRICOLAGE_CACHE", VARIABLE)}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["BRICOLAGE_CACHE"] = folder
        os.environ.pop(VARIABLE, None)
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                os.environ.update({} if value is None else {name: value})


def main() -> int:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tuning", description=__doc__.partition("\n")[0])
    parser.add_argument("--workload", default="six", help="names or families, separated by commas")
    parser.add_argument("--backend", default="native")
    parser.add_argument("--budget", type=float, default=600.0, help="seconds for each search")
    parser.add_argument("--technique", default="bandit")
    parser.add_argument("--order", default="joint", choices=get_args(Order))
    parser.add_argument("--fresh", action="store_true", help="know nothing from before")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--output", type=Path, help="also write the JSON here, after each workload")
    given = parser.parse_args()
    rows, failures = list[Row](), list[str]()
    options = Options(budget_s=given.budget, backends=(given.backend,), rewrite=False)
    for name in select(given.workload.split(",")):
        try:
            with private_costs(fresh=given.fresh):
                rows.append(run(name, given.backend, options, TuningOptions(technique=given.technique), given.order))
            print(table(rows[-1:]).splitlines()[2], file=sys.stderr, flush=True)
        except BricolageError as error:
            failures.append(f"{name}: {error}")
            print(failures[-1], file=sys.stderr, flush=True)
        document = {"hardware": str(host()), "rows": [asdict(row) for row in rows], "failures": failures}
        keep(document, given.output)
    print(json.dumps(document, indent=1) if given.json else "\n".join([str(host()), "", table(rows), *failures]))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
