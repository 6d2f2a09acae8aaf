"""How far a learnt model of costs is off on networks, and machines, that it has not seen.

    python -m benchmarks.cost_model                                   on what the cost database holds
    python -m benchmarks.cost_model --workload six,wide --budget 30   decides these first, so that the database holds them
    python -m benchmarks.cost_model --import zen5.jsonl xeon.jsonl    together with what others have exported

Each network is left out once, and a model that was trained on all others predicts what its regions take on each backend; the same
with machines, where there are several. `regret` is what the implementation with the least predicted time takes over the
fastest one, less one.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.latency import select
from benchmarks.workloads import export, workloads
from bricolage.api.cost_model import train_costs
from bricolage.api.optimize import optimize
from bricolage.errors import BricolageError
from bricolage.measure.database import Database
from bricolage.options import Options
from bricolage.perf.learned.training import Errors


def collect(names: Sequence[str], budget: float) -> None:
    """Decides workloads, for what that measures."""
    for name in names:
        workload = workloads()[name]
        try:
            optimize(export(workload), Options(budget_s=budget), inputs=workload.example_inputs(0))
        except BricolageError as error:
            print(f"{name}: {error.sentence}", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cost_model", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--workload", default="", help="names or families to decide first, separated by commas")
    parser.add_argument("--budget", type=float, default=30.0, help="seconds for each decision")
    parser.add_argument(
        "--import", dest="files", type=Path, nargs="*", default=[], help="what `bricolage costs export` wrote"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    given = parser.parse_args(arguments)
    if given.workload:
        collect(select(given.workload.split(",")), given.budget)
    with (
        tempfile.TemporaryDirectory() as folder,
        Database() as known,
        Database(Path(folder) / "costs.sqlite") as database,
    ):
        database.import_lines(known.export_lines())
        for file in given.files:
            database.import_lines(file.read_text().splitlines())
        trained = train_costs(database)
    if given.json:
        found = trained.by_network
        told = {} if found is None else {n: getattr(found, n) for n in ("mape", "rank_correlation", "regret")}
        by_machine = None if trained.by_machine is None else asdict(trained.by_machine)
        print(json.dumps({**told, "by_network": found and asdict(found), "by_machine": by_machine}, indent=1))
        return
    print(f"{trained.samples} measurements, {trained.networks} networks")
    print("| left out | samples | mean error | median | rank correlation | regret | worst | in the interval |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for what, errors in (("networks", trained.by_network), ("machines", trained.by_machine)):
        if errors is not None:
            print(_row(what, errors))


def _row(what: str, errors: Errors) -> str:
    cells = [f"{errors.mape:.1%}", f"{errors.median_error:.1%}", f"{errors.rank_correlation:.3f}"]
    cells += [f"{errors.regret:.1%}", f"{errors.worst_regret:.1%}", f"{errors.covered:.0%}"]
    return f"| {errors.groups} {what} | {errors.samples} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
