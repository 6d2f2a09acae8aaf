"""What a search for schedules makes of TVM: tuned against untuned, on whole networks.

    python -m benchmarks.tvm_tuning --workload six --budget 600 --output out/tvm.json

For each workload TVM's schedules are searched for so many seconds, in worker processes, and kept in the database of costs, where
later decisions find them. Then both ways, and every other backend within reach, race on the whole network, interleaved and
checked against float64.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.latency import select
from benchmarks.opening import state_of
from benchmarks.output import keep
from benchmarks.workloads import workloads
from bricolage.backends import registry
from bricolage.backends.tvm_tuning import TURNS
from bricolage.deadline import Deadline
from bricolage.device.host import host
from bricolage.driver.profile import Profile
from bricolage.driver.stage import Runner
from bricolage.driver.stages.profiling import Reference
from bricolage.errors import BricolageError
from bricolage.measure.database import Database
from bricolage.measure.race import race
from bricolage.options import Options
from bricolage.plan.step import Step
from bricolage.tune.kernels import KernelTuner
from bricolage.work.implementation import Implementation

_RACE_S = 60.0


@dataclass(frozen=True)
class Row:
    """One workload; milliseconds."""

    workload: str
    untuned_ms: float
    tuned_ms: float
    ratio: tuple[float, float, float]
    """Untuned over tuned, with its 95 % interval."""
    error: float
    """Of the tuned one's answer, against float64."""
    functions: int
    """Of which another schedule was chosen."""
    search_s: float


def run(name: str, options: Options, budget_s: float, database: Database) -> Row:
    """Searches for one workload and races what was found.

    Raises:
        BricolageError: TVM does not run it, or is wrong.
    """
    with state_of(workloads()[name], options, registry.available(("tvm",)), database) as state:
        Runner([Reference()]).run(state, Deadline(state.budget_s))
        profile = state.original
        untuned = next((one for one in profile.candidates.whole if one.config.name == "f32"), None)
        if untuned is None:
            raise BricolageError(message=f"TVM does not take all of {name}")
        start = time.monotonic()
        tuned = _tuned(profile, untuned, budget_s)
        seconds = time.monotonic() - start
        specs = {"untuned": profile.whole_spec(untuned), "tuned": profile.whole_spec(tuned)}
        inputs, expected, bound = profile.oracle.files(profile.graph.everything)
        ran = race(
            profile.session.measurer,
            specs,
            inputs,
            expected,
            bound,
            rounds=30,
            seconds=_RACE_S,
            incumbent="untuned",
            processes=3,
        )
    costs, ratio = ran.costs, ran.ratio("tuned", "untuned")
    if ratio is None or costs["tuned"].ms is None or costs["untuned"].ms is None:
        raise BricolageError(message=f"{name}: " + "; ".join(f"{one}: {cost}" for one, cost in costs.items()))
    chosen = [key for key, _ in tuned.config.parameters if key != TURNS]
    error = costs["tuned"].error
    return Row(
        name,
        costs["untuned"].ms,
        costs["tuned"].ms,
        (ratio.value, ratio.low, ratio.high),
        float("nan") if error is None else error,
        len(chosen),
        seconds,
    )


def _tuned(profile: Profile, one: Implementation, budget_s: float) -> Implementation:
    region, session = profile.graph.everything, profile.session
    key = profile.region_key(region)
    tuner = KernelTuner(session.measurer, session.device, session.options.threads)
    step = Step(one, session.store.region(region, key))
    return tuner.tune(step, key, registry.version(one.backend), Deadline(budget_s))


def table(rows: Sequence[Row]) -> str:
    """All as a Markdown table."""
    lines = [
        "| workload | untuned ms | tuned ms | ratio [95 % CI] | error | schedules changed | search s |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        value, low, high = row.ratio
        cells = [
            row.workload,
            f"{row.untuned_ms:.3g}",
            f"{row.tuned_ms:.3g}",
            f"**{value:.2f}** [{low:.2f}, {high:.2f}]",
        ]
        lines.append(f"| {' | '.join(cells)} | {row.error:.1e} | {row.functions} | {row.search_s:.0f} |")
    mean = statistics.geometric_mean(row.ratio[0] for row in rows) if rows else float("nan")
    return "\n".join([*lines, f"| geometric mean | | | **{mean:.2f}** | | | |"])


def main() -> int:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tvm_tuning", description=__doc__.partition("\n")[0])
    parser.add_argument("--workload", default="six", help="names or families, separated by commas")
    parser.add_argument("--budget", type=float, default=600.0, help="seconds for each search")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--output", type=Path, help="also write the JSON here, after each workload")
    given = parser.parse_args()
    rows, failures = list[Row](), list[str]()
    options = Options(budget_s=given.budget)
    with Database() as database:
        for name in select(given.workload.split(",")):
            try:
                rows.append(run(name, options, given.budget, database))
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
