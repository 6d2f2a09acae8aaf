"""Mutants of convolutions, as PET's generator makes them: which are right, and whether one is faster.

    python -m benchmarks.rewrites.mutants --enumerate
    python -m benchmarks.rewrites.mutants --networks resnet-18,csrnet --batch 1,16 --backend native,onnxruntime --json

`--enumerate` goes through all mutations of at most two moves (`rewrite.rules.mutants`) on six small convolutions. A mutant is
*right* where at most half of its result has to be corrected. A program of two moves is *reached* if it is that of one move, or if
its first move alone is right, so that two rules one after the other make it.

Otherwise every convolution of a network is raced against each of its mutants with their corrections, in turns in one process, on
random inputs; answers are compared with the convolution's. PET (Wang et al., OSDI 2021) reports up to 2.5 times the speed of the
best of TASO, TensorFlow, TensorRT and others on a V100, for whole networks; among its five are ResNet-18 and CSRNet.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np
import onnx_ir as ir

from benchmarks.tools.output import keep
from bricolage.backends import registry
from bricolage.backends.interface import RegionModel, Resources
from bricolage.backends.kernel_trials import on_random_inputs
from bricolage.base.options import available_cores
from bricolage.device.host import host
from bricolage.graph.prepare import prepare
from bricolage.graph.store import Store
from bricolage.measure.statistics import paired_ratio
from bricolage.rewrite.analyses.linear import Window
from bricolage.rewrite.builder import GraphBuilder, Names
from bricolage.rewrite.catalogue import choose_rules
from bricolage.rewrite.engine.apply import apply_once
from bricolage.rewrite.rule import Example, MatchFailure
from bricolage.rewrite.rules.correction import wrong_boxes
from bricolage.rewrite.rules.mutants import MovedParts, Mutation, enumerate_mutations, move_data
from bricolage.verify.compare import relative_error
from bricolage.work.implementation import KernelConfig

_ROUNDS, _TURN_S = 15, 0.02
_CLOSE = 1e-4
_SMALL = (
    (4, (8, 8), (8, 8), Window((3, 3), (1, 1), (1, 1), (1, 1), (1, 1))),
    (1, (16, 16), (16, 16), Window((3, 3), (1, 1), (1, 1), (1, 1), (1, 1))),
    (1, (16, 16), (16, 16), Window((3, 3), (1, 1), (2, 2), (2, 2), (2, 2))),
    (2, (16, 16), (16, 16), Window((1, 5), (1, 1), (1, 1), (0, 2), (0, 2))),
    (2, (8, 8), (4, 4), Window((2, 2), (2, 2), (1, 1), (0, 0), (0, 0))),
    (4, (8, 8), (4, 4), Window((3, 3), (2, 2), (1, 1), (1, 1), (1, 1))),
)
"""Batch, sizes of the image and of the result, window."""


@dataclass(frozen=True)
class Layer:
    """A convolution of a square image."""

    inputs: int
    outputs: int
    size: int
    kernel: int
    stride: int = 1
    dilation: int = 1

    @property
    def example(self) -> str:
        """Its attributes."""
        pad = self.dilation * (self.kernel - 1) // 2
        pads, steps, apart = ([number] * count for number, count in ((pad, 4), (self.stride, 2), (self.dilation, 2)))
        return f"y = Conv<pads={pads}, strides={steps}, dilations={apart}>(x, w)"


NETWORKS: dict[str, tuple[Layer, ...]] = {
    "resnet-18": (
        Layer(3, 64, 224, 7, 2),
        Layer(64, 64, 56, 3),
        Layer(64, 128, 56, 3, 2),
        Layer(64, 128, 56, 1, 2),
        Layer(128, 128, 28, 3),
        Layer(128, 256, 28, 3, 2),
        Layer(128, 256, 28, 1, 2),
        Layer(256, 256, 14, 3),
        Layer(256, 512, 14, 3, 2),
        Layer(256, 512, 14, 1, 2),
        Layer(512, 512, 7, 3),
    ),
    "csrnet": (
        Layer(3, 64, 224, 3),
        Layer(64, 64, 224, 3),
        Layer(64, 128, 112, 3),
        Layer(128, 128, 112, 3),
        Layer(128, 256, 56, 3),
        Layer(256, 256, 56, 3),
        Layer(256, 512, 28, 3),
        Layer(512, 512, 28, 3),
        Layer(512, 512, 28, 3, 1, 2),
        Layer(512, 256, 28, 3, 1, 2),
        Layer(256, 128, 28, 3, 1, 2),
        Layer(128, 64, 28, 3, 1, 2),
        Layer(64, 1, 28, 1),
    ),
}
"""Distinct convolutions: He et al., CVPR 2016, table 1; Li et al., CVPR 2018, table 3, configuration B, on 224 x 224."""


@dataclass(frozen=True)
class Row:
    """One mutant of one convolution."""

    network: str
    layer: str
    backend: str
    mutant: str
    ms: float
    """Of the convolution."""
    speedup: tuple[float, float, float]
    """Of the mutant over the convolution, with its interval."""
    error: float


@dataclass(frozen=True)
class Enumerated:
    """Numbers of mutations, and of programs over all small convolutions."""

    mutations: int
    right: int
    """Mutations that are right on one of them at least."""
    programs: int
    """Distinct pairs of a convolution and a program that is right."""
    unreached: tuple[str, ...]
    """Mutations that make a program which single moves do not."""


def enumerate_all() -> Enumerated:
    """Goes through all mutations."""
    right: dict[tuple[Mutation, int], bytes] = {}
    mutations = list(enumerate_mutations())
    for mutation in mutations:
        for number, (batch, image, made, window) in enumerate(_SMALL):
            try:
                wrong_boxes.__wrapped__(MovedParts(mutation).mutant, batch, image, made, window)
                right[mutation, number] = _fingerprint(mutation, batch, image, made, window)
            except MatchFailure:
                continue
    reached = {
        (number, program)
        for (mutation, number), program in right.items()
        if all((mutation[:length], number) in right for length in range(1, len(mutation)))
    }
    # Where the moves cancel out, the program is the original one.
    reached |= {(number, _fingerprint((), *small)) for number, small in enumerate(_SMALL)}
    others = dict.fromkeys(
        mutation for (mutation, number), program in right.items() if (number, program) not in reached
    )
    programs = {(number, program) for (_, number), program in right.items()}
    unreached = tuple(MovedParts(mutation).equation for mutation in others)
    return Enumerated(len(mutations), len({mutation for mutation, _ in right}), len(programs), unreached)


def _fingerprint(
    mutation: Mutation, batch: int, image: tuple[int, ...], made: tuple[int, ...], window: Window
) -> bytes:
    """What a mutation convolves, and how: where each element of the moved data comes from, and the attributes. The order of
    images in the batch changes nothing."""
    data = ir.Value(name="x", type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([batch, 1, *image]))
    model = ir.Model(ir.Graph([data], [], nodes=[], opset_imports={"": 18}, name="moved"), ir_version=10)
    op = GraphBuilder({"": 18}, Names(model), fold=False)
    moved = move_data(op, mutation, data, window, (batch, 1, *made))
    array = np.arange(batch * image[0] * image[1]).reshape(batch, 1, *image)
    for node in op.nodes:
        if node.op_type == "Transpose":
            array = array.transpose(node.attributes["perm"].as_ints())
        else:
            array = array.reshape([d if isinstance(d, int) else 0 for d in node.outputs[0].shape or ()])
    array = array[np.argsort(array.reshape(len(array), -1)[:, 0])]
    attributes = (array.shape, moved.copies, moved.dilations, moved.pads)
    return repr(attributes).encode() + array.tobytes()


def race_layer(network: str, layer: Layer, batch: int, backend: str, threads: int) -> list[Row]:
    """The mutants of a convolution beside it; none where no rule applies."""
    example = Example(
        f"float[{batch},{layer.inputs},{layer.size},{layer.size}] x",
        layer.example,
        {"w": (layer.outputs, layer.inputs, layer.kernel, layer.kernel)},
    )
    models = {"": example.model()}
    for rule in choose_rules(["correction"]):
        mutated = example.model()
        if apply_once(mutated, rule) is not None:
            models[rule.name] = mutated
    with tempfile.TemporaryDirectory() as folder:
        calls: dict[str, Callable[[], object]] = {}
        answers: dict[str, list[np.ndarray]] = {}
        for name, model in models.items():
            (place := Path(folder) / (name or "original")).mkdir()
            store = Store(place)
            graph = prepare(model, {})
            store.share([graph.model])
            region = RegionModel(store.region(graph.everything, "all"))
            config = KernelConfig(registry.get(backend).configs("highest", host())[0].name)
            kernel = registry.get(backend).compile(region, config, Resources(threads=threads))
            calls[name], outputs = on_random_inputs(kernel, region)
            answers[name] = [np.array(array) for array in outputs]
        turns = _take_turns(calls)
    described = (
        f"{batch} x {layer.inputs} to {layer.outputs}, {layer.size}, {layer.kernel}/{layer.stride}/{layer.dilation}"
    )
    rows = []
    for name in list(models)[1:]:
        ratio = paired_ratio([(ms,) for ms in turns[""]], [(ms,) for ms in turns[name]])
        error = relative_error(answers[name], answers[""])
        speedup = (ratio.value, ratio.low, ratio.high)
        rows.append(Row(network, described, backend, name, median(turns[""]), speedup, error))
    return rows


def _take_turns(calls: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Milliseconds of a call in each round."""
    runs: dict[str, int] = {}
    for name, call in calls.items():
        begun = time.perf_counter()
        call()
        runs[name] = max(1, int(_TURN_S / (time.perf_counter() - begun)))
    spent: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(_ROUNDS):
        for name in list(calls) if number % 2 == 0 else list(reversed(calls)):
            calls[name]()
            begun = time.perf_counter()
            for _ in range(runs[name]):
                calls[name]()
            spent[name].append((time.perf_counter() - begun) * 1e3 / runs[name])
    return spent


def format_rows(rows: Sequence[Row]) -> str:
    """Markdown: the fastest mutant of each convolution, and how many are faster than it beyond the interval."""
    lines = [
        "| network | convolution | backend | ms | mutants | faster | best mutant | its speed-up |",
        "|---|---|---|---:|---:|---:|---|---:|",
    ]
    for place in dict.fromkeys((row.network, row.layer, row.backend) for row in rows):
        mutants = [row for row in rows if (row.network, row.layer, row.backend) == place]
        best = max(mutants, key=lambda row: row.speedup[0])
        faster = sum(row.speedup[1] > 1 for row in mutants)
        value, low, high = best.speedup
        lines.append(
            f"| {' | '.join(place)} | {best.ms:.3f} | {len(mutants)} | {faster} | {best.mutant.removeprefix('corrected-')} "
            f"| {value:.2f} [{low:.2f}, {high:.2f}] |"
        )
    return "\n".join(lines)


def main() -> int:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rewrites.mutants", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--enumerate", action="store_true", help="count mutations and programs")
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--batch", default="1", help="sizes, by commas")
    parser.add_argument("--backend", default="native", help="names, by commas")
    parser.add_argument("--threads", type=int, default=available_cores())
    parser.add_argument("--output", type=Path, help="keep the rows as JSON, after each convolution")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    asked = parser.parse_args()
    if asked.enumerate:
        counts = enumerate_all()
        print(json.dumps(asdict(counts), indent=1))
        return 0
    rows: list[Row] = []
    for network in asked.networks.split(","):
        for batch in map(int, asked.batch.split(",")):
            for layer in NETWORKS[network]:
                for backend in asked.backend.split(","):
                    rows += race_layer(network, layer, batch, backend, asked.threads)
                    keep({"processor": str(host()), "rows": [asdict(row) for row in rows]}, asked.output)
                    print(f"{network}, {batch} x {layer}, {backend}", file=sys.stderr, flush=True)
    print(json.dumps([asdict(row) for row in rows], indent=1) if asked.json else format_rows(rows))
    return int(any(row.error > _CLOSE for row in rows))


if __name__ == "__main__":
    sys.exit(main())
