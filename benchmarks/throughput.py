"""Requests a second of what bricolage ships against every single backend at its best settings.

    python -m benchmarks.throughput --workload six,minilm-l6 --budget 300
    python -m benchmarks.throughput --workload resnet-50 --latency-limit 100ms --output out/throughput-resnet-50.json
    python -m benchmarks.throughput --show out/throughput-*.json

For each workload: `optimize` decides for throughput (its time is recorded), the artifact is written, and an *independent*
search and race follow (`bench`), in which every backend is tried again in every layout of streams, at every batch, and with its
own queue where it has one; the best operating points of each and the artifact's plan race, interleaved, each in processes of
its own, all checked against float64 in the same run. The figures are those of this second race. A request is one row of the
batch where a model has such a dimension, else one call. Latencies are those of a closed loop: nobody waits for a stream.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.latency import select
from benchmarks.tools.output import keep
from benchmarks.workloads import export, workloads
from bricolage.api.bench import CHALLENGER, bench
from bricolage.api.optimize import optimize
from bricolage.api.serve import serve
from bricolage.base.codec import decode
from bricolage.base.option_words import parse_milliseconds
from bricolage.base.options import PRECISIONS, Options
from bricolage.device.host import host
from bricolage.errors import BricolageError
from bricolage.plan.operating_point import OperatingPoint
from bricolage.plan.throughput import ServingConfig

_OWN = "native"
"""bricolage's own engine: a single backend like any other, but no other tool."""
_SUBMITTING_S = 5.0
_LEAST_REQUESTS, _MOST_REQUESTS = 20, 50_000


@dataclass(frozen=True)
class Result:
    """One row. Ratios are of requests a second: above 1, bricolage answers more."""

    workload: str
    precision: str
    point: OperatingPoint
    shipped: str
    ours: ServingConfig
    best_peer: str
    """Of all single backends, our own engine among them."""
    servers: tuple[ServingConfig, ...]
    """All that were tried in the second race's process, with their figures."""
    latency_limit_ms: float | None
    optimize_s: float
    submitted_per_s: float
    """Requests a second through `Executable.submit`, by itself, after the race: with queue, futures and batches as they form."""
    submitted_p99_ms: float
    """Of requests, queueing included."""

    @property
    def in_time(self) -> bool:
        """Whether 99 of 100 requests were answered within the limit."""
        return self.latency_limit_ms is None or (self.ours.p99_ms or 0.0) <= self.latency_limit_ms

    @property
    def best_other(self) -> ServingConfig | None:
        """The other tool that answers the most requests in time, of those that raced; None where there is none."""
        limit = float("inf") if self.latency_limit_ms is None else self.latency_limit_ms
        others = [one for one in self.servers if one.program.split()[0] not in (_OWN, CHALLENGER) and one.raced]
        right = [one for one in others if one.accepted and one.p99_ms is not None and one.p99_ms <= limit]
        return max(right, key=lambda one: one.rate or 0.0, default=None)

    @property
    def gain(self) -> tuple[float, float, float] | None:
        """bricolage over the best other tool, with its 95 % interval. Where the best single backend is our own engine, the
        intervals of both ratios to it are put together, which makes them wider than they are."""
        other = self.best_other
        if other is None or self.ours.ratio is None or self.ours.ratio_ci is None:
            return None
        if other.name == self.best_peer:
            return self.ours.ratio, *self.ours.ratio_ci
        if other.ratio is None or other.ratio_ci is None or not other.ratio_ci[0]:
            return None
        (low, high), (own_low, own_high) = other.ratio_ci, self.ours.ratio_ci
        return self.ours.ratio / other.ratio, own_low / high, own_high / low


def run(name: str, options: Options) -> Result:
    """Optimises one workload for throughput, and races the outcome.

    Raises:
        BricolageError: the workload cannot be optimised, or the plan did not finish the race.
    """
    workload = workloads()[name]
    path, inputs = export(workload), workload.example_inputs(options.seed)
    begun = time.monotonic()
    fast = optimize(path, options, inputs=inputs)
    seconds = time.monotonic() - begun
    decided, point = fast.plan.throughput, fast.plan.operating_point
    assert decided is not None and point is not None
    with tempfile.TemporaryDirectory() as folder:
        raced = bench(fast.save(Path(folder) / f"{name}.bricolage"), options, inputs=inputs).throughput
    assert raced is not None
    ours = next(one for one in raced.servers if one.program == CHALLENGER)
    if not ours.accepted or ours.ratio is None:
        raise BricolageError(message=f"the plan did not finish the race: {ours.reason}")
    row = {key: array[:1] for key, array in inputs.items()} if decided.batch_dimension else inputs
    requests = int(min(max((ours.rate or 0.0) * _SUBMITTING_S, _LEAST_REQUESTS), _MOST_REQUESTS))
    with fast:
        served = serve(fast, row, requests, point.streams * point.batch)
    return Result(
        workload=name,
        precision=options.precision,
        point=point,
        shipped=decided.winner.program,
        ours=ours,
        best_peer=raced.best_peer,
        servers=raced.servers,
        latency_limit_ms=options.latency_limit_ms,
        optimize_s=seconds,
        submitted_per_s=served.requests / served.seconds,
        submitted_p99_ms=served.statistics.latency.p99_ms,
    )


def table(results: Sequence[Result]) -> str:
    """The results as a Markdown table. The first ratio is to the best single backend, our own engine among them; the second to the
    best of the other tools."""
    lines = [
        "| workload | precision | bricolage ships | requests/s | p50 ms | p99 ms | best single | ratio [95 % CI] "
        "| best other tool | requests/s | p99 ms | ratio [95 % CI] | by `submit` requests/s | p99 ms | optimize s |",
        "|---|---|---|---:|---:|---:|---|---|---|---:|---:|---|---:|---:|---:|",
    ]
    for r in results:
        other, gain = "| | | | ", r.gain
        if r.best_other is not None and gain is not None:
            other = f"| {r.best_other.name} | {r.best_other.rate:.4g} | {r.best_other.p99_ms:.3g} "
            other += f"| **{gain[0]:.3f}** [{gain[1]:.3f}, {gain[2]:.3f}] "
        ci = r.ours.ratio_ci or (0.0, 0.0)
        batch = "" if r.point.batch == 1 else f", batch {r.point.batch}"
        late = "" if r.in_time else " (too late)"
        lines.append(
            f"| {r.workload} | {r.precision} | {r.shipped}, {r.point.streams} × {r.point.threads} threads{batch} "
            f"| {r.ours.rate:.4g} | {r.ours.p50_ms:.3g} | {r.ours.p99_ms:.3g}{late} | {r.best_peer} "
            f"| {r.ours.ratio:.3f} [{ci[0]:.3f}, {ci[1]:.3f}] {other}"
            f"| {r.submitted_per_s:.4g} | {r.submitted_p99_ms:.3g} | {r.optimize_s:.0f} |"
        )
    return "\n".join(lines)


def averages(results: Sequence[Result]) -> str:
    """The geometric mean of the ratios to the best other tool, in a line."""
    gains = [r.gain[0] for r in results if r.gain is not None and r.in_time]
    if not gains:
        return "no ratio to another tool"
    return f"geometric mean over the best other tool: {statistics.geometric_mean(gains):.3f} ({len(gains)} workloads)"


def stored(paths: Sequence[Path]) -> list[Result]:
    """Rows of files that `--output` wrote, the latest of each workload, precision and limit.

    Raises:
        DecodeError: a file is from another version.
    """
    found: dict[tuple[str, str, float | None], Result] = {}
    for path in paths:
        for row in json.loads(path.read_text(encoding="utf-8"))["results"]:
            result = decode(Result, row["raced"], str(path))
            found[result.workload, result.precision, result.latency_limit_ms] = result
    order = list(workloads())
    return sorted(found.values(), key=lambda r: (PRECISIONS.index(r.precision), order.index(r.workload)))


def _document(results: Sequence[Result], failures: Sequence[str]) -> dict[str, object]:
    rows = []
    for r in results:
        gain = r.gain
        facts = {"workload": r.workload, "precision": r.precision, "p99_ms": r.ours.p99_ms, "in_time": r.in_time}
        ratio = {"ratio": None if gain is None else gain[0], "ratio_ci": None if gain is None else gain[1:]}
        rows.append({**facts, **ratio, "raced": dataclasses.asdict(r)})
    return {"hardware": str(host()), "results": rows, "failures": list(failures)}


def main() -> int:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.throughput", description=__doc__.partition("\n")[0])
    parser.add_argument("--workload", default="six,minilm-l6", help="names or families, separated by commas")
    parser.add_argument("--precision", default="highest", choices=PRECISIONS)
    parser.add_argument("--effort", default="quick", choices=["quick", "full"])
    parser.add_argument("--budget", type=float, help="seconds for each decision, and for each race after it")
    parser.add_argument("--latency-limit", help="that 99 of 100 requests must keep: 50ms, 0.2s")
    parser.add_argument("--threads", type=int, help="of all streams together")
    parser.add_argument("--backend", action="append", help="allow only this backend; repeatable")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--output", type=Path, help="also write the JSON here, after each row")
    parser.add_argument("--show", type=Path, nargs="+", metavar="FILE", help="only print what --output wrote before")
    given = parser.parse_args()
    results: list[Result] = stored(given.show) if given.show else []
    failures: list[str] = []
    for name in [] if given.show else select(given.workload.split(",")):
        options = Options(
            objective="throughput",
            precision=given.precision,
            effort=given.effort,
            budget_s=given.budget,
            latency_limit_ms=parse_milliseconds(given.latency_limit) if given.latency_limit else None,
            backends=tuple(given.backend) if given.backend else None,
            **({"threads": given.threads} if given.threads else {}),
        )
        try:
            results.append(run(name, options))
            print(table(results[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
        except BricolageError as error:
            failures.append(f"{name}: {error}")
            print(failures[-1], file=sys.stderr, flush=True)
        keep(_document(results, failures), given.output)
    if given.json:
        print(json.dumps(_document(results, failures), indent=1))
    else:
        print(f"{host()}\n", table(results), "", averages(results), *failures, sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
