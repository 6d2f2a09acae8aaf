"""What a call of ours costs beyond the tool's own call, for plans of one region: the tool as its users call it and the executable
take turns on the same model and inputs, each tool in a process of its own, every answer compared with the tool's.

    python -m benchmarks.call_overhead
    python -m benchmarks.call_overhead --backend onnxruntime,openvino --signature eight-inputs --json

The difference is that of the medians of interleaved rounds, with the 95 % interval of its bootstrap. OpenVINO with shared outputs
does less than we do: a later call overwrites what it returns, and an answer of ours is the caller's own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser

from bricolage.backends import registry
from bricolage.backends.interface import Missing, RegionModel, Resources
from bricolage.base import scratch
from bricolage.base.options import Options
from bricolage.device.host import host
from bricolage.driver.bucket_decision import make_plan
from bricolage.driver.sources import GivenModel, open_source, working_folder
from bricolage.driver.unmeasured import unmeasured_bucket
from bricolage.errors import BricolageError
from bricolage.runtime.executable import Executable
from bricolage.runtime.process_environment import environment
from bricolage.work.implementation import Assignment, Implementation

_ROUNDS = 200
_ROUND_MS = 1.0
"""Of each side's turn in a round, so that a neighbour that comes meets both."""
_RESAMPLES = 1000
_TOLERANCE = 1e-5
Inputs = Mapping[str, np.ndarray]
OwnCall = Callable[[], Sequence[np.ndarray]]


@dataclass(frozen=True)
class CallSignature:
    """A small model of one kind of inputs and outputs."""

    name: str
    ends: str
    """Inputs and outputs in ONNX's text form."""
    body: str
    inputs: Inputs

    @property
    def model(self) -> onnx.ModelProto:
        """The model, opset 20."""
        text = f'<ir_version: 9, opset_import: ["" : 20]> overhead {self.ends} {{ {self.body} }}'
        return onnx.parser.parse_model(text)


def signatures() -> tuple[CallSignature, ...]:
    """One of each kind."""
    floats = np.random.default_rng(0).normal(size=(8, 1, 64)).astype(np.float32)
    eight = [f"x{number}" for number in range(8)]
    image = np.random.default_rng(1).normal(size=(1, 3, 224, 224)).astype(np.float32)
    words = np.array(["ab", "c", "def", ""] * 4, object)
    return (
        CallSignature("one-input", "(float[1,64] x) => (float[1,64] y)", "y = Relu (x)", {"x": floats[0]}),
        CallSignature(
            "eight-inputs",
            f"({', '.join(f'float[1,64] {name}' for name in eight)}) => (float[1,64] y)",
            f"y = Sum ({', '.join(eight)})",
            dict(zip(eight, floats, strict=True)),
        ),
        CallSignature(
            "eight-outputs",
            f"(float[1,64] x) => ({', '.join(f'float[1,8] {name}' for name in eight)})",
            f"r = Relu (x) {', '.join(eight)} = Split <axis = 1, num_outputs = 8> (r)",
            {"x": floats[0]},
        ),
        CallSignature(
            "scalars",
            "(float[1,64] x, int64 k, float s) => (float[1,64] y, int64 n)",
            "c = Cast <to = 1> (k) m = Mul (x, s) y = Add (m, c) n = Add (k, k)",
            {"x": floats[0], "k": np.array(16000), "s": np.array(0.5, np.float32)},
        ),
        CallSignature(
            "open-outputs",
            "(float[1,64] x) => (int64[2,found] y, float[kept] z)",
            "r = Relu (x) y = NonZero (r) b = Cast <to = 9> (r) z = Compress (x, b1)".replace(
                "b = Cast <to = 9> (r)", "b = Cast <to = 9> (r) f = Constant <value_ints = [-1]> () b1 = Reshape (b, f)"
            ),
            {"x": floats[0]},
        ),
        CallSignature("strings", "(string[16] x) => (string[16] y)", "y = StringConcat (x, x)", {"x": words}),
        CallSignature("image", "(float[1,3,224,224] x) => (float[1,3,224,224] y)", "y = Relu (x)", {"x": image}),
    )


# --- ours -----------------------------------------------------------------------------------------------------------------


def whole_on(backend: str, model: onnx.ModelProto, threads: int = 1, **sizes: int) -> Executable:
    """A plan of one region, the whole model, on a backend in its first configuration; nothing is measured. `sizes`: of the
    dimensions that the model leaves open.

    Raises:
        UsageError: a bad model.
    """
    options = Options(threads=threads, backends=(backend,), shapes={name: (size,) for name, size in sizes.items()})
    device, found = host(), registry.get(backend)
    directory = working_folder()
    with scratch.using(directory, keep=True):
        source = open_source(GivenModel(model), options, directory)
    bucket = source.buckets[0]
    implementation = Implementation(backend, found.configs(options.precision, device)[0], device.name)
    placement = (Assignment(bucket.graph.everything.bits, implementation),)
    decided = unmeasured_bucket(source.store.graph(bucket.graph), bucket, placement, None, options)
    plan = make_plan(source, [decided], options, [found], device)
    return Executable(plan, source.store.directory, temporary=True)


# --- the tools' own calls ---------------------------------------------------------------------------------------------------


def _onnxruntime(path: Path, inputs: Inputs, threads: int) -> OwnCall:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    feeds = dict(inputs)
    return lambda: session.run(None, feeds)


def _openvino(path: Path, inputs: Inputs, threads: int) -> OwnCall:
    import openvino

    settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": str(threads), "INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(str(path), "CPU", settings)
    request, feeds = compiled.create_infer_request(), dict(inputs)
    return lambda: list(request.infer(feeds, share_inputs=True, share_outputs=True).values())


def _torch(path: Path, inputs: Inputs, threads: int) -> OwnCall:
    import torch

    from bricolage.lowering.torch import lower

    torch.set_num_threads(threads)
    module, arrays = lower(RegionModel(path).model), list(inputs.values())

    def call() -> list[np.ndarray]:
        with torch.inference_mode():
            return [result.numpy() for result in module(*[torch.from_numpy(array) for array in arrays])]

    return call


def _inductor(path: Path, inputs: Inputs, threads: int) -> OwnCall:
    import torch
    from torch._inductor import aoti_compile_and_package, aoti_load_package

    from bricolage.lowering.torch import lower

    torch.set_num_threads(threads)
    arrays = list(inputs.values())
    tensors = tuple(torch.from_numpy(array) for array in arrays)
    package = path.with_suffix(".pt2")
    with torch.no_grad():
        program = torch.export.export(lower(RegionModel(path).model), tensors, strict=False)
        aoti_compile_and_package(program, package_path=str(package), inductor_configs={"freezing": True})
    function = aoti_load_package(str(package))

    def call() -> list[np.ndarray]:
        with torch.inference_mode():
            return [result.numpy() for result in function(*[torch.from_numpy(array) for array in arrays])]

    return call


def _xla(path: Path, inputs: Inputs, threads: int) -> OwnCall:
    del threads  # of the process
    import jax

    from bricolage.lowering.jax import lower

    function, constants = lower(RegionModel(path).model)
    arrays = list(inputs.values())
    with jax.enable_x64(True):
        weights = {name: jax.device_put(array) for name, array in constants.items()}
        compiled = jax.jit(function).lower(weights, *arrays).compile()
    if all(array.itemsize <= np.dtype(np.float32).itemsize for array in arrays):
        return lambda: [np.asarray(result) for result in compiled(weights, *arrays)]

    def call() -> list[np.ndarray]:
        with jax.enable_x64(True):
            return [np.asarray(result) for result in compiled(weights, *arrays)]

    return call


def _tvm(path: Path, inputs: Inputs, threads: int) -> OwnCall:
    import tvm
    from tvm import relax

    from bricolage.backends.tvm import build_executable

    region = RegionModel(path)
    executable = build_executable(region, registry.get("tvm").configs("highest", host())[0], Resources(threads=threads))
    machine, arrays = relax.VirtualMachine(executable, tvm.cpu()), list(inputs.values())
    main = machine["main"]
    given = int(machine.module["get_function_arity"]("main")) > len(arrays)

    def call() -> list[np.ndarray]:
        tensors = [tvm.runtime.tensor(array) for array in arrays]
        if not given:
            results = main(*tensors)
            return [result.numpy() for result in ([results] if len(region.outputs) == 1 else results)]
        outputs = [tvm.runtime.empty(info.sizes, info.numpy.name) for info in region.outputs]
        main(*tensors, *outputs)
        return [result.numpy() for result in outputs]

    return call


OWN: Mapping[str, Callable[[Path, Inputs, int], OwnCall]] = {
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
    "torch": _torch,
    "inductor": _inductor,
    "xla": _xla,
    "tvm": _tvm,
}
"""By backend: IREE's programs are compiled for given buffers here, and our engine has no other call than ours."""


# --- both, in turns -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Overhead:
    """Microseconds of a call, by the tool itself and by us."""

    signature: str
    own_us: float = 0.0
    ours_us: float = 0.0
    difference_us: float = 0.0
    interval_us: tuple[float, float] = (0.0, 0.0)
    equal: bool = False
    """Whether both gave the same answer."""
    refused: str = ""
    """Why there is no figure."""


def measured(backend: str, signature: CallSignature, threads: int, rounds: int = _ROUNDS) -> Overhead:
    """Both calls of a backend in turns; why not, where it does not run the model."""
    with scratch.using(scratch.temporary()) as folder:
        path = folder / "model.onnx"
        onnx.save(signature.model, path)
        try:
            fast = whole_on(backend, signature.model, threads)
            ran = fast.backends(signature.inputs)
            own = OWN[backend](path, signature.inputs, threads)
            expected = [np.array(result) for result in own()]
        except BricolageError as error:
            return Overhead(signature.name, refused=error.sentence)
        except Exception as error:  # whatever a framework raises of a model that it does not take
            return Overhead(signature.name, refused=f"{type(error).__name__}: {str(error).splitlines()[0][:200]}")
        if ran != {backend}:
            return Overhead(signature.name, refused=f"it runs on {', '.join(sorted(ran))}")
        inputs = dict(signature.inputs)
        equal = _equal(expected, fast(inputs))
        own_us, ours_us = _take_turns(own, lambda: fast(inputs), rounds)
        equal = equal and _equal(expected, fast(inputs))
    low, high = _interval(own_us, ours_us)
    own_median, ours_median = statistics.median(own_us), statistics.median(ours_us)
    return Overhead(signature.name, own_median, ours_median, ours_median - own_median, (low, high), equal)


def _equal(expected: Sequence[np.ndarray], answer: object) -> bool:
    found: list[Any] = list(answer) if isinstance(answer, tuple) else [answer]
    return len(found) == len(expected) and all(_close(one, other) for one, other in zip(expected, found, strict=True))


def _close(one: np.ndarray, other: np.ndarray) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(np.array_equal(one, other) if one.dtype.kind in "OU" else np.allclose(one, other, atol=_TOLERANCE))


def _take_turns(own: Callable[[], object], ours: Callable[[], object], rounds: int) -> tuple[list[float], list[float]]:
    """Microseconds a call in each round."""
    times: tuple[list[float], list[float]] = ([], [])
    repeats = [max(1, int(_ROUND_MS * 1e3 / _timed(call, 20))) for call in (own, ours)]
    for number in range(rounds):
        for side in (0, 1) if number % 2 else (1, 0):
            times[side].append(_timed((own, ours)[side], repeats[side]))
    return times


def _timed(call: Callable[[], object], repeats: int) -> float:
    call()  # the other one's caches are behind us
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats * 1e6


def _interval(own: Sequence[float], ours: Sequence[float]) -> tuple[float, float]:
    """Of the difference of medians, rounds drawn in pairs."""
    drawn = np.random.default_rng(0).integers(0, len(own), size=(_RESAMPLES, len(own)))
    differences = np.median(np.asarray(ours)[drawn], axis=1) - np.median(np.asarray(own)[drawn], axis=1)
    low, high = np.quantile(differences, [0.025, 0.975])
    return float(low), float(high)


def main() -> int:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.call_overhead", description=__doc__.partition("\n")[0])
    installed = [name for name in OWN if not isinstance(registry.get(name).status(), Missing)]
    parser.add_argument(
        "--backend", default=",".join(installed), help="names with commas between; default: all installed"
    )
    parser.add_argument(
        "--signature", default=",".join(one.name for one in signatures()), help="likewise; default: all"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=_ROUNDS)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--here", action="store_true", help="in this process: one backend")
    given = parser.parse_args()
    chosen = [one for one in signatures() if one.name in given.signature.split(",")]
    if given.here:
        print(json.dumps([asdict(measured(given.backend, one, given.threads, given.rounds)) for one in chosen]))
        return 0
    found = {name: _apart(name, given) for name in given.backend.split(",")}
    told = {"hardware": str(host()), "threads": given.threads, "backends": found}
    print(json.dumps(told, indent=1) if given.json else _told(str(host()), found))
    return 0


def _apart(backend: str, given: argparse.Namespace) -> list[Any]:
    """A backend's figures, from a process of its own."""
    command = [sys.executable, "-m", "benchmarks.call_overhead", "--here", "--backend", backend]
    command += ["--signature", given.signature, "--threads", str(given.threads), "--rounds", str(given.rounds)]
    variables = environment([backend], Resources(threads=given.threads))
    done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, check=True)
    rows: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return rows


def _told(hardware: str, found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    lines = [hardware, "", "| backend | signature | its own call, µs | ours, µs | difference, µs | equal |"]
    lines.append("|---|---|---:|---:|---:|---|")
    for name, rows in found.items():
        for row in rows:
            if row["refused"]:
                lines.append(f"| {name} | {row['signature']} | {row['refused']} ||||")
                continue
            low, high = row["interval_us"]
            times = (
                f"{row['own_us']:.1f} | {row['ours_us']:.1f} | {row['difference_us']:+.1f} [{low:+.1f}, {high:+.1f}]"
            )
            lines.append(f"| {name} | {row['signature']} | {times} | {'yes' if row['equal'] else 'no'} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
