"""What branches side by side give on this machine, and how well the simulator says so; part of `python -m benchmarks.schedules`.

A network is decided as for a user, on one backend. Its graph is then cut at forks and joins whatever that promises
(`search.schedules.branches`), and its regions are timed in place on one core, two and so on. Every distinct schedule that the
methods propose really runs: its makespan against the simulated one is the simulator's error. The best of them races against the
plan as it was decided, in interleaved rounds, and so does the native engine with its kernels in waves. For more cores than there
are, curves go on by Amdahl's law, fitted to the times on one core and on all, and the simulator says what the methods would come
to.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from benchmarks.scheduling.randwire import randwire
from benchmarks.workloads import export, workloads
from bricolage.api.optimize import optimize
from bricolage.backends.native.structural_parameters import WAVES
from bricolage.base.options import Options
from bricolage.costs.models.roofline import added_ms
from bricolage.device.host import host
from bricolage.driver.region_schedule import measured_problem, reorder_regions, timetable
from bricolage.driver.sub_graphs import of_part
from bricolage.graph.graph import Graph, Region
from bricolage.graph.to_work import to_work
from bricolage.graph.work import bytes_moved, flops, workload
from bricolage.measure.in_place import step_ms
from bricolage.measure.statistics import Ratio, paired_ratio
from bricolage.plan import artifact
from bricolage.plan.number_sets import format_numbers
from bricolage.plan.plan import Bucket, Plan
from bricolage.plan.shipped_program import PlannedRegion
from bricolage.runtime.executable import Executable
from bricolage.runtime.programs import PlanSource
from bricolage.search.schedules.branches import cut_branches
from bricolage.search.schedules.candidate_schedules import Proposals, propose_schedules
from bricolage.search.schedules.scheduling_problem import ScheduleProblem
from bricolage.search.schedules.simulate import BandwidthContention
from bricolage.work.bits import members

MANY_CORES = (8, 16, 32, 64)
Arrays = Mapping[str, np.ndarray]
_SIDE = 224
_STEPS, _WIDTH = 64, 256


@dataclass(frozen=True)
class SideBySide:
    """Of one network. Times in milliseconds; gains are times of the plan as decided over those of the other."""

    network: str
    implementation: str
    regions: int
    whole_ms: float
    lower_ms: float
    """No schedule of the regions takes less, by their measured times."""
    sequential_ms: float
    simulated_ms: float
    """Of the schedule that raced."""
    method: str
    gain: float
    gain_ci: tuple[float, float]
    waves_gain: float | None
    """Of the native engine in waves; None for another backend."""
    waves_gain_ci: tuple[float, float] | None
    simulator_errors: tuple[float, ...]
    """Of each schedule that ran: simulated over measured makespan, minus one."""
    many_cores: Mapping[int, tuple[float, float]]
    """By count of cores: the regions one after the other, and the best schedule, both as simulated."""


def networks(graphs: Path, folder: Path) -> dict[str, Callable[[], tuple[Path, Arrays]]]:
    """What writes models with branches, and their inputs. `graphs` holds the edge lists of the random ones."""

    def exported(name: str) -> tuple[Path, Arrays]:
        known = workloads()[name]
        return export(known), known.example_inputs(0)

    return {
        "inception-v3": lambda: exported("inception-v3"),
        "nasnet-a-large": lambda: exported("nasnet-a-large"),
        "randwire": lambda: _randwire(sorted(graphs.glob("ws-32-*.txt")), folder / "randwire.onnx"),
        "two lstms": lambda: _lstms(folder / "lstms.onnx"),
    }


def side_by_side(
    name: str, model: Path, inputs: Arrays, backend: str, budget_s: float, rounds: int
) -> SideBySide | None:
    """All of it for one network; None where the plan that was decided has nothing to run side by side."""
    options = Options(backends=(backend,), budget_s=budget_s, rewrite=False, threads=len(host().cores))
    with tempfile.TemporaryDirectory() as given:
        kept = optimize(str(model), options, inputs=dict(inputs)).save(Path(given) / "decided.bricolage")
        plan, directory = artifact.load_artifact(kept)
        whole, cores = plan.buckets[0], host().cores[: options.threads]
        decided = Executable(plan, directory)
        decided.run(inputs)
        whole_ms = statistics.median(_milliseconds(lambda: decided.run(inputs)) for _ in range(rounds))
        divided = _divided(PlanSource(plan, directory), decided.graph(), whole_ms)
        if len(divided.program.regions) < 2 or len(cores) < 2:
            return None
        problem = measured_problem(
            _with(plan, divided), 0, directory, cores, lambda one: step_ms(one, directory, inputs, rounds)
        )
        contention = BandwidthContention.seen(
            [float(one.bytes) for one in divided.program.regions], problem, host().peaks.gbytes
        )
        proposals = propose_schedules(problem, contention)
        errors, best = _errors(plan, divided, directory, proposals, cores, inputs, rounds)
        gain = _raced(lambda: decided.run(inputs), lambda: best.run(inputs), rounds)
        waves = _waves(plan, directory, decided, inputs, rounds) if backend == "native" else None
        return SideBySide(
            network=name,
            implementation=str(whole.program.regions[0].implementation),
            regions=len(divided.program.regions),
            whole_ms=whole_ms,
            lower_ms=proposals.lower_ms,
            sequential_ms=proposals.sequential_ms,
            simulated_ms=proposals.found[0].simulated_ms,
            method=proposals.found[0].schedule.method,
            gain=gain.value,
            gain_ci=(gain.low, gain.high),
            waves_gain=waves.value if waves is not None else None,
            waves_gain_ci=(waves.low, waves.high) if waves is not None else None,
            simulator_errors=errors,
            many_cores={count: _simulated(problem, contention, count, len(cores)) for count in MANY_CORES},
        )


def _with(plan: Plan, bucket: Bucket) -> Plan:
    return replace(plan, buckets=(bucket,))


def _divided(source: PlanSource, graph: Graph, whole_ms: float) -> Bucket:
    """The bucket on its first region's implementation, cut into branches as if cores sped nothing up."""
    bucket = source.plan.buckets[0]
    peaks, one = host().peaks, bucket.program.regions[0].implementation
    weights = [added_ms(peaks, flops(operator), bytes_moved(operator), start_us=1.0) for operator in graph.operators]
    ms = [weight * whole_ms / sum(weights) for weight in weights]
    regions = []
    for bits in cut_branches(to_work(graph), ms, 0.0).regions:
        region = Region(graph, bits)
        amount = workload(region)
        numbers = tuple(members(bits))
        runs_as = of_part(source, region, one)
        regions.append(
            PlannedRegion(
                runs_as, format_numbers(numbers), len(numbers), "", "", amount.flops, amount.bytes, None, measured=False
            )
        )
    return bucket.with_regions(regions)


def _errors(
    plan: Plan,
    divided: Bucket,
    directory: Path,
    proposals: Proposals,
    cores: Sequence[int],
    inputs: Arrays,
    rounds: int,
) -> tuple[tuple[float, ...], Executable]:
    """Simulated over measured makespans, minus one, of every distinct schedule, and the first of them, ready."""
    found: dict[object, float] = {}
    best: Executable | None = None
    for proposal in proposals.found:
        planned = reorder_regions(divided, timetable(proposal, proposals, cores))
        key = (planned.program.regions, planned.program.schedule.cores if planned.program.schedule is not None else ())
        if key in found:
            continue
        program = Executable(_with(plan, planned), directory)
        program.run(inputs)
        best = best or program
        makespans = []
        for _ in range(rounds):
            spans = program.trace(inputs).spans
            makespans.append((max(one.end_ns for one in spans) - min(one.start_ns for one in spans)) / 1e6)
        found[key] = proposal.simulated_ms / statistics.median(makespans) - 1.0
    assert best is not None
    return tuple(found.values()), best


def _waves(plan: Plan, directory: Path, decided: Executable, inputs: Arrays, rounds: int) -> Ratio:
    """Gain of the native engine by kernels in waves, the plan as it is otherwise."""
    bucket = plan.buckets[0]
    regions = []
    for region in bucket.program.regions:
        one = region.implementation
        config = one.config.tuned({**dict(one.config.parameters), WAVES: True})
        regions.append(replace(region, implementation=replace(one, config=config)))
    other = Executable(_with(plan, bucket.with_regions(regions, bucket.program.schedule)), directory)
    return _raced(lambda: decided.run(inputs), lambda: other.run(inputs), rounds)


def _simulated(
    problem: ScheduleProblem, contention: BandwidthContention, cores: int, known: int
) -> tuple[float, float]:
    """One after the other, and the best schedule, on so many cores. Curves go on by Amdahl's law from those of `known` cores."""
    times = []
    for task in range(len(problem)):
        first = problem.ms(task, "cpu", 1)
        last = min(problem.ms(task, "cpu", known), first)
        serial = max(0.0, (known * last - first) / (known - 1))
        times.append({"cpu": tuple(serial + (first - serial) / count for count in range(1, cores + 1))})
    wider = ScheduleProblem(problem.graph, tuple(times), {"cpu": cores})
    # As many channels of memory more as cores: a larger machine of the same kind.
    found = propose_schedules(
        wider, BandwidthContention(contention.bytes, contention.gbytes * cores / known), exact_s=1.0
    )
    return found.sequential_ms, min(found.found[0].simulated_ms, found.sequential_ms)


def _raced(one: Callable[[], object], other: Callable[[], object], rounds: int) -> Ratio:
    """The first one's time over the other's, in rounds that take turns."""
    for run in (one, other):
        run()
    samples = [
        [_milliseconds(run) for run in ((one, other) if n % 2 == 0 else (other, one))][:: 1 if n % 2 == 0 else -1]
        for n in range(rounds)
    ]
    return paired_ratio([(own,) for own, _ in samples], [(its,) for _, its in samples])


def _milliseconds(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return (time.perf_counter() - begun) * 1e3


# --- networks -------------------------------------------------------------------------------------------------------


def _lstms(path: Path) -> tuple[Path, Arrays]:
    """Two layers of two LSTMs in opposite directions."""
    draw, nodes, weights, read = np.random.default_rng(1), [], [], "x"
    for layer in range(2):
        width = _WIDTH if layer == 0 else 2 * _WIDTH
        ends = []
        for direction in ("forward", "reverse"):
            name = f"{direction}{layer}"
            shapes = {f"w{name}": (1, 4 * _WIDTH, width), f"r{name}": (1, 4 * _WIDTH, _WIDTH)}
            for weight, shape in shapes.items():
                array = draw.standard_normal(shape, np.float32) / np.float32(np.sqrt(width))
                weights.append(numpy_helper.from_array(array, weight))
            nodes.append(
                helper.make_node("LSTM", [read, *shapes], [f"h{name}"], hidden_size=_WIDTH, direction=direction)
            )
            nodes.append(helper.make_node("Squeeze", [f"h{name}", "axis"], [f"s{name}"]))
            ends.append(f"s{name}")
        read = f"y{layer}"
        nodes.append(helper.make_node("Concat", ends, [read], axis=2))
    weights.append(numpy_helper.from_array(np.array([1], np.int64), "axis"))
    made_at = _written(path, nodes, weights, ("x", (_STEPS, 1, _WIDTH)), (read, (_STEPS, 1, 2 * _WIDTH)))
    return made_at, {"x": draw.standard_normal((_STEPS, 1, _WIDTH), np.float32)}


def _randwire(graphs: Sequence[Path], path: Path) -> tuple[Path, Arrays]:
    """In RandWire's small regime: what the first random graph reads has a quarter of the side of an image."""
    onnx.save(ir.to_proto(randwire(graphs, size=_SIDE // 2)), path)
    return path, {"x": np.random.default_rng(2).standard_normal((1, 3, _SIDE // 2, _SIDE // 2), np.float32)}


def _written(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    weights: Sequence[onnx.TensorProto],
    given: tuple[str, tuple[int, ...]],
    made: tuple[str, tuple[int, ...]],
) -> Path:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (given, made)]
    graph = helper.make_graph(list(nodes), path.stem, ends[:1], ends[1:], list(weights))
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path
