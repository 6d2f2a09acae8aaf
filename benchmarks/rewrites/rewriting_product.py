"""What rewriting gains the whole product; `python -m benchmarks.rewrites.rewriting_product`.

    python -m benchmarks.rewrites.rewriting_product --workload six,minilm-l6,rewriting --budget 30 --output out/product.json
    python -m benchmarks.rewrites.rewriting_product --workload mobilenet-v2 --exports unoptimised \\
        --backends native,openvino,onnxruntime
    python -m benchmarks.rewrites.rewriting_product --show out/product.json

Each model is optimised twice, with and without rewriting, with the same backends and budget; then both plans and every single
backend within reach race in the same rounds, each in a process of its own, all checked against float64 of the original.
Where the decision with rewriting runs the original graph, rewriting has changed nothing: the ratio is 1, and nothing races.

The floor is the time of the original's arithmetic at the processor's measured peak, or of its weights, inputs and outputs at its
measured bandwidth, whichever is longer. What runs at its floor already gains by less arithmetic only.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.rewrites.exports import Export, add_arguments, at_sizes, collect
from benchmarks.tools import machine
from benchmarks.workloads import export, workloads
from bricolage.api.bench import CHALLENGER, bench
from bricolage.api.optimize import optimize
from bricolage.base.options import Options
from bricolage.errors import BricolageError
from bricolage.graph.work import workload as work_of
from bricolage.plan.plan import Bucket
from bricolage.plan.shipped_program import ORIGINAL
from bricolage.runtime.executable import Executable

_REACH = 1.5
_RIVAL = "plain"


@dataclass(frozen=True)
class Row:
    """One model: times in milliseconds; the ratio is above 1 where rewriting gains."""

    workload: str
    export: Export
    without: str
    without_ms: float
    without_operators: int
    with_: str
    with_ms: float
    with_operators: int
    ratio: float
    ratio_ci: tuple[float, float]
    floor_ms: float
    rules: Mapping[str, int] = field(default_factory=dict)

    @property
    def room(self) -> float:
        """What would be gained if the work of the original took no longer than its floor; at least 1."""
        return max(1.0, self.without_ms / self.floor_ms)


def run(name: str, exported: Export, options: Options) -> Row:
    """Optimises a model without and with rewriting, and races the two plans.

    Raises:
        BricolageError: it cannot be optimised, or a plan did not finish the race.
    """
    workload = workloads()[name]
    source, inputs = export(workload, unoptimised=exported == "unoptimised"), workload.example_inputs(options.seed)
    amount = work_of(at_sizes(source, inputs).everything)
    floor = machine.measure().floor_ms(amount.flops, amount.bytes)
    better = optimize(source, options, inputs=inputs)
    other = better.plan.buckets[0]
    if other.program.variant == ORIGINAL:
        ms = other.race.winner.median_ms
        return _row(name, exported, other, ms, other, ms, 1.0, (1.0, 1.0), floor)
    plain = optimize(source, dataclasses.replace(options, rewrite=False), inputs=inputs)
    one = plain.plan.buckets[0]
    near = tuple(dict.fromkeys([*backends_within_reach(one), *backends_within_reach(other)]))
    raced = _race(better, plain, dataclasses.replace(options, backends=near), inputs)
    ours = next(c for c in raced.race.contestants if c.name == CHALLENGER)
    theirs = next(c for c in raced.race.contestants if c.name.startswith(f"{_RIVAL} "))
    if ours.speedup is None or ours.speedup_ci is None or theirs.speedup is None or theirs.speedup_ci is None:
        raise BricolageError(message=f"a plan did not finish the race: {ours.reason or theirs.reason}")
    interval = (ours.speedup_ci[0] / theirs.speedup_ci[1], ours.speedup_ci[1] / theirs.speedup_ci[0])
    ratio = ours.speedup / theirs.speedup
    return _row(name, exported, one, theirs.median_ms, other, ours.median_ms, ratio, interval, floor)


def backends_within_reach(bucket: Bucket) -> tuple[str, ...]:
    """Backends of the plan, and those that `optimize` found within `_REACH` of the best single one."""
    alone = {
        c: c.median_ms
        for c in bucket.race.contestants
        if c.kind == "baseline" and c.accepted and c.median_ms is not None
    }
    best = min(alone.values())
    names = [
        c.implementation.backend for c, ms in alone.items() if c.implementation is not None and ms <= _REACH * best
    ]
    return tuple(dict.fromkeys([*bucket.program.backends, *names]))


def _race(better: Executable, plain: Executable, options: Options, inputs: Mapping[str, np.ndarray]) -> Bucket:
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = better.save(Path(folder) / "ours.bricolage"), plain.save(Path(folder) / f"{_RIVAL}.bricolage")
        return bench(ours, options, inputs=inputs, rivals=[theirs]).buckets[0]


def _row(
    name: str,
    exported: Export,
    one: Bucket,
    one_ms: float | None,
    other: Bucket,
    other_ms: float | None,
    ratio: float,
    interval: tuple[float, float],
    floor: float,
) -> Row:
    none = float("nan")
    return Row(
        name,
        exported,
        _title(one),
        one_ms if one_ms is not None else none,
        one.program.operators,
        _title(other),
        other_ms if other_ms is not None else none,
        other.program.operators,
        ratio,
        interval,
        floor,
        dict(other.program.rules),
    )


def _title(bucket: Bucket) -> str:
    return bucket.race.chosen if len(bucket.program.regions) == 1 else "+".join(bucket.program.backends)


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown, with geometric means."""
    lines = [
        "| model | export | without rewriting | operators | ms | with rewriting | operators | ms | ratio [95 % CI] "
        "| floor ms | without / floor |",
        "|---|---|---|---:|---:|---|---:|---:|---|---:|---:|",
    ]
    lines += [
        f"| {r.workload} | {r.export} | {r.without} | {r.without_operators} | {r.without_ms:.3g} | {r.with_} "
        f"| {r.with_operators} | {r.with_ms:.3g} | **{r.ratio:.3f}** [{r.ratio_ci[0]:.3f}, {r.ratio_ci[1]:.3f}] "
        f"| {r.floor_ms:.3g} | {r.without_ms / r.floor_ms:.2f} |"
        for r in rows
    ]
    for kind in (*dict.fromkeys(r.export for r in rows), "all"):
        own = [r for r in rows if kind in (r.export, "all")]
        ratio, room = (statistics.geometric_mean(v) for v in ([r.ratio for r in own], [r.room for r in own]))
        lines.append(f"| geometric mean of {len(own)} | {kind} | | | | | | | **{ratio:.3f}** | | {room:.2f} |")
    return "\n".join(lines)


def main() -> int:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rewrites.rewriting_product", description=__doc__.partition("\n")[0]
    )
    add_arguments(parser, "exported,unoptimised")
    parser.add_argument("--backends", default="", help="names, separated by commas; all by default")
    parser.add_argument("--precision", default="highest")
    parser.add_argument("--budget", type=float, help="seconds for each decision")
    given = parser.parse_args()
    backends = tuple(given.backends.split(",")) if given.backends else None
    options = Options(precision=given.precision, budget_s=given.budget, backends=backends)
    return collect(given, Row, lambda name, exported: run(name, exported, options), table)


if __name__ == "__main__":
    sys.exit(main())
