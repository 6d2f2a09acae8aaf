"""What bricolage itself costs: per region at run time, per call, and to load an artifact.

    python -m benchmarks.overhead
    python -m benchmarks.overhead --only calls

The region overhead is told apart from the backend's by making the region's work vanish: a chain of Relu operators on one
element, one region each. What a bound program takes per region, less the backend's own call timed by itself in the same
rounds, is ours. What a call costs besides its kernels is told on models that take some ten microseconds: in interleaved
rounds, the executable is called with arrays as a user gives them, the same program is called with its buffers bound, and
ONNX Runtime's session is run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
import onnx.parser

from benchmarks.workloads import export, workloads
from bricolage.api.optimize import optimize
from bricolage.backends import registry
from bricolage.backends.interface import Resources
from bricolage.base import sealed
from bricolage.base.options import Options
from bricolage.device.buffers import allocate_aligned
from bricolage.device.host import host
from bricolage.frontends import to_model
from bricolage.graph.prepare import prepare
from bricolage.graph.store import Store
from bricolage.plan.program_step import Step
from bricolage.runtime.compile import compile_program, compile_step
from bricolage.runtime.load import load
from bricolage.work.implementation import Implementation

_REGIONS = 32
_ROUNDS = 51
_REPEATS = 20
_LOADS = 9
_CALLS_BUDGET_S = 8.0


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
        bare = kernel.bind(
            [allocate_aligned((1,), np.dtype(np.float32))], [allocate_aligned((1,), np.dtype(np.float32))]
        )
        rounds = [(_time(program) / _REGIONS, _time(bare)) for _ in range(_ROUNDS)]
    whole, alone = (statistics.median(column) for column in zip(*rounds, strict=True))
    return {"region_us": whole, "backend_us": alone, "ours_us": statistics.median(a - b for a, b in rounds)}


def _time(call: Callable[[], object], repeats: int = _REPEATS) -> float:
    """Microseconds a call, after one that is not counted."""
    call()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats * 1e6


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


def small_models() -> dict[str, onnx.ModelProto]:
    """Models whose kernels take a few microseconds, as control loops, filters of signals and rankings have them."""
    rng = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return onnx.numpy_helper.from_array((rng.standard_normal(shape) * 0.3).astype(np.float32), name)

    def model(name: str, text: str, *weights: onnx.TensorProto) -> onnx.ModelProto:
        made = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> {name} {text}')
        made.graph.initializer.extend(weights)
        return made

    step = "(float[1,1,40] x, float[1,1,64] h0) => (float[1,1,4] z, float[1,1,64] hn)"
    state = "(float[1,1,16] x, float[1,1,32] h0, float[1,1,32] c0) => (float[1,1,1,32] y, float[1,1,32] hn, float[1,1,32] cn)"
    return {
        "add": model("add", "(float[16] x, float[16] y) => (float[16] z) { z = Add (x, y) }"),
        "mlp": model(
            "mlp",
            "(float[1,32] x) => (float[1,4] y) { a = Gemm (x, w1, b1) r = Relu (a) y = Gemm (r, w2, b2) }",
            *(weight("w1", 32, 64), weight("b1", 64), weight("w2", 64, 4), weight("b2", 4)),
        ),
        "gru-step": model(
            "gru",
            f"{step} {{ y, hn = GRU <hidden_size = 64, linear_before_reset = 1> (x, w, r, b, , h0)"
            " q = Squeeze (y, axis) z = MatMul (q, f) }",
            *(weight("w", 1, 192, 40), weight("r", 1, 192, 64), weight("b", 1, 384), weight("f", 64, 4)),
            onnx.numpy_helper.from_array(np.array([1]), "axis"),
        ),
        "lstm-step": model(
            "lstm",
            f"{state} {{ y, hn, cn = LSTM <hidden_size = 32> (x, w, r, b, , h0, c0) }}",
            *(weight("w", 1, 128, 16), weight("r", 1, 128, 32), weight("b", 1, 256)),
        ),
    }


def per_call(model: onnx.ModelProto, threads: int) -> dict[str, float]:
    """Microseconds of a call, of the bound program, of the difference, which is ours, and of ONNX Runtime's own session. Medians of
    interleaved rounds."""
    fast = optimize(model, Options(threads=threads, budget_s=_CALLS_BUDGET_S))
    rng = np.random.default_rng(0)
    inputs = {spec.name: rng.standard_normal(tuple(map(int, spec.shape or ()))).astype("f4") for spec in fast.inputs}
    bound = fast.bind({name: _aligned(array) for name, array in inputs.items()})
    session = _session(model, threads)
    calls: list[Callable[[], object]] = [lambda: fast(inputs), bound, lambda: session.run(None, inputs)]
    rounds = [[_time(call, 10 * _REPEATS) for call in calls] for _ in range(_ROUNDS)]
    call, kernels, other = (statistics.median(column) for column in zip(*rounds, strict=True))
    ours = statistics.median(whole - alone for whole, alone, _ in rounds)
    return {"call_us": call, "bound_us": kernels, "ours_us": ours, "onnxruntime_us": other}


def _session(model: onnx.ModelProto, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _timed_load(path: Path) -> tuple[float, float]:
    """Seconds of a load, and those of them that go into comparing files with their seals."""
    spent = 0.0
    compare = sealed.intact

    def timed(folder: Path, ignored: str = "") -> bool:
        nonlocal spent
        start = time.perf_counter()
        found = compare(folder, ignored)
        spent += time.perf_counter() - start
        return found

    with mock.patch.object(sealed, "intact", timed):
        start = time.perf_counter()
        load(path)
        return time.perf_counter() - start, spent


def _aligned(array: np.ndarray) -> np.ndarray:
    copy = allocate_aligned(array.shape, array.dtype)
    copy[...] = array
    return copy


def main() -> int:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead", description=__doc__.partition("\n")[0])
    parser.add_argument("--workload", default="resnet-50", help="whose artifact is loaded")
    parser.add_argument("--threads", type=int, default=Options().threads)
    parser.add_argument("--only", choices=("regions", "calls", "loading"), help="one of the three")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found: dict[str, Any] = {"hardware": str(host())}
    if given.only in (None, "regions"):
        found["regions"] = {
            b.name: per_region(b.name, given.threads) for b in registry.available() if not b.compiles_slowly
        }
    if given.only in (None, "calls"):
        found["calls"] = {name: per_call(model, given.threads) for name, model in small_models().items()}
    if given.only in (None, "loading"):
        found["loading"] = {given.workload: loading(given.workload)}
    print(json.dumps(found, indent=1) if given.json else _told(found))
    return 0


def _told(found: Mapping[str, Any]) -> str:
    lines = [found["hardware"]]
    if "regions" in found:
        lines += ["", "| backend | µs a region | its own call | ours |", "|---|---:|---:|---:|"]
        for name, one in found["regions"].items():
            lines.append(f"| {name} | {one['region_us']:.1f} | {one['backend_us']:.1f} | {one['ours_us']:.1f} |")
    if "calls" in found:
        lines += [
            "",
            "| model | µs a call | its kernels | ours | ONNX Runtime's session |",
            "|---|---:|---:|---:|---:|",
        ]
        for name, one in found["calls"].items():
            own = (one["call_us"], one["bound_us"], one["ours_us"], one["onnxruntime_us"])
            lines.append(f"| {name} | " + " | ".join(f"{us:.1f}" for us in own) + " |")
    for name, one in found.get("loading", {}).items():
        checks = f"{one['checks']:.1%} of them to check what is read"
        lines += [
            "",
            f"{name}: loads in {one['load_s']:.2f} s, {checks}; {one['call_us']:.0f} µs a call to copy and check",
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
