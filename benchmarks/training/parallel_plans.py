"""Plans for a described Transformer on described devices: `python -m benchmarks.training.parallel_plans`.

    python -m benchmarks.training.parallel_plans --json
    python -m benchmarks.training.parallel_plans --devices 8 --layers 24 --hidden 1024 --batch 64 --bandwidth 1.25 --memory 16
    python -m benchmarks.training.parallel_plans --devices 64 --layers 96 --hidden 4096 --batch 256
    python -m benchmarks.training.parallel_plans --links 10gbit,1gbit,400mbit --json
    python -m benchmarks.training.parallel_plans --links 1gbit,400mbit --networks wide --processes 4 --link-host 2 --json
    python -m benchmarks.training.parallel_plans --sharding --devices 64 --layers 32 --hidden 4096 --batch 512 --memory 80 --json
    python -m benchmarks.training.parallel_plans --sharding --devices 4096 --layers 3125 --hidden 4096 --batch 4096 --memory 80 \\
        --micro-batches 512 --clusters 64 --groups 16,32,64
    python -m benchmarks.training.parallel_plans --spec step.toml --processes 2 --json
    python -m benchmarks.training.parallel_plans --growth --json --page growth.html
    python -m benchmarks.training.parallel_plans --step-operators 1000 --devices 64 --json

With `--sharding` operators are divided too: all devices as one group, plain data parallelism, and stages on groups of devices
(Alpa's two levels); hosts have `--host` devices, joined by links of `--inside`. With
`--spec` a step of PyTorch is traced, its layouts are planned and run by DTensor on gloo, and its gradients compared.

Layers take what their formulas say: for s tokens and h hidden units a sample's forward pass has s h (24 h + 4 s) FLOPs, the
gradient of the input s h (24 h + 8 s), that of the weights 24 s h² (Qi et al., "Zero bubble pipeline parallelism"); activations are
s h (34 + 5 a s / h) bytes in 16 bits (Korthikanti et al., "Reducing activation recomputation", 2022). Weights, gradients and Adam's
state take 16 bytes for each of 12 h² weights, exchanged gradients 2. Devices reach `--gflops`. Printed is what the simulator
predicts; nothing is measured but `seconds`, the time of planning.

With `--links` steps of benchmarks/training/training_networks.py are planned for processes here, joined by links that are held to
each bandwidth (benchmarks/tools/links.py; root and iproute2 are needed), and the plans are run: `predicted_ms`, `measured_ms` and
`error` of the best pipelines, divided operators, plain data parallelism and a single process; `median_error`, `worst_error`,
`median_relative_error` (by the single process's times, predicted and measured); of all pairs whose measured times
differ by 5 %, those in the predicted order; `kept_ratio`, the worst time of the kept way by the faster of the two last;
`layouts_ratio`, the best time of divided operators by that of data parallelism. With cores enough each process has one of its own.
With `--link-host` so many processes are a host: messages inside it are not held.

With `--step-operators` a step of PyTorch is planned as `bricolage train plan` does, on `--devices` described devices: printed are
its seconds by what it does (`phases`), and its operators, forward and backward, as counted.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.tools.links import BANDWIDTHS, NoNetworks, PlanProcesses
from benchmarks.training.layout_runs import here, plan_spec, run_plan
from benchmarks.training.parallel_growth import growth, write
from benchmarks.training.sharded_steps import report
from bricolage.device.device import Link
from bricolage.errors import BricolageError, NoPipelinePlan
from bricolage.train.pipeline.pipeline_problem import PipelineProblem, PlannedLayer
from bricolage.train.pipeline.search import PLANNED, best_plans
from bricolage.train.step.spec import read_spec


def transformer(layers: int, hidden: int, tokens: int, gflops: float) -> tuple[PlannedLayer, ...]:
    """Layers of heads of 64 units."""
    area, heads = tokens * hidden, hidden / 64

    def ms(flops: float) -> float:
        return flops / gflops / 1e6

    one = PlannedLayer(
        "layer",
        ms(area * (24 * hidden + 4 * tokens)),
        ms(area * (24 * hidden + 8 * tokens)),
        ms(24 * area * hidden),
        2.0 * area,
        area * (34 + 5 * heads * tokens / hidden),
        2.0 * 12 * hidden**2,
        16.0 * 12 * hidden**2,
    )
    return (one,) * layers


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the plans, the fastest first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--gflops", type=float, default=50_000.0)
    parser.add_argument("--bandwidth", type=float, default=1.25, help="10⁹ bytes a second between two devices")
    parser.add_argument("--latency", type=float, default=20.0, help="microseconds of a message")
    parser.add_argument("--memory", type=float, default=16.0, help="10⁹ bytes of a device")
    parser.add_argument("--start", type=float, default=0.2, help="milliseconds of each pass, whatever its samples")
    parser.add_argument("--schedule", help=f"among {', '.join(PLANNED)}, with commas")
    parser.add_argument("--count", type=int, default=5)
    parser.add_argument(
        "--links", help=f"run plans over links of these bandwidths, with commas: {', '.join(BANDWIDTHS)}"
    )
    parser.add_argument("--networks", default="encoder,mlp", help="whose steps are run with --links")
    parser.add_argument("--processes", type=int, default=2, help="with --links and --spec")
    parser.add_argument("--link-host", type=int, default=1, help="processes of a host with --links")
    parser.add_argument("--pipelines", type=int, default=2, help="of each plan that are run with --links")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each race with --links")
    parser.add_argument("--json", action="store_true")
    inner = parser.add_argument_group("with --sharding")
    inner.add_argument("--sharding", action="store_true", help="operators are divided too")
    inner.add_argument(
        "--spec", type=Path, help="a training step: traced, planned and run on processes of this machine"
    )
    inner.add_argument("--micro-batches", type=int, default=8)
    inner.add_argument("--clusters", type=int, default=8, help="stages begin between so many clusters of layers")
    inner.add_argument("--groups", default="1,2,4,8,16,32,64", help="numbers of devices that a stage may have")
    inner.add_argument("--host", type=int, default=8, help="devices of a host")
    inner.add_argument("--inside", type=float, default=100.0, help="10⁹ bytes a second between two devices of a host")
    inner.add_argument("--copying", type=float, default=1500.0, help="10⁹ bytes a second that a device reads or copies")
    inner.add_argument("--limit", type=float, default=30.0, help="seconds of an integer programme")
    inner.add_argument(
        "--whole", type=int, default=200, help="with more layers, all devices are not planned as one group"
    )
    parser.add_argument(
        "--growth", action="store_true", help="seconds of planning up to 100,000 operators, 4,096 devices"
    )
    parser.add_argument("--step-operators", type=int, help="plan a step of PyTorch of at least about so many operators")
    parser.add_argument("--page", type=Path, help="with --growth: an HTML page of the figures")
    parser.add_argument("--sizes", default="", help="with --growth: OPERATORS:DEVICES with commas, as 1000,10000:64")
    given = parser.parse_args(arguments)
    if given.growth:
        return _growth(given)
    if given.step_operators is not None:
        return _step(parser, given)
    if given.links:
        return _over_links(parser, given)
    schedules = given.schedule.split(",") if given.schedule else PLANNED
    if not set(schedules) <= set(PLANNED):
        parser.error(f"schedules are {', '.join(PLANNED)}")
    if given.spec is not None:
        return _traced(given)
    if given.sharding:
        return _sharded(parser, given)
    started = time.monotonic()
    try:
        problem = PipelineProblem(
            transformer(given.layers, given.hidden, given.tokens, given.gflops),
            given.devices,
            given.batch,
            Link(("one", "other"), given.bandwidth, given.latency),
            given.memory * 1e9,
            given.start,
        )
        plans = best_plans(problem, schedules, count=given.count)
    except (NoPipelinePlan, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    seconds = time.monotonic() - started
    if given.json:
        rows = [asdict(one) | {"gap": one.gap} for one in plans]
        print(json.dumps({"bound_ms": problem.bound_ms, "seconds": seconds, "plans": rows}, indent=1))
        return 0
    print(f"no plan below {problem.bound_ms:.1f} ms; planned in {seconds:.1f} s")
    for one in plans:
        print(
            f"{one.schedule:14} {one.replicas:3} x {one.devices:3} devices, {one.micro_batches:3} micro-batches"
            f"{', recomputed' if one.recompute else '':12} {one.step_ms:10.1f} ms  bubble {100 * one.bubble:4.1f} %  "
            f"exchange {one.exchange_ms:8.1f} ms  {one.peak_bytes / 1e9:6.2f} GB"
        )
    return 0


def _growth(given: argparse.Namespace) -> int:
    sizes = [[int(one) for one in some.split(",")] for some in given.sizes.split(":") if some]
    rows = write(growth(transformer, *sizes), given.page)
    if given.json:
        print(json.dumps({"rows": rows}, indent=1))
        return 0
    for one in rows:
        told = "nothing fits" if one["step_ms"] is None else f"{one['step_ms']:.1f} ms a step"
        print(
            f"{one['kind']:18} {one['operators']:8,} operators {one['devices']:6,} devices {one['seconds']:8.1f} s  {told}"
        )
    return 0


def _step(parser: argparse.ArgumentParser, given: argparse.Namespace) -> int:
    from benchmarks.training.parallel_steps import planned_step, show  # imports PyTorch

    if min(given.step_operators, given.devices, given.batch) < 1:
        parser.error("operators, devices and samples are at least 1")
    found = planned_step(given.step_operators, given.devices, given.batch, given.bandwidth, given.memory)
    show(found, as_json=given.json)
    return 0


def _over_links(parser: argparse.ArgumentParser, given: argparse.Namespace) -> int:
    from benchmarks.training.parallel_links import STEPS, run, show  # imports PyTorch

    bandwidths, networks = given.links.split(","), given.networks.split(",")
    if given.link_host < 1 or given.processes % given.link_host:
        parser.error("hosts have equal numbers of processes")
    if not set(bandwidths) <= set(BANDWIDTHS) or not set(networks) <= set(STEPS):
        parser.error(f"bandwidths are {', '.join(BANDWIDTHS)}; networks are {', '.join(STEPS)}")
    try:
        processes = PlanProcesses(given.seconds, 120.0, given.pipelines, given.link_host)
        show(run(networks, bandwidths, given.processes, processes), as_json=given.json)
    except NoNetworks as error:
        print(f"no networks can be made here: {error}", file=sys.stderr)
        return 2
    return 0


def _traced(given: argparse.Namespace) -> int:
    """Layouts of a spec's step: predicted, run by DTensor on gloo, and checked against one process."""
    try:
        spec = read_spec(given.spec)
        started = time.monotonic()
        group = here(spec, given.processes)
        measured = time.monotonic()
        plan = plan_spec(spec, group, limit_s=given.limit)
        planned = time.monotonic()
        ran = run_plan(spec, plan)
    except BricolageError as error:
        print(error, file=sys.stderr)
        return 2
    facts = {
        "operators": len(plan.operators),
        "predicted_ms": plan.ms,
        "bound_ms": plan.bound_ms,
        "replicas_ms": plan.replicas_ms,
        "parameters": dict(plan.parameters),
        "run": asdict(ran),
        "measuring_s": measured - started,
        "seconds": planned - measured,
    }
    if given.json:
        print(json.dumps(facts, indent=1))
        return 0
    print(
        f"{facts['operators']} operators planned in {facts['seconds']:.1f} s: {plan.ms:.2f} ms, at least {plan.bound_ms:.2f} ms"
    )
    print(
        f"data parallel {plan.replicas_ms:.2f} ms predicted; weights {' '.join(sorted(set(plan.parameters.values())))}"
    )
    print(f"run: {ran.step_ms:.2f} ms a step, one process {ran.single_ms:.2f} ms, gradients differ by {ran.error:.1e}")
    return 0


def _sharded(parser: argparse.ArgumentParser, given: argparse.Namespace) -> int:
    """Prints the plans of both levels."""
    if min(given.micro_batches, given.clusters, given.host, given.layers) < 1 or given.batch % given.micro_batches:
        parser.error(
            "micro-batches, clusters, hosts' devices and layers are at least 1, and micro-batches divide the batch"
        )
    try:
        facts = report(given)
    except ValueError as error:
        parser.error(str(error))
    if given.json:
        print(json.dumps(facts, indent=1))
        return 0
    print(f"{facts['operators']} operators on {facts['devices']} devices")
    for one in facts["plans"]:
        ms = "does not fit" if one["step_ms"] is None else f"{one['step_ms']:.1f} ms  {one['peak_bytes'] / 1e9:6.2f} GB"
        print(f"{one['plan']:18} {ms:>28}  planned in {one['seconds']:.1f} s  {one.get('stages', '')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
