"""Both directions of recurrences in the native engine: one after the other by all threads, and a thread each.

    python -m benchmarks.strands [--rounds 60] [--threads 2] [--networks tagger,crnn]

Both libraries of a network are loaded in one process and take turns, forwards and backwards. Cells are of 64 steps, with as
many inputs as units. A gain above 1 means that strands are faster.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from benchmarks.workloads import export, workloads
from bricolage.backends.interface import RegionModel, Resources
from bricolage.backends.native.cpu.arithmetic import FLOAT32
from bricolage.backends.native.cpu.build import planned, write
from bricolage.backends.native.cpu.kernel import NativeKernel
from bricolage.backends.native.cpu.module import generate
from bricolage.backends.native.cpu.target import CpuTarget
from bricolage.backends.native.engine import instruction_set
from bricolage.backends.trials import on_random_inputs
from bricolage.device.caches import host_caches
from bricolage.device.host import host
from bricolage.frontends import to_model
from bricolage.graph.prepare import prepare
from bricolage.graph.store import Store
from bricolage.measure.statistics import Ratio, paired_ratio

_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
_STEPS = 64
_CELLS = [
    *(("LSTM", hidden, 1) for hidden in (16, 64, 128, 256, 384, 512, 1024)),
    *(("LSTM", hidden, batch) for hidden, batch in ((256, 4), (128, 16))),
    *(("GRU", hidden, 1) for hidden in (64, 256, 300, 512)),
    *(("RNN", hidden, 1) for hidden in (64, 256, 512, 700)),
]


def cell(kind: str, hidden: int, batch: int) -> ir.Model:
    """A model of one bidirectional operator."""
    rows, draw = _GATES[kind] * hidden, np.random.default_rng(0)
    text = f"""<ir_version: 10, opset_import: ["" : 17]> test (float[{_STEPS}, {batch}, {hidden}] x) => (y)
        {{ y = {kind} <hidden_size = {hidden}, direction = "bidirectional"> (x, w, r) }}"""
    model = onnx.parser.parse_model(text)
    model.graph.output[0].type.CopyFrom(
        onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, (_STEPS, 2, batch, hidden))
    )
    for name in ("w", "r"):
        weights = (draw.standard_normal((2, rows, hidden)) / hidden**0.5).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weights, name))
    found: ir.Model = ir.from_proto(model)
    return found


def compare(model: ir.Model, threads: int, rounds: int) -> tuple[Ratio | None, int, int]:
    """The speed-up of strands over shared steps, and how often threads meet without and with them.
    None where none pay: both are one program."""
    calls: list[Callable[[], object]] = []
    meetings: list[int] = []
    with tempfile.TemporaryDirectory() as written:
        store = Store(Path(written))
        graph = prepare(model, {"width": 160} if _is_open(model) else {})
        store.share([graph.model])
        region = RegionModel(store.region(graph.everything, "all"))
        target = CpuTarget(instruction_set(host()), threads, host_caches())
        for strands in (False, True):
            source = generate(planned(region, target, FLOAT32, {}, strands=strands), target)
            (folder := Path(written) / str(strands)).mkdir()
            write(source, target.isa, FLOAT32, folder)
            calls.append(on_random_inputs(NativeKernel(region, folder, Resources(threads=threads)), region)[0])
            meetings.append(source.meetings)
        if meetings[0] == meetings[1]:
            return None, meetings[0], meetings[1]
        spent: list[list[tuple[float, ...]]] = [[], []]
        for number in range(rounds):
            for i in (0, 1) if number % 2 == 0 else (1, 0):
                calls[i]()
                begun = time.perf_counter()
                calls[i]()
                calls[i]()
                spent[i].append(((time.perf_counter() - begun) * 1e3,))
    return paired_ratio(spent[0], spent[1]), meetings[0], meetings[1]


def _is_open(model: ir.Model) -> bool:
    return any(not isinstance(size, int) for value in model.graph.inputs for size in value.shape or ())


def models(networks: Sequence[str]) -> Iterator[tuple[str, ir.Model]]:
    """Networks, then cells, by name."""
    for name in networks:
        yield name, to_model(export(workloads()[name]))
    for kind, hidden, batch in _CELLS:
        yield f"{kind} {hidden}, batch {batch}", cell(kind, hidden, batch)


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--networks", default="tagger,crnn", type=lambda text: text.split(",") if text else [])
    given = parser.parse_args()
    print("| network | meetings, one after the other | with strands | gain [95 % CI] |")
    print("|---|---:|---:|---|")
    for name, model in models(given.networks):
        found, before, now = compare(model, given.threads, given.rounds)
        gain = "as before" if found is None else f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"
        print(f"| {name} | {before} | {now} | {gain} |", flush=True)


if __name__ == "__main__":
    main()
