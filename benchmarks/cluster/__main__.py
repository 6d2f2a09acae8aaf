"""Clusters: policies beside published figures, the replay beside machines, and how long it takes.

    python -m benchmarks.cluster --table physical --trace FOLDER --data FOLDER/physical --json
    python -m benchmarks.cluster --table shockwave --trace FOLDER --data FOLDER/simulation --json
    python -m benchmarks.cluster --table gavel --rates simulation_throughputs.json --json
    python -m benchmarks.cluster --table speed --jobs 100000 --devices 2500 --json
    python -m benchmarks.cluster --table estimates --rates simulation_throughputs.json --again physical_cluster_throughputs.json
    --json
    python -m benchmarks.cluster --table regret --rates simulation_throughputs.json --json
    python -m benchmarks.cluster --table synergy --data synergy/models.json --json

`physical`: FOLDER holds Shockwave's `120_jobs.trace` and `tacc_throughputs.json`; `--data` outcomes in JSON. `--trace` is by
default the parent of `--data`. `shockwave` is the same beside the authors' simulation. `gavel` takes its table of rates; a
quarter of an hour. `estimates` says how far off predicted rates are, and what wrong ones cost; some minutes. `regret` is what
wrong lengths and rates cost each policy that serves the jobs, or those of `--policies`; `--jobs`, `--seeds`; some minutes, of which
`gavel-water` takes a third. `synergy` takes its
authors' profiles of models.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.cluster import estimates, gavel, physical, speed, synergy
from benchmarks.tools.output import keep


def main() -> None:
    """Prints one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--table", choices=("gavel", "shockwave", "physical", "speed", "estimates", "regret", "synergy"), required=True
    )
    parser.add_argument("--data", type=Path, help="folder of outcomes")
    parser.add_argument("--trace", type=Path, help="folder with 120_jobs.trace and tacc_throughputs.json")
    parser.add_argument("--rates", type=Path, help="Gavel's simulation_throughputs.json")
    parser.add_argument("--again", type=Path, help="Gavel's physical_cluster_throughputs.json, measured later")
    parser.add_argument(
        "--restart", type=float, default=20.0, help="seconds that a restart costs: 20, as the published simulation"
    )
    parser.add_argument("--loads", default="2.0,3.2,4.0,4.8", help="jobs an hour; of gavel")
    parser.add_argument("--makespans", default="100,300,500", help="jobs at the start; of gavel")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--jobs", type=int, help="100000 of speed; 5000 of gavel, whose last fifth is measured; 120 of regret"
    )
    parser.add_argument("--seeds", type=int, default=2, help="of regret: draws of the errors")
    parser.add_argument("--devices", type=int, default=2500)
    parser.add_argument("--load", type=float, default=0.95, help="of speed: share of the devices that the jobs need")
    parser.add_argument("--policies", default="", help="of gavel and speed, with commas between them")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for row in _rows(given, parser):
        rows.append(asdict(row))
        keep(rows, given.output)
        if not given.json:
            print(
                "  ".join(
                    f"{key} {value:.4g}" if isinstance(value, float) else f"{value}" for key, value in rows[-1].items()
                ),
                flush=True,
            )
    if given.json:
        print(json.dumps(rows, indent=1))


def _rows(given: argparse.Namespace, parser: argparse.ArgumentParser) -> Any:
    names = [name for name in given.policies.split(",") if name]
    if given.table == "speed":
        for name in names or speed.POLICIES:
            yield from speed.rows(given.jobs or 100_000, given.devices, given.load, [name])
        yield from speed.adaptive_rows()
        if given.rates is not None:
            yield from speed.round_rows(given.rates)
    elif given.table in ("gavel", "estimates", "regret") and given.rates is None:
        parser.error(f"--table {given.table} needs --rates")
    elif given.table == "estimates":
        yield from estimates.rows(given.rates, given.again)
    elif given.table == "regret":
        yield from estimates.regret_rows(given.rates, names or None, given.jobs or 120, seeds=given.seeds)
    elif given.table == "gavel":
        jobs = given.jobs or 5000
        for load in [float(word) for word in given.loads.split(",") if word]:
            for name in names or ("max-min", "allox-shares", "allox", "gavel", "gavel-packed", "gandiva-packed"):
                yield gavel.mean_jct(given.rates, name, load, given.seed, jobs, jobs // 5)
        for count in [int(word) for word in given.makespans.split(",") if word]:
            yield gavel.makespan(given.rates, "gavel-makespan", count)
    else:
        if given.data is None:
            parser.error(f"--table {given.table} needs --data")
        if given.table == "synergy":
            yield from synergy.rows(given.data, given.jobs or 1500)
            return
        yield from physical.rows(given.trace or given.data.resolve().parent, given.data, given.restart)


if __name__ == "__main__":
    main()
