"""Mutants of convolutions, as PET's generator makes them: which are right, and whether one is faster.

    python -m benchmarks.rewrites.mutants --enumerate
    python -m benchmarks.rewrites.mutants --networks resnet-18,csrnet --batch 1,16 --backend native,onnxruntime --json

`--enumerate` goes through all mutations of at most two moves (`rewrite.rules.mutants`) on six small convolutions. A mutant is
*right* where at most half of its result has to be corrected. A program of two moves is *reached* if it is that of one move, or if
its first move alone is right, so that two rules one after the other make it.

Otherwise every convolution of a network is raced against each of its mutants with their corrections, in turns in one process, on
random inputs; answers are compared with the convolution's. A second table has each network: the time of all its convolutions over
that with the fastest mutant in the place of each that has one which is faster beyond its interval. No more than that can a network
gain. PET's own figures are printed with it (`PUBLISHED`): speed-ups of whole networks over the best of TensorFlow, XLA, TensorRT
and TASO on a V100. Its sizes are taken, but for Inception-v3, which is 299 x 299 here and 330 x 330 there. Mutants are of
convolutions over two axes: BERT and Resnet3D-18 have none of these."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
import onnx_ir as ir

from benchmarks.tools.output import keep
from benchmarks.workloads import export, workloads
from bricolage.backends import registry
from bricolage.backends.interface import RegionModel, Resources
from bricolage.backends.kernel_trials import on_random_inputs
from bricolage.base.options import available_cores
from bricolage.device.host import host
from bricolage.frontends import to_model
from bricolage.graph.prepare import prepare, simplify
from bricolage.graph.store import Store
from bricolage.measure.statistics import paired_ratio
from bricolage.rewrite.analyses.linear import Window
from bricolage.rewrite.builder import GraphBuilder, Names
from bricolage.rewrite.catalogue import choose_rules
from bricolage.rewrite.engine.apply import apply_once
from bricolage.rewrite.predicates import sizes
from bricolage.rewrite.rule import Example, MatchFailure
from bricolage.rewrite.rules.correction import compare_mutant
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
    """A convolution of a square image, and how often its network has it."""

    inputs: int
    outputs: int
    size: int
    kernel: tuple[int, int]
    stride: int = 1
    dilation: int = 1
    count: int = 1
    pads: tuple[int, int] | None = None
    """On both sides of each axis; by default half of the kernel."""

    @property
    def example(self) -> str:
        """Its attributes."""
        ahead = self.pads or [self.dilation * (size - 1) // 2 for size in self.kernel]
        steps, apart = [self.stride] * 2, [self.dilation] * 2
        return f"y = Conv<pads={[*ahead, *ahead]}, strides={steps}, dilations={apart}>(x, w)"

    @property
    def title(self) -> str:
        """Channels, size of the image, kernel, stride and dilation."""
        kernel = "x".join(map(str, self.kernel))
        valid = "" if self.pads is None else f", pads {self.pads[0]}, {self.pads[1]}"
        return f"{self.inputs} to {self.outputs}, {self.size}, {kernel}/{self.stride}/{self.dilation}{valid}"


NETWORKS: dict[str, tuple[Layer, ...]] = {
    "resnet-18": (
        Layer(3, 64, 224, (7, 7), 2),
        Layer(64, 64, 56, (3, 3), count=4),
        Layer(64, 128, 56, (3, 3), 2),
        Layer(64, 128, 56, (1, 1), 2),
        Layer(128, 128, 28, (3, 3), count=3),
        Layer(128, 256, 28, (3, 3), 2),
        Layer(128, 256, 28, (1, 1), 2),
        Layer(256, 256, 14, (3, 3), count=3),
        Layer(256, 512, 14, (3, 3), 2),
        Layer(256, 512, 14, (1, 1), 2),
        Layer(512, 512, 7, (3, 3), count=3),
    ),
    "csrnet": (
        Layer(512, 512, 14, (3, 3), dilation=2, count=3),
        Layer(512, 256, 14, (3, 3), dilation=2),
        Layer(256, 128, 14, (3, 3), dilation=2),
        Layer(128, 64, 14, (3, 3), dilation=2),
    ),
}
"""Distinct convolutions: He et al., CVPR 2016, table 1; the dilated half of CSRNet (Li et al., CVPR 2018, table 3, configuration
B), which is all that PET measures, at its 14 x 14."""
READ = ("inception-v3",)
"""Networks whose convolutions are read from a workload."""
PUBLISHED: dict[str, dict[int, float]] = {
    "resnet-18": {1: 1.04, 16: 1.21},
    "csrnet": {1: 2.21, 16: 2.51},
    "inception-v3": {1: 1.24, 16: 1.44},
    "bert": {1: 1.40, 16: 1.19},
    "resnet3d-18": {1: 1.00, 16: 1.28},
}
"""PET's speed-up over the best other by batch: the figure of its end-to-end comparison."""


def read_layers(network: str) -> tuple[Layer, ...]:
    """The distinct convolutions of a network of `NETWORKS` or `READ`."""
    if network in NETWORKS:
        return NETWORKS[network]
    model = to_model(export(workloads()[network]))
    simplify(model)
    counted: dict[Layer, int] = {}
    for node in model.graph:
        if node.op_type == "Conv":
            layer = read_layer(node)
            counted[layer] = counted.get(layer, 0) + 1
    return tuple(replace(layer, count=count) for layer, count in counted.items())


def read_layer(node: ir.Node) -> Layer:
    """The layer of a convolution.

    Raises:
        ValueError: it has groups, or its axes differ otherwise than in the kernel.
    """
    data, weight = (sizes(value) for value in node.inputs[:2] if value is not None)
    pads = tuple(node.attributes.get_ints("pads", [0] * 4))
    strides, dilations = (node.attributes.get_ints(name, [1, 1]) for name in ("strides", "dilations"))
    square = data[2] == data[3] and len({*strides}) == 1 == len({*dilations}) and pads[:2] == pads[2:]
    if not square or node.attributes.get_int("group", 1) != 1:
        raise ValueError(
            f"{node.name} is no convolution of one group with the same stride on both axes of a square image"
        )
    return Layer(data[1], weight[0], data[2], (weight[2], weight[3]), strides[0], dilations[0], pads=(pads[0], pads[1]))


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
    batch: int
    count: int
    """Of the convolution in its network."""


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
                compare_mutant(MovedParts(mutation).mutant, batch, image, made, window)
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
        {"w": (layer.outputs, layer.inputs, *layer.kernel)},
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
    described, original_ms = f"{batch} x {layer.title}", median(turns[""])
    if len(models) == 1:
        return [Row(network, described, backend, "", original_ms, (1.0, 1.0, 1.0), 0.0, batch, layer.count)]
    rows = []
    for name in list(models)[1:]:
        ratio = paired_ratio([(ms,) for ms in turns[""]], [(ms,) for ms in turns[name]])
        error = relative_error(answers[name], answers[""])
        speedup = (ratio.value, ratio.low, ratio.high)
        rows.append(Row(network, described, backend, name, original_ms, speedup, error, batch, layer.count))
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


def format_networks(rows: Sequence[Row]) -> str:
    """Markdown: what mutants could gain all convolutions of a network, and what PET reports for the network."""
    lines = [
        "| network | batch | backend | convolutions | with a faster mutant | ms | with mutants | speed-up | PET's |",
        "|---|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    for network, batch, backend in dict.fromkeys((row.network, row.batch, row.backend) for row in rows):
        before = after = 0.0
        every = faster = 0
        for layer in dict.fromkeys(row.layer for row in rows if (row.network, row.batch) == (network, batch)):
            mutants = [row for row in rows if (row.network, row.layer, row.backend) == (network, layer, backend)]
            best = max((row.speedup for row in mutants if row.speedup[1] > 1.0), default=(1.0, 1.0, 1.0))
            each = mutants[0]
            before, after = before + each.count * each.ms, after + each.count * each.ms / best[0]
            every, faster = every + each.count, faster + each.count * (best[0] > 1.0)
        published = PUBLISHED[network].get(batch)
        lines.append(
            f"| {network} | {batch} | {backend} | {every} | {faster} | {before:.3f} | {after:.3f} | {before / after:.3f} "
            f"| {'no figure' if published is None else f'{published:.2f}'} |"
        )
    return "\n".join(lines)


def main() -> int:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rewrites.mutants", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--enumerate", action="store_true", help="count mutations and programs")
    parser.add_argument("--networks", default=",".join(NETWORKS), help=f"names, by commas; {', '.join(READ)} too")
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
            for layer in read_layers(network):
                for backend in asked.backend.split(","):
                    rows += race_layer(network, layer, batch, backend, asked.threads)
                    keep({"processor": str(host()), "rows": [asdict(row) for row in rows]}, asked.output)
                    print(f"{network}, {batch} x {layer}, {backend}", file=sys.stderr, flush=True)
    print(
        json.dumps([asdict(row) for row in rows], indent=1)
        if asked.json
        else f"{format_rows(rows)}\n\n{format_networks(rows)}"
    )
    return int(any(row.error > _CLOSE for row in rows))


if __name__ == "__main__":
    sys.exit(main())
