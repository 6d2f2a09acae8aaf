"""Real jobs on a cluster, the replay of the same submissions, and kills that must lose nothing.

    python -m benchmarks.cluster_real --engine ray --json                 three policies, 24 jobs, 8 devices; six minutes
    python -m benchmarks.cluster_real --engine ray --kills 20 --json      kills of drivers, nodes and jobs; three minutes

`--engine local` runs the jobs as processes of this machine, without Ray. `--engine slurm` runs other jobs on node daemons of a
Slurm that is started for it (`on_slurm.py`).
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import asdict
from pathlib import Path

from benchmarks.cluster_real import kills, network_jobs, on_slurm, side_by_side
from benchmarks.cluster_real.served import LocalNodes, Nodes, RayNodes
from benchmarks.cluster_real.workload import GROUPS
from benchmarks.tools.output import keep


def main() -> None:
    """Prints one document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("ray", "local", "slurm"), default="ray")
    parser.add_argument("--jobs", type=int, help="default 8; of --kills 24")
    parser.add_argument("--policies", help="with commas between them; default: fifo,srtf,gavel, of slurm fifo,easy,sjf")
    parser.add_argument("--kills", type=int, default=0, help="so many, in place of the comparison")
    parser.add_argument("--every", type=float, default=4.0, help="seconds between kills")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="folder for the logs and checkpoints, which are deleted without it")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    given.jobs = given.jobs or (24 if given.kills else 8)
    if given.engine == "slurm":
        if given.kills:
            parser.error("--kills is for ray and local")
        policies = given.policies.split(",") if given.policies else on_slurm.POLICIES
        _show({"engine": "slurm", **asdict(on_slurm.run(given.jobs, policies=policies, seed=given.seed))}, given)
        return
    policies = (given.policies or "fifo,srtf,gavel").split(",")
    groups = GROUPS if given.kills else network_jobs.GROUPS
    nodes: Nodes = RayNodes(groups) if given.engine == "ray" else LocalNodes()
    try:
        with tempfile.TemporaryDirectory(prefix="cluster-real-") as temporary:
            folder = given.keep or Path(temporary)
            if given.kills:
                killed = kills.run(folder, nodes, given.jobs, given.kills, given.every, given.seed)
                found: dict[str, object] = {"engine": given.engine, **asdict(killed)}
            else:
                compared = side_by_side.run(folder, nodes, given.jobs, policies, given.seed)
                found = {"engine": given.engine, **asdict(compared)}
    finally:
        nodes.close()
    _show(found, given)


def _show(found: dict[str, object], given: argparse.Namespace) -> None:
    keep(found, given.output)
    if given.json:
        print(json.dumps(found, indent=1))
        return
    for key, value in found.items():
        for line in value if isinstance(value, list | tuple) else [value]:
            print(f"{key}: {line}")


if __name__ == "__main__":
    main()
