"""Devices of two kinds: plans and placements beside those that take them as alike.

    python -m benchmarks.training.unlike_devices --json
    python -m benchmarks.training.unlike_devices --run --scale 3 --seconds 10 --json

Without options a Transformer of formulas (`parallel_plans.transformer`) is planned on mixes of devices: `groups_ms` is the best
plan with stages on groups of unlike devices, `alike_ms` the best that takes all as the slowest with the slowest link, `ratio` the
second by the first, `bound_ms` what no plan goes below. Nothing is measured.

With `--run` the demonstration's step is placed by every method and planned, on two processes of this machine of which one takes
`--scale` times as long, and both are run: `predicted_ms`, `measured_ms`, `error`; `median_error` and `worst_error` over all rows,
and of all pairs whose measured times differ by 5 %, the part in the predicted order. Quiet is needed for that.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.training.parallel_plans import transformer
from bricolage.device.device import Link
from bricolage.train.pipeline.pipeline_problem import PipelineProblem, UnlikeDevices
from bricolage.train.pipeline.search import best_plans

DEMO = Path(__file__).parents[2] / "examples" / "demo_plan" / "network.py"
MIXES: tuple[tuple[float, ...], ...] = ((1.0, 2.0), (1.0, 4.0), (1.0, 1.0, 4.0), (1.0, 2.0, 4.0), (1.0, 1.0, 3.0, 3.0))
"""Of devices: what each takes by what the fastest takes."""
SPEC = """
module = "{module}:transformer"
arguments = {{ layers = {layers}, width = {width} }}
batch = "{module}:batch"
batch_size = 16
[optimiser]
kind = "adamw"
[devices]
device = [
    {{ name = "slow", kind = "{kind}", cores = 1, scale = {scale}, memory_gb = 2.0 }},
    {{ name = "fast", kind = "{other}", cores = 1, memory_gb = 4.0 }},
]
link = [{{ between = ["slow", "fast"], gbytes = {gbytes}, latency_us = 500.0 }}]
"""


def mixed(scales: Sequence[float], gbytes: float, memory_gb: float) -> PipelineProblem:
    """The Transformer on devices of several kinds, joined by equal links."""
    names = tuple(f"device {number}" for number in range(len(scales)))
    links = tuple(Link(pair, gbytes, 20.0) for pair in itertools.combinations(names, 2))
    layers = tuple(transformer(12, 1024, 512, 20_000.0 / scale) for scale in scales)
    memory = int(memory_gb * 1e9)
    unlike = UnlikeDevices(names, layers, (memory,) * len(scales), links)
    slowest = layers[max(range(len(scales)), key=lambda device: scales[device])]
    return PipelineProblem(slowest, len(scales), 32, links[0], memory, prefetch=True, unlike=unlike)


def plan_rows(gbytes: float, memory_gb: float) -> Iterator[dict[str, object]]:
    """By mix what plans take."""
    for scales in MIXES:
        problem = mixed(scales, gbytes, memory_gb)
        best, alike = best_plans(problem)[0], best_plans(replace(problem, unlike=None))[0]
        yield {
            "scales": scales,
            "groups": [len(group.devices) for group in best.groups],
            "micro_batches": [group.micro_batches for group in best.groups],
            "groups_ms": best.step_ms,
            "alike": f"{alike.schedule}, {alike.replicas} x {alike.devices}",
            "alike_ms": alike.step_ms,
            "ratio": alike.step_ms / best.step_ms,
            "bound_ms": problem.bound_ms,
        }


def run_rows(scale: float, seconds: float, layers: int) -> Iterator[dict[str, object]]:
    """Placements by all methods, and plans, as they were predicted and as they ran."""
    from bricolage.api.train_place import open_placement, place_operators
    from bricolage.train.run.document import write_plan
    from bricolage.train.run.launch_plan import launch_plan
    from bricolage.train.run.planning import plan_step
    from bricolage.train.step.spec import read_spec

    facts = {"module": DEMO, "layers": layers, "width": 128, "scale": scale, "gbytes": 0.5}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "step.toml")
        path.write_text(SPEC.format(kind="cpu", other="accelerator", **facts), encoding="utf-8")
        placed = place_operators(open_placement(path), seconds=seconds, limit_s=5.0, run=True)
        for run in placed.runs:
            if run.measured is not None and run.predicted_ms is not None:
                yield _row(", ".join(run.methods), run.predicted_ms, run.measured.median_ms)
        path.write_text(SPEC.format(kind="cpu", other="cpu", **facts), encoding="utf-8")
        made = plan_step(read_spec(path), seconds=seconds)
        write_plan(made, Path(folder))
        result = launch_plan(Path(folder), seconds=2 * seconds, pipelines=4)
        assert result is not None
        for way, latency in result.measured.items():
            plan = "" if "pipeline" not in way else made.pipelines[int(way.partition(" ")[2] or 1) - 1].schedule
            yield _row(f"plan: {way} {plan}".strip(), result.predicted_ms[way], latency.median_ms)


def _row(what: str, predicted: float, measured: float) -> dict[str, object]:
    return {"what": what, "predicted_ms": predicted, "measured_ms": measured, "error": predicted / measured - 1.0}


def summary(rows: Sequence[dict[str, object]]) -> dict[str, object]:
    """Errors, and the order."""
    pairs = [(float(str(row["predicted_ms"])), float(str(row["measured_ms"]))) for row in rows]
    errors = [abs(predicted / measured - 1.0) for predicted, measured in pairs]
    apart = [two for two in itertools.combinations(pairs, 2) if abs(math.log(two[0][1] / two[1][1])) > math.log(1.05)]
    kept = sum((first[0] < second[0]) == (first[1] < second[1]) for first, second in apart)
    return {
        "median_error": statistics.median(errors),
        "worst_error": max(errors),
        "pairs": len(apart),
        "in_order": kept / len(apart) if apart else None,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true", help="run placements and plans on processes of this machine")
    parser.add_argument("--scale", type=float, default=3.0, help="of the slow process")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each timing and for the races")
    parser.add_argument("--layers", type=int, default=4, help="of the demonstration's Transformer")
    parser.add_argument("--bandwidth", type=float, default=1.25, help="of links, 10⁹ bytes a second")
    parser.add_argument("--memory", type=float, default=16.0, help="of each device, 10⁹ bytes")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    if given.run:
        rows = list(run_rows(given.scale, given.seconds, given.layers))
        document = {"rows": rows, **summary(rows)}
    else:
        rows = list(plan_rows(given.bandwidth, given.memory))
        document = {"rows": rows}
    if given.json:
        print(json.dumps(document, indent=1))
        return 0
    for row in rows:
        print(
            "  ".join(
                f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in row.items()
            )
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
