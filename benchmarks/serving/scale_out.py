"""What more workers of a Ray cluster bring where compiling takes the time, and what is lost when they, or the driver, are killed.

    python -m benchmarks.serving.scale_out --workers 4 --json
    python -m benchmarks.serving.scale_out --workload light-squeezenet,dcgan --regions 24 --without-kills

The cluster is made of processes of this machine: a node with one processor for each worker. First regions of the networks are
compiled by the native engine, with nothing in any cache, by one worker and by all, in turn. `compiling` is what that took, without
joining the cluster, and `ratio` how many times faster all of them are; more than there are cores here it cannot be.

Then every node gets a cache folder of its own, so that it passes for another machine and measures. A driver in a process of its own
measures the regions of the first network; when a third of its costs are in the database, a node's process is killed (SIGKILL),
after two thirds the driver itself, which then is started again. `lost` are costs that were in the database when it was killed and
are not there at the end, `again` those that were measured once more.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.latency import select
from benchmarks.workloads import export, workloads
from bricolage.backends import registry
from bricolage.base import cache
from bricolage.base.options import Options, available_cores
from bricolage.base.progress import Silent
from bricolage.costs.database import FILE, Database
from bricolage.device.host import host
from bricolage.driver.candidates import find_candidates
from bricolage.driver.context import open_context
from bricolage.driver.region_costs import measure_regions
from bricolage.driver.sources import GivenModel, Source, open_source
from bricolage.driver.timed_variant import TimedVariant
from bricolage.graph.graph import Region
from bricolage.measure.scale_out.ray_nodes import Cluster
from bricolage.measure.specs import CandidateSpec
from bricolage.plan.program_step import Step
from bricolage.plan.shipped_program import ORIGINAL
from bricolage.rewrite.variants import GraphVariant
from bricolage.verify.oracle import Oracle
from bricolage.work.implementation import HOST, Implementation, KernelConfig

ROOT = Path(__file__).parents[2]
_LIMIT_S = 300.0


@dataclass(frozen=True)
class Compiling:
    """Compiling all regions once."""

    workers: int
    seconds: float
    regions: int
    folders: int
    """Of compiled code that came back. Refused regions have none."""


@dataclass(frozen=True)
class Kills:
    """What became of costs, in numbers of them."""

    before_worker: int
    """In the database when a node's process was killed."""
    before_driver: int
    """... when the driver was."""
    after: int
    """... at the end."""
    lost: int
    again: int
    disturbed: int
    """Measured again because others had disturbed them, as every later decision does."""
    answers_lost: int
    """That never reached the drivers, because their node had gone; others gave them."""


@contextmanager
def network(workers: int, folder: Path, *, machines: bool) -> Iterator[str]:
    """The address of a cluster of one-processor nodes; as `machines` each has a cache folder of its own."""
    from ray.cluster_utils import Cluster as Network

    started = Network(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        for number in range(workers):
            own = {cache.VARIABLE: str(folder / f"machine-{number}")} if machines else {}
            path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
            started.add_node(num_cpus=1, env_vars={**own, "PYTHONPATH": path})
        yield str(started.address)
    finally:
        started.shutdown()


def regions(names: Sequence[str], folder: Path, most: int) -> list[CandidateSpec]:
    """Regions of networks for the native engine, as many of each as of the others."""
    found: list[list[CandidateSpec]] = []
    backend, device = registry.get("native"), host()
    for name in names:
        own = folder / name
        own.mkdir()
        opened = opened_source(name, own)
        graph = opened.buckets[0].graph
        groups = find_candidates(graph, [backend], "highest", device, slow_per_region=True).groups
        specs: list[CandidateSpec] = []
        for group in groups[: -(-most // len(names))]:
            region = Region(graph, group.regions[0])
            step = Step(Implementation("native", KernelConfig("f32"), HOST), opened.store.region(region, group.key))
            outputs = tuple(value.name or "" for value in region.outputs)
            specs.append(CandidateSpec(group.key, (step,), outputs, available_cores(), False, device))
        found.append(specs)
    return [spec for specs in found for spec in specs][:most]


def opened_source(name: str, folder: Path) -> Source:
    """A workload as `optimize` opens it."""
    workload = workloads()[name]
    options, given = Options(backends=("native",)), workload.example_inputs(0)
    return open_source(GivenModel(export(workload), inputs=given), options, folder)


def compile_all(specs: Sequence[CandidateSpec], workers: int) -> Compiling:
    """With nothing in the cache."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ[cache.VARIABLE] = str(Path(folder) / "cache")
        with network(workers, Path(folder), machines=False) as address, Cluster(address, host()) as cluster:
            begun = time.monotonic()
            folders = cluster.compile(specs, _LIMIT_S, lambda: False)
            return Compiling(workers, time.monotonic() - begun, len(specs), folders)


def drive(name: str, address: str) -> None:
    """A driver that measures all regions of a network, and says after each how many costs there are and who works for it."""
    options = Options(backends=("native",), ray=address)
    device, backends = host(), registry.available(options.backends)
    with tempfile.TemporaryDirectory() as folder, open_context(options, backends, device, Silent()) as opened_context:
        opened = opened_source(name, Path(folder))
        graph = opened.buckets[0].graph
        cluster = opened_context.pool.cluster
        assert isinstance(cluster, Cluster)
        progress = Telling(cluster)
        context = replace(opened_context, progress=progress)
        session = context.session(opened, graph)
        arrays, _ = context.inputs(opened, graph, session)
        oracle = Oracle(graph, arrays, opened.store, options.bound, opened.digest, evaluate=session.evaluate)
        measure_regions(TimedVariant.of(GraphVariant(ORIGINAL, graph), oracle, session), lambda: False)
        progress.advance(0)


class Telling(Silent):
    """Prints a line after each cost."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._done = self._total = 0

    def start(self, phase: str, total: int | None = None) -> None:
        """So many there will be."""
        del phase
        self._total = total or 0

    def advance(self, count: int = 1, note: str = "") -> None:
        """One more is finished."""
        del note
        self._done += count
        pids = [what.pid for what, measures in self._cluster.describe() if measures]
        part = self._done / max(1, self._total)
        print(json.dumps({"part": part, "pids": pids, "lost": self._cluster.lost}), flush=True)


def kept(file: Path) -> Mapping[str, tuple[str, float, bool]]:
    """Who measured what, when, and whether others disturbed it."""
    with Database(file) as database:
        return {one.key.digest(): (one.machine, one.cost.date, one.cost.disturbed) for one in database.entries()}


def kill(name: str, workers: int) -> Kills:
    """See the top of this file."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        place = {**os.environ, cache.VARIABLE: str(Path(folder) / "driver"), "BRICOLAGE_COSTS": ""}
        file = Path(folder) / "driver" / FILE
        with network(workers, Path(folder), machines=True) as address:
            command = [sys.executable, "-m", "benchmarks.serving.scale_out", "--drive", name, "--address", address]
            at_worker = answers_lost = 0
            driver = subprocess.Popen(command, env=place, stdout=subprocess.PIPE, text=True, encoding="utf-8")
            assert driver.stdout is not None
            for line in driver.stdout:
                if not line.startswith("{"):
                    continue  # Ray says there what its processes die of
                told = json.loads(line)
                answers_lost = told["lost"]
                if not at_worker and told["part"] >= 1 / 3 and told["pids"]:
                    at_worker = len(kept(file))
                    os.kill(told["pids"][0], signal.SIGKILL)
                if told["part"] >= 2 / 3:
                    driver.kill()
                    break
            driver.wait()
            at_driver = dict(kept(file))
            again = subprocess.run(command, env=place, stdout=subprocess.PIPE, text=True, check=True, encoding="utf-8")
            answers_lost += json.loads([line for line in again.stdout.splitlines() if line.startswith("{")][-1])["lost"]
            after = kept(file)
    lost = [key for key in at_driver if key not in after]
    changed = [value for key, value in at_driver.items() if key in after and after[key] != value]
    disturbed = sum(disturbed for _, _, disturbed in changed)
    return Kills(at_worker, len(at_driver), len(after), len(lost), len(changed) - disturbed, disturbed, answers_lost)


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving.scale_out", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--workload", default="light-squeezenet,dcgan", help="names or families, separated by commas")
    parser.add_argument("--workers", type=int, default=4, help="nodes of the larger cluster")
    parser.add_argument("--regions", type=int, default=32, help="regions to compile")
    parser.add_argument("--rounds", type=int, default=1, help="times that each cluster compiles them")
    parser.add_argument("--without-kills", action="store_true", help="only compile")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--drive", help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.drive:
        drive(given.drive, given.address)
        return
    names = select(given.workload.split(","))
    with tempfile.TemporaryDirectory() as folder:
        specs = regions(names, Path(folder), given.regions)
        ran = [compile_all(specs, workers) for _ in range(given.rounds) for workers in (1, given.workers)]
    one, all_ = (statistics.median(r.seconds for r in ran if r.workers == n) for n in (1, given.workers))
    found: dict[str, Any] = {
        "cores": available_cores(),
        "compiling": [asdict(one) for one in ran],
        "ratio": round(one / all_, 3),
    }
    if not given.without_kills:
        found["kills"] = asdict(kill(names[0], min(2, given.workers)))
    if given.json:
        print(json.dumps(found, indent=1))
        return
    for run in ran:
        print(f"{run.workers} workers: {run.regions} regions, {run.folders} libraries in {run.seconds:.1f} s")
    print(f"{given.workers} workers compile {found['ratio']:.2f} times as fast as one, on {found['cores']} cores")
    for name, number in found.get("kills", {}).items():
        print(f"{name.replace('_', ' ')}: {number}")


if __name__ == "__main__":
    main()
