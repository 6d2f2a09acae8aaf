"""Real jobs on a cluster beside the replay of the same submissions, and kills that must lose nothing.

    python -m benchmarks.cluster_real --engine ray --json                 three policies, 24 jobs, 8 devices; six minutes
    python -m benchmarks.cluster_real --engine ray --kills 20 --json      kills of drivers, nodes and jobs; three minutes

`--engine local` runs the jobs as processes of this machine, without Ray.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import asdict
from pathlib import Path

from benchmarks.cluster_real import kills, side_by_side
from benchmarks.cluster_real.served import LocalNodes, Nodes, RayNodes
from benchmarks.output import keep


def main() -> None:
    """Prints one document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("ray", "local"), default="ray")
    parser.add_argument("--jobs", type=int, default=24)
    parser.add_argument("--policies", default="fifo,srtf,gavel", help="with commas between them")
    parser.add_argument("--kills", type=int, default=0, help="so many, in place of the comparison")
    parser.add_argument("--every", type=float, default=4.0, help="seconds between kills")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    nodes: Nodes = RayNodes() if given.engine == "ray" else LocalNodes()
    try:
        with tempfile.TemporaryDirectory(prefix="cluster-real-") as folder:
            if given.kills:
                killed = kills.run(Path(folder), nodes, given.jobs, given.kills, given.every, given.seed)
                found: dict[str, object] = {"engine": given.engine, **asdict(killed)}
            else:
                compared = side_by_side.run(Path(folder), nodes, given.jobs, given.policies.split(","), given.seed)
                found = {"engine": given.engine, **asdict(compared)}
    finally:
        nodes.close()
    keep(found, given.output)
    if given.json:
        print(json.dumps(found, indent=1))
        return
    for key, value in found.items():
        for line in value if isinstance(value, list | tuple) else [value]:
            print(f"{key}: {line}")


if __name__ == "__main__":
    main()
