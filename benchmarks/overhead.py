"""What bricolage itself costs: per region at run time, per call, and to load an artifact.

    python -m benchmarks.overhead

The region overhead is told apart from the backend's by making the region's work vanish: a chain of Relu operators on one
element, one region each. What a bound program takes per region, less the backend's own call timed by itself in the same
rounds, is ours.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import onnx

from benchmarks.workloads import export, workloads
from bricolage import sealed
from bricolage.api.optimize import optimize
from bricolage.backends import registry
from bricolage.backends.interface import Resources
from bricolage.device.buffers import aligned
from bricolage.device.host import host
from bricolage.frontends import to_model
from bricolage.graph.prepare import prepare
from bricolage.graph.store import Store
from bricolage.options import Options
from bricolage.plan.step import Step
from bricolage.runtime.compile import compile_program, compile_step
from bricolage.runtime.load import load
from bricolage.work.implementation import Implementation

_REGIONS = 32
_ROUNDS = 51
_REPEATS = 20
_LOADS = 9


def chain(regions: int) -> onnx.ModelProto:
    """Relu after Relu on one float32."""
    nodes = [onnx.helper.make_node("Relu", [f"t{i}"], [f"t{i + 1}"]) for i in range(regions)]
    ends = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1]) for n in ("t0", f"t{regions}")]
    graph = onnx.helper.make_graph(nodes, "chain", ends[:1], ends[1:])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10)


def per_region(backend: str, threads: int) -> dict[str, float]:
    """Microseconds a region: of the program, of the backend's bare call, and the difference, which is ours."""
    graph = prepare(to_model(chain(_REGIONS)), {})
    implementation = Implementation(backend, registry.get(backend).configs("highest", host())[0])
    resources = Resources(threads=threads)
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        steps = [Step(implementation, store.region(graph.region(1 << i), f"{i}")) for i in range(_REGIONS)]
        program = compile_program(steps, ["t0"], [f"t{_REGIONS}"], resources).bind()
        kernel, _ = compile_step(steps[0], resources)
        bare = kernel.bind([aligned((1,), np.dtype(np.float32))], [aligned((1,), np.dtype(np.float32))])
        rounds = [(_time(program) / _REGIONS, _time(bare)) for _ in range(_ROUNDS)]
    whole, alone = (statistics.median(column) for column in zip(*rounds, strict=True))
    return {"region_us": whole, "backend_us": alone, "ours_us": statistics.median(a - b for a, b in rounds)}


def _time(call: Callable[[], object]) -> float:
    """Microseconds a call, after one that is not counted."""
    call()
    start = time.perf_counter()
    for _ in range(_REPEATS):
        call()
    return (time.perf_counter() - start) / _REPEATS * 1e6


def loading(workload: str) -> dict[str, float]:
    """Seconds to load a workload's artifact from a warm cache in this process, compiling included, and which part of them goes
    into checking what is read; and what a call costs beyond the bound program, in microseconds. Medians."""
    built = workloads()[workload]
    inputs = built.example_inputs(0)
    fast = optimize(export(built), Options(), inputs=inputs)
    with tempfile.TemporaryDirectory() as folder:
        path = fast.save(Path(folder) / "artifact.bricolage")
        load(path)
        loads = [_timed_load(path) for _ in range(_LOADS)]
        loaded = load(path)
        bound = loaded.bind({n: _aligned(a) for n, a in inputs.items()})
        pairs = [(_time(lambda: loaded.run(inputs)), _time(bound)) for _ in range(3)]
    return {
        "load_s": statistics.median(seconds for seconds, _ in loads),
        "checks": statistics.median(checks / seconds for seconds, checks in loads),
        "call_us": statistics.median(a - b for a, b in pairs),
    }


def _timed_load(path: Path) -> tuple[float, float]:
    """Seconds of a load, and those of them that go into comparing files with their seals."""
    spent = 0.0
    compare = sealed.intact

    def timed(folder: Path, beside: str = "") -> bool:
        nonlocal spent
        start = time.perf_counter()
        found = compare(folder, beside)
        spent += time.perf_counter() - start
        return found

    with mock.patch.object(sealed, "intact", timed):
        start = time.perf_counter()
        load(path)
        return time.perf_counter() - start, spent


def _aligned(array: np.ndarray) -> np.ndarray:
    copy = aligned(array.shape, array.dtype)
    copy[...] = array
    return copy


def main() -> int:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead", description=__doc__.partition("\n")[0])
    parser.add_argument("--workload", default="resnet-50", help="whose artifact is loaded")
    parser.add_argument("--threads", type=int, default=Options().threads)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    regions = {b.name: per_region(b.name, given.threads) for b in registry.available() if not b.compiles_slowly}
    loaded = loading(given.workload)
    if given.json:
        print(json.dumps({"hardware": str(host()), "regions": regions, given.workload: loaded}, indent=1))
        return 0
    print(f"{host()}\n\n| backend | µs a region | its own call | ours |\n|---|---:|---:|---:|")
    for name, found in regions.items():
        print(f"| {name} | {found['region_us']:.1f} | {found['backend_us']:.1f} | {found['ours_us']:.1f} |")
    print(
        f"\n{given.workload}: loads in {loaded['load_s']:.2f} s, {loaded['checks']:.1%} of them to check what is read; "
        f"{loaded['call_us']:.0f} µs a call to copy and check"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
