"""Executables called at a pace, as a camera or a server calls them, against themselves called without pause.

    python -m benchmarks.serving.paced --json
    python -m benchmarks.serving.paced --workload swin-tiny --pauses 20 --calls 150
    python -m benchmarks.serving.paced --artifact made.bricolage --inputs inputs.npz --model model.onnx

For each workload (default: the networks of `wide`) bricolage decides as for a user (`--backend native` keeps it to one backend);
ONNX Runtime and OpenVINO get the same file with their own defaults, OpenVINO in float32 and for latency. Each runs in a process of
its own, and the others are stopped meanwhile. First it is called without pause in quiet: *steady* is the median of that. Then it
is called after each pause, so many times, in quiet and next to a neighbour that comes and goes. Shown are the median and the 99th
percentile over steady, the share of calls that took more than 1.5 times as long as steady, how many of those came in a row (a
state that lasts), and for how long the threads of the process stood in run queues in the median call and in the median slow one.
`others` is the share of the processors that other processes took meanwhile, the neighbour among them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.latency import select
from benchmarks.serving.neighbours import Runner, started
from benchmarks.tools.load import KINDS, busy
from benchmarks.tools.output import keep
from benchmarks.workloads import export, workloads
from bricolage.api.optimize import optimize
from bricolage.base.options import Options, available_cores
from bricolage.device.host import host
from bricolage.measure.disturbance import machine

CONTESTANTS = ("bricolage", "onnxruntime", "openvino")
_PAUSES = (2.0, 20.0, 200.0)
_NEIGHBOURS = ("quiet", "bursty")
_SLOW = 1.5
"""Times steady, beyond which a call was slow."""
_WARM_CALLS = 20

_RUN = """
import json, sys, time
import numpy as np
from bricolage.measure.disturbance import DisturbanceWatch
contestant, path, inputs = sys.argv[1:]
given = dict(np.load(inputs))
if contestant == "bricolage":
    import bricolage
    fast = bricolage.load(path)
    call = lambda: fast.run(given)
elif contestant == "onnxruntime":
    import onnxruntime
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    call = lambda: session.run(None, given)
else:
    import openvino
    words = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    request = openvino.Core().compile_model(path, "CPU", words).create_infer_request()
    call = lambda: request.infer(given, share_inputs=True, share_outputs=True)
call()
call()
watch = DisturbanceWatch()
print("ready", flush=True)
for line in sys.stdin:
    calls, pause_ms = int(line.split()[1]), float(line.split()[2])
    watch.follow()
    ms, queued, begun = [], [], time.process_time()
    for _ in range(calls):
        if pause_ms:
            time.sleep(pause_ms / 1e3)
        before = watch.read().waited_ns
        start = time.perf_counter()
        call()
        ms.append((time.perf_counter() - start) * 1e3)
        after = watch.read().waited_ns
        queued.append(None if before is None or after is None else (after - before) / 1e6)
    print(json.dumps({"ms": ms, "queued_ms": queued, "processor_s": time.process_time() - begun}), flush=True)
"""


@dataclass(frozen=True)
class Contestant:
    """Who is called: a tool, the file that it gets, and inputs."""

    network: str
    tool: str
    file: Path
    inputs: Path
    ships: str
    """What bricolage chose; for others their own name."""


@dataclass(frozen=True)
class Row:
    """One contestant at one pace with one kind of neighbours."""

    network: str
    contestant: str
    ships: str
    neighbours: str
    pause_ms: float
    calls: int
    steady_ms: float
    """Median without pauses, in quiet."""
    median_ratio: float
    """Median over steady."""
    p99_ratio: float
    slow: float
    """Share of calls that took more than 1.5 times steady."""
    slow_in_a_row: int
    queued_ms: float | None
    """That all threads together stood in run queues during the median call; None where the kernel does not count it."""
    queued_slow_ms: float | None
    """The same of slow calls; None also where there are none."""
    others: float | None
    """Share of the processors that other processes took; None where the kernel does not count it."""


def summarise(
    contestant: Contestant,
    neighbours: str,
    pause_ms: float,
    steady_ms: float,
    times: Sequence[float],
    queued: Sequence[float | None],
    others: float | None,
) -> Row:
    """A row of the milliseconds of calls, and of those that threads were queued in each."""
    slow = [ms > _SLOW * steady_ms for ms in times]
    runs = [len(list(group)) for is_slow, group in itertools.groupby(slow) if is_slow]
    waits = [ms for ms in queued if ms is not None]
    slow_waits = [ms for ms, is_slow in zip(queued, slow, strict=True) if is_slow and ms is not None]
    return Row(
        network=contestant.network,
        contestant=contestant.tool,
        ships=contestant.ships,
        neighbours=neighbours,
        pause_ms=pause_ms,
        calls=len(times),
        steady_ms=steady_ms,
        median_ratio=float(np.median(times)) / steady_ms,
        p99_ratio=float(np.quantile(times, 0.99)) / steady_ms,
        slow=sum(slow) / len(slow),
        slow_in_a_row=max(runs, default=0),
        queued_ms=float(np.median(waits)) if waits else None,
        queued_slow_ms=float(np.median(slow_waits)) if slow_waits else None,
        others=others,
    )


def measure(contestant: Contestant, kinds: Sequence[str], pauses: Sequence[float], calls: int) -> Iterator[Row]:
    """The rows of one contestant, in a process of its own."""
    words = [contestant.tool, str(contestant.file), str(contestant.inputs)]
    with started(_RUN, words) as runner:
        runner.ask("calls", _WARM_CALLS, 0)
        steady_ms = float(np.median(runner.ask("calls", calls, 0)["ms"]))
        for kind in kinds:
            with busy(kind):
                for pause_ms in pauses:
                    yield _paced(runner, contestant, kind, pause_ms, steady_ms, calls)


def _paced(runner: Runner, contestant: Contestant, kind: str, pause_ms: float, steady_ms: float, calls: int) -> Row:
    before = machine(())
    answer = runner.ask("calls", calls, pause_ms)
    after = machine(())
    others = None
    if before.busy_s is not None and after.busy_s is not None:
        cores_s = (after.wall_s - before.wall_s) * available_cores()
        others = max(0.0, after.busy_s - before.busy_s - answer["processor_s"]) / cores_s
    return summarise(contestant, kind, pause_ms, steady_ms, answer["ms"], answer["queued_ms"], others)


def contestants_of(name: str, tools: Sequence[str], given: argparse.Namespace, folder: Path) -> list[Contestant]:
    """Who is called for a workload."""
    workload = workloads()[name]
    model, inputs = export(workload), folder / f"{name}.npz"
    np.savez(inputs, **workload.example_inputs(0))  # type: ignore[arg-type]  # its stub takes a name for a flag
    others = [Contestant(name, tool, model, inputs, tool) for tool in tools if tool != "bricolage"]
    if "bricolage" not in tools:
        return others
    options = Options(
        precision="highest",
        budget_s=given.budget,
        backends=tuple(given.backend.split(",")) if given.backend else None,
        threads=given.threads,
    )
    fast = optimize(model, options, inputs=dict(np.load(inputs)))
    artifact = fast.save(folder / f"{name}.bricolage")
    return [Contestant(name, "bricolage", artifact, inputs, fast.plan.buckets[0].race.chosen), *others]


def given_contestants(tools: Sequence[str], given: argparse.Namespace) -> list[Contestant]:
    """Who is called for files that are there already."""
    files = {"bricolage": given.artifact, **dict.fromkeys(CONTESTANTS[1:], given.model)}
    name = (given.artifact or given.model).stem
    return [Contestant(name, tool, files[tool], given.inputs, tool) for tool in tools if files[tool] is not None]


def words_of(row: Row) -> str:
    """A row in one line."""
    waits = "" if row.queued_ms is None else f", queued {row.queued_ms:.2f} ms"
    if row.queued_slow_ms is not None:
        waits += f" ({row.queued_slow_ms:.2f} ms in slow calls)"
    others = "" if row.others is None else f"; others took {row.others:.0%} of the processors"
    return (
        f"{row.network}, {row.contestant}{f' ({row.ships})' if row.ships != row.contestant else ''}, {row.neighbours}, every"
        f" {row.pause_ms:g} ms: steady {row.steady_ms:.3g} ms, median {row.median_ratio:.2f} times, p99 {row.p99_ratio:.2f} times,"
        f" {row.slow:.1%} slow, {row.slow_in_a_row} in a row{waits}{others}"
    )


def document(rows: Sequence[Row], failed: Mapping[str, str]) -> dict[str, Any]:
    """What is printed and kept; `failed`: contestants that did not run, and why."""
    return {"machine": str(host()), "rows": [asdict(row) for row in rows], "failed": dict(failed)}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving.paced", description="executables called at a pace"
    )
    parser.add_argument("--workload", default="wide", help="names or families, separated by commas")
    parser.add_argument("--artifact", type=Path, help="this artifact instead of workloads, with --inputs")
    parser.add_argument("--model", type=Path, help="the file that the other tools get, with --artifact or alone")
    parser.add_argument("--inputs", type=Path, help="inputs of --artifact and --model (.npz)")
    parser.add_argument("--contestants", default=",".join(CONTESTANTS), help=f"of {', '.join(CONTESTANTS)}")
    parser.add_argument("--pauses", default=",".join(f"{ms:g}" for ms in _PAUSES), help="milliseconds between calls")
    parser.add_argument("--calls", type=int, default=1000, help="at each pace")
    parser.add_argument("--neighbours", default=",".join(_NEIGHBOURS), help=f"kinds of {', '.join(KINDS)}")
    parser.add_argument("--backend", default="", help="backends that bricolage may use; default: all")
    parser.add_argument("--budget", type=float, default=45.0, help="seconds to decide about a workload")
    parser.add_argument("--threads", type=int, default=available_cores())
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--output", type=Path, help="also write the JSON here, after each row")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints."""
    parser = _parser()
    given = parser.parse_args(arguments)
    tools, kinds = given.contestants.split(","), given.neighbours.split(",")
    try:
        pauses = [float(word) for word in given.pauses.split(",")]
    except ValueError:
        parser.error(f"pauses are milliseconds, separated by commas, and not '{given.pauses}'")
    if unknown := [*(set(tools) - set(CONTESTANTS)), *(set(kinds) - set(KINDS))]:
        parser.error(
            f"there is no '{unknown[0]}'; contestants: {', '.join(CONTESTANTS)}; neighbours: {', '.join(KINDS)}"
        )
    if given.calls < 1 or min(pauses) < 0:
        parser.error("there must be one call at least, and no pause below 0")
    files = given.artifact or given.model
    if files and not given.inputs:
        parser.error("--artifact and --model need --inputs")
    rows: list[Row] = []
    failed: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="paced-") as folder:
        for name in [""] if files else select(given.workload.split(",")):
            everybody = given_contestants(tools, given) if files else contestants_of(name, tools, given, Path(folder))
            for contestant in everybody:
                try:
                    for row in measure(contestant, kinds, pauses, given.calls):
                        rows.append(row)
                        print(words_of(row), file=sys.stderr, flush=True)
                        keep(document(rows, failed), given.output)
                except RuntimeError as error:
                    failed[f"{contestant.network}, {contestant.tool}"] = str(error)
                    print(f"{contestant.network}, {contestant.tool}: {error}", file=sys.stderr, flush=True)
    keep(document(rows, failed), given.output)
    if given.json:
        print(json.dumps(document(rows, failed)))
    return 0 if rows else 1


if __name__ == "__main__":
    sys.exit(main())
