"""The engine's static program beside an online runtime: the same kernels as tasks on Taskflow's work-stealing executor.

    python -m benchmarks.engine.online --taskflow FOLDER --workload inception-v3,nasnet-a-large,resnet-50,randwire

FOLDER holds `taskflow/taskflow.hpp` (https://taskflow.github.io, MIT; Huang et al., "Taskflow: a lightweight parallel and
heterogeneous task graph computing system", TPDS 2022). It and g++ are needed here alone.

Three programs of one network take turns, with as many threads each: the static program as the engine ships it; its phases as tasks,
piece by piece; its phases as tasks, each as a whole. Kernels, pieces, weights and the plan of buffers are the same, and so are the
bits of the answers, which is checked. A task follows the tasks whose memory it needs, reads before writes included. With `--apart`
every tensor has memory of its own, in all programs: nothing waits for memory that is used again.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from benchmarks.engine.online_program import NoTaskflow, OnlineProgram, apart, driver, pieces_library, task_graph
from benchmarks.scheduling.randwire import randwire
from benchmarks.scheduling.schedule_instances import RANDOM_GRAPHS
from benchmarks.workloads import export, workloads
from bricolage.backends.interface import RegionModel, Resources
from bricolage.backends.native.engine import instruction_set
from bricolage.backends.native.loaded_library import NativeKernel
from bricolage.base.options import available_cores
from bricolage.device.buffers import allocate_aligned
from bricolage.device.host import host
from bricolage.frontends import to_model
from bricolage.graph.prepare import prepare
from bricolage.graph.store import Store
from bricolage.measure.statistics import paired_ratio
from bricolage.native.build import plan_fused_kernels, write_library
from bricolage.native.cpu.arithmetic import FLOAT32
from bricolage.native.cpu.target import CpuTarget
from bricolage.native.module import generate

STATIC, PIECES, WHOLE = "static", "taskflow, pieces", "taskflow, kernels"


@dataclass(frozen=True)
class Row:
    """One network."""

    workload: str
    threads: int
    kernels: int
    tasks: int
    """Of the graph with a task for each piece."""
    dependences: int
    """Between phases."""
    ms: Mapping[str, float]
    """Median of a call, by program."""
    speedup: Mapping[str, tuple[float, float, float]]
    """Of the static program over the others, with its interval: above one where it is faster."""


def compare(name: str, model: ir.Model, library: ctypes.CDLL, *, threads: int, rounds: int, separate: bool) -> Row:
    """Builds the three programs, compares their answers, and times them in interleaved rounds. `library` is the `driver`."""
    with tempfile.TemporaryDirectory() as written:
        folder = Path(written)
        graph = prepare(model, {})
        store = Store(folder)
        store.share([graph.model])
        region = RegionModel(store.region(graph.everything, "all"))
        machine = CpuTarget(instruction_set(host()), threads)
        fusion = plan_fused_kernels(region, machine, FLOAT32, {}, strands=False)
        if separate:
            apart(fusion)
        source = generate(fusion, machine, FLOAT32)
        tasks = task_graph(source)
        write_library(source, machine.isa, FLOAT32, folder)
        static = NativeKernel(region, folder, Resources(threads=threads))
        pieces = pieces_library(source, tasks, machine.isa, folder)
        online = {
            kind: OnlineProgram(library, pieces, tasks, source, threads, whole=kind == WHOLE)
            for kind in (PIECES, WHOLE)
        }
        draw = np.random.default_rng(0)
        inputs = [allocate_aligned(info.sizes, info.numpy) for info in static.inputs]
        for array in inputs:
            array[...] = draw.standard_normal(array.shape) if array.dtype.kind == "f" else 0
        answers = {kind: [allocate_aligned(i.sizes, i.numpy) for i in static.outputs] for kind in (STATIC, *online)}
        calls: dict[str, Callable[[], object]] = {STATIC: static.bind(inputs, answers[STATIC])}
        calls |= {kind: program.bind(inputs, answers[kind]) for kind, program in online.items()}
        for kind, call in calls.items():
            call()
            for mine, theirs in zip(answers[kind], answers[STATIC], strict=True):
                if not np.array_equal(mine.view(np.uint8), theirs.view(np.uint8)):
                    raise AssertionError(f"{name}: the bits of '{kind}' are others than those of the static program")
        samples = _rounds(calls, rounds)
        for program in online.values():
            program.close()
    ratios = {kind: paired_ratio(samples[kind], samples[STATIC]) for kind in online}
    return Row(
        name,
        threads,
        len(fusion.kernels),
        sum(tasks.pieces),
        sum(map(len, tasks.before)),
        {kind: float(np.median(some)) for kind, some in samples.items()},
        {kind: (one.value, one.low, one.high) for kind, one in ratios.items()},
    )


def _rounds(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[tuple[float, ...]]]:
    """Milliseconds by program, a round each, forwards and then backwards. Each call is timed behind one that is not."""
    found: dict[str, list[tuple[float, ...]]] = {kind: [] for kind in calls}
    for number in range(rounds):
        for kind in calls if number % 2 == 0 else reversed(tuple(calls)):
            calls[kind]()
            begun = time.perf_counter()
            calls[kind]()
            found[kind].append(((time.perf_counter() - begun) * 1e3,))
    return found


def networks(names: Sequence[str]) -> dict[str, Callable[[], ir.Model]]:
    """Workloads by name, and "randwire": a network of three random graphs."""
    graphs = sorted(RANDOM_GRAPHS.glob("ws-*.txt"))
    return {
        name: (lambda: randwire(graphs))
        if name == "randwire"
        else (lambda one=name: to_model(export(workloads()[one])))  # type: ignore[misc]
        for name in names
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engine.online", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--taskflow", type=Path, default=Path("/usr/include"), help="folder that holds taskflow/taskflow.hpp"
    )
    parser.add_argument(
        "--workload", default="inception-v3,nasnet-a-large,randwire,resnet-50", help="names, separated by commas"
    )
    parser.add_argument("--threads", type=int, default=available_cores(), help="of each program (default: all cores)")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--apart", action="store_true", help="memory of its own for each tensor")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(arguments)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            library = driver(given.taskflow, Path(folder))
        except NoTaskflow as error:
            print(f"skipped: {error}", file=sys.stderr)
            return 0
        for name, build in networks(given.workload.split(",")).items():
            made = compare(name, build(), library, threads=given.threads, rounds=given.rounds, separate=given.apart)
            rows.append(made)
            print(f"{name} is done", file=sys.stderr)
    if given.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return 0
    for row in rows:
        times = "  ".join(f"{kind} {ms:.3f} ms" for kind, ms in row.ms.items())
        won = "  ".join(f"over {kind} {v:.3f} [{low:.3f}, {high:.3f}]" for kind, (v, low, high) in row.speedup.items())
        print(
            f"{row.workload}: {row.kernels} kernels, {row.tasks} tasks, {row.dependences} dependences; {times}; {won}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
