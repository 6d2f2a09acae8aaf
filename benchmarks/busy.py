"""Whether decisions hold on a busy machine: what a decision beside neighbours costs later, in quiet.

    python -m benchmarks.busy --workload six,minilm-l6 --json
    python -m benchmarks.busy --workload light-squeezenet --load 1-nice19,bursty --budget 60

For each workload: a decision in quiet, then one under each load (`benchmarks.tools.load`), each with nothing known (a cache folder
of its own; with `--known`, with the costs that the decision in quiet has measured). Then, in quiet, every plan that is not the same
takes turns with the plan decided in quiet, in three pairs of fresh processes. `regret` is its time over that of the plan decided
in quiet (1 where they are the same plan), `decide_ratio` the seconds that deciding took, over those in quiet. All but the loads
must be quiet for the figures to mean anything.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.commits import ROOT, RUN, Side, take_turns
from benchmarks.latency import select
from benchmarks.tools.load import KINDS, busy
from benchmarks.tools.output import keep
from benchmarks.workloads import export, workloads
from bricolage.device.host import host

LOADS = ("1-nice0", "2-nice0", "1-nice19", "2-nice19", "memory", "bursty")
BOUND = 1.03
"""A regret up to which a decision held."""

_DECIDE = """
import json, sys, time
import numpy as np
from bricolage.api.optimize import optimize
from bricolage.base.options import Options
from bricolage.report import words
model, inputs, artifact, budget, *backends = sys.argv[1:]
options = Options(budget_s=float(budget) or None, backends=tuple(backends) or None)
start = time.monotonic()
fast = optimize(model, options, inputs=dict(np.load(inputs)), replan=True)
seconds = time.monotonic() - start
fast.save(artifact)
bucket = fast.plan.buckets[0]
regions = [[region.operators, str(region.implementation)] for region in bucket.program.regions]
print(json.dumps({
    "shipped": bucket.race.chosen, "plan": [bucket.program.graph, regions], "seconds": seconds,
    "decided_by": bucket.race.decided_by, "told": words.disturbance(bucket),
}))
"""


@dataclass(frozen=True)
class Row:
    """One decision."""

    workload: str
    load: str
    shipped: str
    quiet_shipped: str
    regret: float
    """Time of its plan over the time of the plan decided in quiet, both in quiet."""
    regret_ci: tuple[float, float]
    same: bool
    """Whether it is the plan decided in quiet."""
    decide_s: float
    decide_ratio: float
    """To the decision in quiet."""
    decided_by: str
    told: str
    """What the user was told of the machine."""


def compare(
    name: str, loads: Sequence[str], budget_s: float, backends: Sequence[str], folder: Path, known: bool
) -> list[Row]:
    """Decides about one workload in quiet and under each load, and races the plans in quiet.

    Raises:
        RuntimeError: a decision fails, or what it shipped does.
    """
    workload = workloads()[name]
    model, inputs = export(workload), folder / f"{name}.npz"
    np.savez(inputs, **workload.example_inputs(0))  # type: ignore[arg-type]  # its stub takes a name for a flag

    def decide(load: str) -> tuple[Path, dict[str, Any]]:
        side, artifact = Side(ROOT / "src", folder / f"{name}-{load}"), folder / f"{name}-{load}.bricolage"
        if known and load != "quiet":
            shutil.copytree(folder / f"{name}-quiet", side.cache)
        else:
            side.cache.mkdir()
        with busy(load):
            printed = side.answer(_DECIDE, model, inputs, artifact, budget_s, *backends)
        found: dict[str, Any] = json.loads(printed.splitlines()[-1])
        print(
            f"{name}, {load}: {found['shipped']}, {found['seconds']:.0f} s. {found['told']}",
            file=sys.stderr,
            flush=True,
        )
        return artifact, found

    calm, reference = decide("quiet")
    decided = {load: decide(load) for load in loads if load != "quiet"}
    raced: dict[str, tuple[float, tuple[float, float]]] = {json.dumps(reference["plan"]): (1.0, (1.0, 1.0))}
    runner = Side(ROOT / "src", folder / f"{name}-quiet")
    rows: list[Row] = []
    for load, (artifact, found) in decided.items():
        plan = json.dumps(found["plan"])
        if plan not in raced:
            starts = [
                partial(runner.start, RUN, one, inputs, folder / f"{number}.answer.npz")
                for number, one in enumerate((artifact, calm))
            ]
            ratio = take_turns(starts).ratio
            raced[plan] = ratio.value, (ratio.low, ratio.high)
        regret, interval = raced[plan]
        rows.append(
            Row(
                workload=name,
                load=load,
                shipped=found["shipped"],
                quiet_shipped=reference["shipped"],
                regret=regret,
                regret_ci=interval,
                same=found["plan"] == reference["plan"],
                decide_s=found["seconds"],
                decide_ratio=found["seconds"] / reference["seconds"],
                decided_by=found["decided_by"],
                told=found["told"],
            )
        )
    return rows


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    lines = [
        "| workload | load | ships | in quiet | regret [95 % CI] | decide s | to quiet | decided by |",
        "|---|---|---|---|---|---:|---:|---|",
    ]
    for r in rows:
        regret = "same plan" if r.same else f"**{r.regret:.3f}** [{r.regret_ci[0]:.3f}, {r.regret_ci[1]:.3f}]"
        lines.append(
            f"| {r.workload} | {r.load} | {r.shipped} | {r.quiet_shipped} | {regret} | {r.decide_s:.0f} "
            f"| {r.decide_ratio:.2f} | {r.decided_by} |"
        )
    return "\n".join(lines)


def verdict(rows: Sequence[Row]) -> str:
    """How many decisions held."""
    held = sum(r.regret <= BOUND for r in rows)
    eager = sum(r.shipped.startswith("torch ") and not r.quiet_shipped.startswith("torch ") for r in rows)
    longest = max((r.decide_ratio for r in rows), default=0.0)
    return (
        f"{held} of {len(rows)} decisions are within {BOUND - 1:.0%} of the one in quiet; PyTorch eager by accident: {eager}; "
        f"longest decision: {longest:.2f} times that in quiet"
    )


def main() -> int:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.busy", description=__doc__.partition("\n")[0])
    parser.add_argument("--workload", default="six,minilm-l6", help="names or families, separated by commas")
    parser.add_argument("--load", default="all", help=f"of {', '.join(KINDS[1:])}; all: {', '.join(LOADS)}")
    parser.add_argument("--budget", type=float, default=0.0, help="seconds for each decision; the effort's by default")
    parser.add_argument("--backend", action="append", default=[], help="allow only this backend; repeatable")
    parser.add_argument(
        "--known", action="store_true", help="decide with the costs that the decision in quiet measured"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--output", type=Path, help="also write the JSON here, after each workload")
    given = parser.parse_args()
    loads = list(LOADS) if given.load == "all" else given.load.split(",")
    unknown = [load for load in loads if load not in KINDS]
    if unknown:
        parser.error(f"there is no load '{unknown[0]}'; there are: {', '.join(KINDS)}, all")
    rows: list[Row] = []
    document: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="busy-") as words:
        for name in select(given.workload.split(",")):
            rows += compare(name, loads, given.budget, given.backend, Path(words), given.known)
            document = {"hardware": str(host()), "verdict": verdict(rows), "rows": [asdict(r) for r in rows]}
            keep(document, given.output)
    if given.json:
        print(json.dumps(document, indent=1))
    else:
        print(f"{host()}\n\n{table(rows)}\n\n{verdict(rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
