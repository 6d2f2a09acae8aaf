"""Real jobs on a cluster, the replay of the same submissions, and kills that must lose nothing.

    python -m benchmarks.cluster_real --json                              Ray and Slurm, three policies each; ten minutes
    python -m benchmarks.cluster_real --engine ray --kills 20 --json      kills of drivers, nodes and jobs; three minutes

Jobs train small torch networks on the two cores of one machine, at the pace that is measured first (`network_jobs.py`). It has
to be quiet. `--engine local` runs them as processes, without Ray. `--engine slurm` runs them on two node daemons of a Slurm that
is started for it (`on_slurm.py`). Jobs of `--kills` keep a declared pace (`trainer.py`), so that eight devices fit into two cores.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.cluster_real import kills, network_jobs, on_slurm, side_by_side
from benchmarks.cluster_real.served import LocalNodes, Nodes, RayNodes
from benchmarks.cluster_real.workload import GROUPS
from benchmarks.tools.output import keep


def main() -> None:
    """Prints one document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("both", "ray", "local", "slurm"), default="both")
    parser.add_argument("--jobs", type=int, help="default 8; of --kills 24")
    parser.add_argument("--policies", help="with commas between them; default: fifo,srtf,gavel, of slurm fifo,easy,sjf")
    parser.add_argument("--kills", type=int, default=0, help="so many, in place of the comparison")
    parser.add_argument("--every", type=float, default=4.0, help="seconds between kills")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="folder for the logs and checkpoints, which are deleted without it")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    if given.kills and given.engine in ("slurm", "both"):
        parser.error("--kills is for ray and local")
    document: dict[str, object] = {}
    for engine in ("ray", "slurm") if given.engine == "both" else (given.engine,):
        document[engine] = asdict(_run(engine, given))
        keep(document, given.output)
    if given.json or given.kills:
        print(json.dumps(document, indent=1))
        return
    for engine, compared in document.items():
        print("\n".join(_lines(engine, compared)))


def _run(engine: str, given: argparse.Namespace) -> side_by_side.Compared | kills.Killed:
    if engine == "slurm":
        policies = given.policies.split(",") if given.policies else on_slurm.POLICIES
        return on_slurm.run(given.jobs or 8, policies=policies, seed=given.seed)
    policies = (given.policies or "fifo,srtf,gavel").split(",")
    groups = GROUPS if given.kills else network_jobs.GROUPS
    nodes: Nodes = RayNodes(groups) if engine == "ray" else LocalNodes()
    try:
        with tempfile.TemporaryDirectory(prefix="cluster-real-") as temporary:
            folder = given.keep or Path(temporary)
            if given.kills:
                return kills.run(folder, nodes, given.jobs or 24, given.kills, given.every, given.seed)
            return side_by_side.run(folder, nodes, given.jobs or 8, policies, given.seed)
    finally:
        nodes.close()


def _lines(engine: str, compared: Any) -> Iterator[str]:
    """Predicted beside measured, in seconds."""
    start = f"a start takes {compared['start_s']:.1f} s, a restart {compared['restart_s']:.1f} s"
    yield f"{engine}: {compared['jobs']} jobs on {compared['devices']} devices; {start}"
    yield f"{'policy':8} {'makespan':>9} {'predicted':>9} {'error':>7} {'mean JCT':>9} {'predicted':>9} {'error':>7}"
    for row in compared["rows"]:
        yield (
            f"{row['policy']:8} {row['makespan_s']:9.1f} {row['simulated_makespan_s']:9.1f} {row['makespan_error']:+7.1%} "
            f"{row['mean_jct_s']:9.1f} {row['simulated_mean_jct_s']:9.1f} {row['mean_jct_error']:+7.1%}"
        )
    yield f"the order of the policies by mean JCT is {'kept' if compared['same_order'] else 'not kept'}"


if __name__ == "__main__":
    main()
