"""Recurrences in the native engine: kernels that all threads share one after another, a cell's units in slices, and strands.

    python -m benchmarks.engine.strands [--rounds 60] [--threads 2] [--networks tagger,crnn]
    python -m benchmarks.engine.strands --direction forward --networks "" --onnxruntime

The libraries of a network are loaded in one process and take turns, forwards and backwards, with a pause behind ONNX Runtime, whose
threads spin. Cells are of 64 steps, with as many inputs as units. A gain is the time of kernels that are shared by the time with
slices, and by that of the product's own plan (slices and strands, wherever they pay): above 1 these are faster. `GB/s` are the
recurrent weights that a thread reads in a second by the product's plan, all of its time put down to them: what a core's cache gives
is the floor of a step.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import onnx
import onnx_ir as ir

from benchmarks.workloads import export, workloads
from bricolage.backends.interface import RegionModel, Resources
from bricolage.backends.kernel_trials import on_random_inputs
from bricolage.backends.native.engine import instruction_set
from bricolage.backends.native.loaded_library import NativeKernel
from bricolage.device.caches import host_caches
from bricolage.device.host import host
from bricolage.frontends import to_model
from bricolage.graph.prepare import prepare
from bricolage.graph.store import Store
from bricolage.measure.statistics import Ratio, paired_ratio
from bricolage.native.build import plan_fused_kernels, write_library
from bricolage.native.cpu.arithmetic import FLOAT32
from bricolage.native.cpu.c_source import CSource
from bricolage.native.cpu.target import CpuTarget
from bricolage.native.module import generate

_SPINS_S = 0.05
"""How long ONNX Runtime's threads spin when it is done, at least (some 25 ms were seen): what runs meanwhile has one core less, and
programs of two threads took up to twice as long."""
_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
_STEPS = 64
_CELLS = [
    *(("LSTM", hidden, 1) for hidden in (16, 64, 128, 256, 384, 512, 1024)),
    *(("LSTM", hidden, batch) for hidden, batch in ((128, 8), (256, 8), (512, 8), (256, 4), (128, 16))),
    *(("GRU", hidden, 1) for hidden in (64, 256, 300, 512)),
    *(("RNN", hidden, 1) for hidden in (64, 256, 512, 700)),
]


_PROGRAMS = ((False, False), (False, True), (True, True))
"""Strands and slices: shared kernel by kernel, in slices, and as the product has it."""


def cell(kind: str, hidden: int, batch: int, direction: str = "bidirectional") -> ir.Model:
    """A model of one operator."""
    rows, draw, directions = _GATES[kind] * hidden, np.random.default_rng(0), 2 if direction == "bidirectional" else 1
    text = f"""<ir_version: 10, opset_import: ["" : 17]> test (float[{_STEPS}, {batch}, {hidden}] x) => (y)
        {{ y = {kind} <hidden_size = {hidden}, direction = "{direction}"> (x, w, r) }}"""
    model = onnx.parser.parse_model(text)
    model.graph.output[0].type.CopyFrom(
        onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, (_STEPS, directions, batch, hidden))
    )
    for name in ("w", "r"):
        weights = (draw.standard_normal((directions, rows, hidden)) / hidden**0.5).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weights, name))
    found: ir.Model = ir.from_proto(model)
    return found


@dataclass(frozen=True)
class Compared:
    """Meetings of each program in a call; gains of the second and third over the first, None where they are the same program;
    milliseconds of the third, and of ONNX Runtime where it took part."""

    meetings: tuple[int, ...]
    gains: tuple[Ratio | None, ...]
    ms: float
    other_ms: float | None = None


def compare(model: ir.Model, threads: int, rounds: int, *, onnxruntime: bool = False) -> Compared:
    """The programs of a model, in turns."""
    calls: list[Callable[[], object]] = []
    sources: list[CSource] = []
    with tempfile.TemporaryDirectory() as written:
        store = Store(Path(written))
        graph = prepare(model, {"width": 160} if _is_open(model) else {})
        store.share([graph.model])
        region = RegionModel(store.region(graph.everything, "all"))
        target = CpuTarget(instruction_set(host()), threads, host_caches())
        for number, (strands, slices) in enumerate(_PROGRAMS):
            source = generate(plan_fused_kernels(region, target, FLOAT32, {}, strands=strands, slices=slices), target)
            sources.append(source)
            same = next((i for i, other in enumerate(sources) if other.text == source.text), number)
            if same == number:
                (folder := Path(written) / str(number)).mkdir()
                write_library(source, target.isa, FLOAT32, folder)
                kernel = NativeKernel(region, folder, Resources(threads=threads))
                calls.append(on_random_inputs(kernel, region)[0])
            else:
                calls.append(calls[same])
        if onnxruntime:
            calls.append(_onnxruntime(region, threads))
        spent = _in_turns(calls, rounds, len(calls) - 1 if onnxruntime else None)
    gains = [None if calls[i] is calls[0] else paired_ratio(spent[0], spent[i]) for i in range(1, len(_PROGRAMS))]
    ms = [median(own[0] for own in one) for one in spent]
    return Compared(tuple(s.meetings for s in sources), tuple(gains), ms[2], ms[3] if onnxruntime else None)


def _in_turns(
    calls: Sequence[Callable[[], object]], rounds: int, spins: int | None = None
) -> list[list[tuple[float, ...]]]:
    """Milliseconds of a call in each round. Behind number `spins` there is a pause."""
    spent: list[list[tuple[float, ...]]] = [[] for _ in calls]
    for number in range(rounds):
        order = range(len(calls)) if number % 2 == 0 else reversed(range(len(calls)))
        for i in order:
            calls[i]()
            begun = time.perf_counter()
            calls[i]()
            calls[i]()
            spent[i].append(((time.perf_counter() - begun) * 5e2,))
            if i == spins:
                time.sleep(_SPINS_S)
    return spent


def _onnxruntime(region: RegionModel, threads: int) -> Callable[[], object]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(region.path), options, providers=["CPUExecutionProvider"])
    draw = np.random.default_rng(0)
    feeds = {one.name: draw.standard_normal(one.shape).astype(np.float32) for one in session.get_inputs()}
    return lambda: session.run(None, feeds)


def _is_open(model: ir.Model) -> bool:
    return any(not isinstance(size, int) for value in model.graph.inputs for size in value.shape or ())


def models(networks: Sequence[str], direction: str) -> Iterator[tuple[str, ir.Model, int]]:
    """Networks, then cells, by name; with the bytes of the recurrent weights of all steps, 0 where it is a network."""
    for name in networks:
        yield name, to_model(export(workloads()[name])), 0
    for kind, hidden, batch in _CELLS:
        read = _STEPS * (2 if direction == "bidirectional" else 1) * _GATES[kind] * hidden * hidden * 4
        yield f"{kind} {hidden}, batch {batch}", cell(kind, hidden, batch, direction), read


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--networks", default="tagger,crnn", type=lambda text: text.split(",") if text else [])
    parser.add_argument("--direction", default="bidirectional", choices=("bidirectional", "forward"), help="of cells")
    parser.add_argument("--onnxruntime", action="store_true", help="has its turn, too")
    parser.add_argument("--only", default="", help="cells whose names begin so")
    given = parser.parse_args()
    heads = [
        "network",
        "meetings",
        "in slices",
        "as planned",
        "gain of slices [95 % CI]",
        "gain as planned",
        "ms",
        "GB/s",
    ]
    heads += ["ONNX Runtime ms"] if given.onnxruntime else []
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for name, model, read in models(given.networks, given.direction):
        if not name.startswith(given.only):
            continue
        found = compare(model, given.threads, given.rounds, onnxruntime=given.onnxruntime)
        cells = [name, *map(str, found.meetings), *map(_told, found.gains), f"{found.ms:.4g}"]
        cells.append(f"{read / given.threads / found.ms / 1e6:.0f}" if read else "")
        cells += [] if found.other_ms is None else [f"{found.other_ms:.4g}"]
        print(f"| {' | '.join(cells)} |", flush=True)


def _told(gain: Ratio | None) -> str:
    return "as before" if gain is None else f"{gain.value:.3f} [{gain.low:.3f}, {gain.high:.3f}]"


if __name__ == "__main__":
    main()
