"""What a network costs beside its latency on each backend: compilation, loading what was compiled before, and peak memory.

    python -m benchmarks.footprint --workload resnet-50

Every backend compiles the whole network with an empty cache in a process of its own, and is loaded again in another, which runs
it some times and says how much memory it has held at most (Python and its libraries included, which all have in common).
Threads and settings are those of `optimize`. Backends that keep nothing compile again.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.latency import select
from benchmarks.workloads import export, workloads
from bricolage.backends import registry
from bricolage.backends.interface import RegionModel, Resources
from bricolage.base.options import PRECISIONS, available_cores
from bricolage.device.buffers import allocate_aligned
from bricolage.device.host import host
from bricolage.errors import BricolageError
from bricolage.frontends import to_model
from bricolage.graph.prepare import prepare
from bricolage.graph.store import Store
from bricolage.work.implementation import KernelConfig

_RUNS = 10


@dataclass(frozen=True)
class Row:
    """One network on one backend."""

    workload: str
    backend: str
    config: str
    compile_s: float
    load_s: float
    """From the cache, the backend's import left out."""
    peak_mb: float
    """Resident memory of the process that loads and runs."""
    lines: int
    """Of generated C."""


def _compile(region: RegionModel, backend: str, config: str, threads: int, cache: Path) -> Mapping[str, float]:
    """Compiles or loads, runs, and tells seconds and peak megabytes of this process."""
    chosen = registry.get(backend)
    resources = Resources(threads=threads, cache=cache, alone=True)
    start = time.monotonic()
    kernel = chosen.compile(region, KernelConfig(config), resources)
    seconds = time.monotonic() - start
    inputs, outputs = ([allocate_aligned(i.sizes, i.numpy) for i in infos] for infos in (region.inputs, region.outputs))
    for array in inputs:
        array[...] = 0
    call = kernel.bind(inputs, outputs)
    for _ in range(_RUNS):
        call()
    return {"seconds": seconds, "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def _apart(path: Path, backend: str, config: str, threads: int, cache: Path) -> Mapping[str, float]:
    """The same in a process of its own.

    Raises:
        BricolageError: the backend failed.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    environment |= registry.get(backend).environment(Resources(threads=threads, cache=cache, alone=True))
    given = json.dumps([str(path), backend, config, threads, str(cache)])
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.footprint", "--apart", given],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        encoding="utf-8",
    )
    if ran.returncode:
        raise BricolageError(message=f"{backend} {config}: {(ran.stderr.strip().splitlines() or ['it failed'])[-1]}")
    found: Mapping[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return found


def measure(name: str, backend: str, config: str, threads: int, path: Path) -> Row:
    """One row.

    Raises:
        BricolageError: the backend failed.
    """
    with tempfile.TemporaryDirectory() as cache:
        first = _apart(path, backend, config, threads, Path(cache))
        again = _apart(path, backend, config, threads, Path(cache))
        lines = sum(len(source.read_text(encoding="utf-8").splitlines()) for source in Path(cache).glob("native-*/*.c"))
    return Row(name, backend, config, first["seconds"], again["seconds"], again["peak_mb"], lines)


def table(rows: list[Row]) -> str:
    """Markdown."""
    lines = [
        "| workload | backend | compile s | load s | peak MB | over the leanest | lines of C |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        leanest = min(other.peak_mb for other in rows if other.workload == row.workload)
        lines.append(
            f"| {row.workload} | {row.backend} {row.config} | {row.compile_s:.1f} | {row.load_s:.2f} | {row.peak_mb:.0f} "
            f"| {row.peak_mb / leanest:.2f} | {row.lines or ''} |"
        )
    return "\n".join(lines)


def main() -> int:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.footprint", description=__doc__.partition("\n")[0])
    parser.add_argument("--workload", default="six", help="names or families, separated by commas")
    parser.add_argument("--backend", help="names, separated by commas (default: all that are installed)")
    parser.add_argument("--precision", default="highest", choices=PRECISIONS)
    parser.add_argument("--threads", type=int, default=available_cores())
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--apart", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.apart:
        path, backend, config, threads, cache = json.loads(given.apart)
        print(json.dumps(_compile(RegionModel(Path(path)), backend, config, threads, Path(cache))))
        return 0
    names = given.backend.split(",") if given.backend else [found.name for found in registry.available()]
    rows: list[Row] = []
    for name in select(given.workload.split(",")):
        graph = prepare(to_model(export(workloads()[name])), {})
        with tempfile.TemporaryDirectory() as folder:
            store = Store(Path(folder))
            store.share([graph.model])
            path = store.region(graph.everything, "all")
            for backend in names:
                config = registry.get(backend).configs(given.precision, host())[0].name
                try:
                    rows.append(measure(name, backend, config, given.threads, path))
                    print(f"{name} on {backend} {config}: {rows[-1].peak_mb:.0f} MB", file=sys.stderr, flush=True)
                except BricolageError as error:
                    print(error, file=sys.stderr, flush=True)
    print(json.dumps([asdict(row) for row in rows], indent=1) if given.json else table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
