"""Networks in integers, ours beside those of other tools.

    python -m benchmarks.integers [--networks texts,opennsfw] [--threads 2] [--errors] [--json]

Each network is one float32 file with fixed sizes. Other tools' quantisers and ours make files of it from the same samples; each
file races on the tools that read it, beside the float32 file on all of them and in the native engine's own bytes, in processes
that take turns in one run (`bricolage bench` with every accuracy allowed, and no variations of the inputs). `error` is the
relative error to the float32 network in float64, the median over inputs that calibration has not seen; `agreement` the share of
what is `counted` on these inputs (largest outputs, boxes, lines of text, neighbours: `measures.py`) that is the same, `met`
whether it is as large as asked for. `in_integers` says how many of the network's `products` a file computes in integers.
`ratio_to_best_float` is above 1 where it is faster than the fastest float32 of any tool. With `--errors` nothing is timed.
`ours-float` is ours with `--float-results`, where that makes another file; `ours-asked`, of recognisers, has as many operators in
float besides as the text of 98 % of some lines asks for, which nothing else sees. NNCF takes part where it can be imported
(`pip install --target FOLDER nncf`, and FOLDER on PYTHONPATH). `--networks` takes names, and the groups of `networks.GROUPS`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import geometric_mean, median

import numpy as np
import onnx_ir as ir

from benchmarks.integers.networks import CALIBRATION, GROUPS, JUDGING, QUANTISABLES, TEXT, Quantisable
from benchmarks.integers.peers import ASKED, PEERS, ours_asked
from benchmarks.real.packages import Unavailable
from bricolage.backends import registry
from bricolage.backends.interface import RegionModel, Resources
from bricolage.base import scratch
from bricolage.base.options import Options
from bricolage.base.progress import Silent
from bricolage.device.buffers import allocate_aligned
from bricolage.device.host import host
from bricolage.driver.context import open_context
from bricolage.driver.decide import compete
from bricolage.driver.promising_variants import write_variant_files
from bricolage.driver.sources import GivenModel, Source, open_source, working_folder
from bricolage.driver.state import Challenger
from bricolage.errors import BricolageError
from bricolage.graph.prepare import prepare
from bricolage.graph.store import Store
from bricolage.plan.race_outcome import Contestant
from bricolage.plan.shipped_program import ORIGINAL
from bricolage.quantization.products import products
from bricolage.rewrite.variants import GraphVariant
from bricolage.verify.accuracy_measures import AccuracyDemand
from bricolage.verify.compare import relative_error
from bricolage.verify.reference import Evaluator
from bricolage.work.implementation import Assignment, Implementation, KernelConfig

_TOOLS = ("onnxruntime", "openvino", "native")
_ANY_ERROR = 0.99
"""Relative: nothing is refused for its accuracy, which is a column of the table."""
_QUANTISERS = (*PEERS, ASKED)
_OURS = (KernelConfig("int8"), KernelConfig("int8-bf16"))


@dataclass(frozen=True)
class Row:
    """A contestant on a network."""

    network: str
    contestant: str
    precision: str
    ms: float | None
    ci_ms: tuple[float, float] | None
    bytes: int
    """Of the file that it runs."""
    error: float | None
    agreement: float | None
    counted: str
    """What agrees."""
    met: bool | None
    """Whether the agreement is as large as asked for."""
    in_integers: int | None
    """Products that its file has in integers; None where the tool itself chooses."""
    products: int
    """Of the network."""
    ratio_to_best_float: float | None
    trained: bool
    reason: str = ""


@dataclass(frozen=True)
class Entry:
    """A file on a tool."""

    name: str
    precision: str
    implementation: Implementation
    variant: str
    file: Path


@dataclass(frozen=True)
class Judged:
    """What answers of an entry are worth, on what calibration has not seen."""

    error: float
    agreement: float
    met: bool


def compared(
    network: Quantisable,
    threads: int,
    folder: Path,
    *,
    timed: bool = True,
    tools: Sequence[str] = _TOOLS,
    quantisers: Sequence[str] = _QUANTISERS,
) -> list[Row]:
    """The rows of one network."""
    float32 = network.fixed(folder / "float32.onnx")
    files = {ORIGINAL: float32, **dict(_files(network, float32, folder, quantisers))}
    entries = [entry for name, file in files.items() for entry in _entries(name, file, tools)]
    with scratch.using(working_folder()) as directory:
        contestants = _raced(network, float32, files, entries, threads, directory) if timed else ()
        judged = held_back(network, float32, entries, threads, directory)
    if not timed:
        contestants = tuple(Contestant(one.name, "plan", None, None, None, one.name in judged) for one in entries)
    return list(_rows(network, entries, contestants, judged, _products(float32)))


def _raced(
    network: Quantisable,
    float32: Path,
    files: Mapping[str, Path],
    entries: Sequence[Entry],
    threads: int,
    directory: Path,
) -> tuple[Contestant, ...]:
    """Times of all entries and of float32 on all tools."""
    options = Options(threads=threads, tolerance=_ANY_ERROR, backends=_TOOLS)
    backends = registry.available(options.backends)
    inputs = dict(network.inputs(network.held_back[0]))
    opened = open_source(GivenModel(float32, inputs=inputs), options, directory)
    with open_context(options, backends, host(), Silent(), database=directory / "costs.sqlite") as context:
        (bucket,) = opened.buckets
        made = {name: path for name, path in files.items() if name != ORIGINAL}
        variants = [GraphVariant(ORIGINAL, bucket.graph), *_variants(made, opened)]
        session = context.session(opened, bucket.graph)
        arrays, _ = context.inputs(opened, bucket.graph, session)
        operators = {one.name: len(one.graph) for one in variants}
        challengers = [
            Challenger(
                one.name, (Assignment((1 << operators[one.variant]) - 1, one.implementation),), None, one.variant
            )
            for one in entries
        ]
        # Inverted images are nothing that calibration could have seen; on what is of its kind, each is judged apart.
        raced = compete(session, variants, arrays, opened.digest, challengers, varied=False)
        return raced.race.contestants


def _files(network: Quantisable, float32: Path, folder: Path, quantisers: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """What each quantiser makes of the network, by its name; what fails is told."""
    samples, known = [network.inputs(seed) for seed in CALIBRATION], list[bytes]()
    for name in quantisers:
        to = folder / f"{name}.onnx"
        if name == ASKED and network.measure is not TEXT:
            continue  # whose answers ours keeps as they are without
        try:
            with redirect_stdout(sys.stderr):  # where NNCF draws its progress
                if name == ASKED:
                    ours_asked(float32, samples, to, [network.inputs(seed) for seed in JUDGING], network.measure.word)
                else:
                    PEERS[name](float32, samples, to, network.products_only)
        except Exception as error:
            print(f"{network.name}: {name}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
            continue
        if to.read_bytes() not in known:  # of a network without such functions, results that stay float change nothing
            yield name, to
        known.append(to.read_bytes())


def _variants(files: Mapping[str, Path], opened: Source) -> Iterator[GraphVariant]:
    for name, path in files.items():
        variant = GraphVariant(name, prepare(ir.load(path), {}))
        write_variant_files(variant, opened.store)
        yield variant


def _entries(name: str, file: Path, tools: Sequence[str]) -> Iterator[Entry]:
    """Of one file, on tools; the float32 file only where the native engine makes bytes of it."""
    if name == ORIGINAL:
        for config in _OURS if "native" in tools else ():
            yield Entry(f"native {config}", "int8", Implementation("native", config), ORIGINAL, file)
        return
    for tool in tools:
        config = registry.get(tool).configs("highest", host())[0]
        yield Entry(f"{name} on {tool}", "int8", Implementation(tool, config), name, file)


def held_back(
    network: Quantisable, float32: Path, entries: Sequence[Entry], threads: int, folder: Path
) -> dict[str, Judged]:
    """Error and agreement of each entry on what calibration has not seen, by name. `folder` is for files of its own."""
    held = [network.inputs(seed) for seed in network.held_back]
    evaluate = Evaluator(prepare(ir.load(float32), {}).model)
    right = [evaluate(one) for one in held]
    demand = AccuracyDemand(network.measure.word, _ANY_ERROR)
    found: dict[str, Judged] = {}
    for entry in entries:
        try:
            answers = list(_answers(entry, held, threads, folder))
        except BricolageError as error:
            print(f"{network.name}: {entry.name}: {error.sentence}", file=sys.stderr)
            continue
        errors = [relative_error(answer, list(one.values())) for answer, one in zip(answers, right, strict=True)]
        named = [dict(zip(one, answer, strict=True)) for one, answer in zip(right, answers, strict=True)]
        reached = demand.judged(named, right, held)
        found[entry.name] = Judged(median(errors), reached.value, reached.met)
    return found


def _answers(
    entry: Entry, inputs: Sequence[Mapping[str, np.ndarray]], threads: int, folder: Path
) -> Iterator[list[np.ndarray]]:
    """Outputs of an entry for each set of inputs."""
    store = Store(Path(tempfile.mkdtemp(prefix="judged-", dir=folder)))
    graph = prepare(ir.load(entry.file), {})
    store.share([graph.model])
    region = RegionModel(store.region(graph.everything, "all"))
    kernel = registry.get(entry.implementation.backend).compile(
        region, entry.implementation.config, Resources(threads=threads)
    )
    given, outputs = ([allocate_aligned(i.sizes, i.numpy) for i in infos] for infos in (region.inputs, region.outputs))
    call = kernel.bind(given, outputs)
    for one in inputs:
        for array, info in zip(given, region.inputs, strict=True):
            array[...] = one[info.name]
        call()
        yield [array.copy() for array in outputs]


def _rows(
    network: Quantisable,
    entries: Sequence[Entry],
    contestants: Sequence[Contestant],
    judged: Mapping[str, Judged],
    products: int,
) -> Iterator[Row]:
    known = {entry.name: entry for entry in entries}
    floats = [one.median_ms for one in contestants if one.name not in known and _plain(str(one.name))]
    best = min((one for one in floats if one is not None), default=None)
    for one in contestants:
        entry = known.get(one.name)
        if entry is None and not _plain(str(one.name)):
            continue
        seen = judged.get(one.name)
        yield Row(
            network=network.name,
            contestant=str(one.name),
            precision=entry.precision if entry is not None else "float32",
            ms=one.median_ms,
            ci_ms=one.ci_ms,
            bytes=entry.file.stat().st_size if entry is not None else 0,
            error=seen.error if seen is not None else one.error,
            agreement=seen.agreement if seen is not None and network.trained else None,
            counted=network.measure.counts,
            met=seen.met if seen is not None and network.trained else None,
            in_integers=None if entry is None or entry.variant == ORIGINAL else min(_in_integers(entry.file), products),
            products=products,
            ratio_to_best_float=best / one.median_ms if best is not None and one.median_ms else None,
            trained=network.trained,
            reason=one.reason or "",
        )


def _products(file: Path) -> int:
    """Operators of a float32 file that multiply an activation with constant weights."""
    able, refused = products(prepare(ir.load(file), {}))
    return len(able) + sum(one.op_type == "ConvTranspose" for one in refused)


def _in_integers(file: Path) -> int:
    """Operators of a quantised file both of whose sides are integers; outliers that are multiplied apart, and products of two
    activations, come on top."""
    graph = ir.load(file).graph

    def whole(value: ir.Value | None) -> bool:
        made = None if value is None else value.producer()
        while made is not None and made.op_type in (
            "Reshape",
            "Transpose",
            "MaxPool",
            "Identity",
            "Squeeze",
            "Unsqueeze",
        ):
            made = made.inputs[0].producer() if made.inputs[0] is not None else None
        return made is not None and made.op_type == "DequantizeLinear"

    return sum(
        node.op_type in ("MatMulInteger", "ConvInteger", "DynamicQuantizeMatMul")
        or (node.op_type in ("Conv", "ConvTranspose", "MatMul", "Gemm") and all(map(whole, node.inputs[:2])))
        for node in graph.all_nodes()
    )


def _plain(name: str) -> bool:
    """Whether a baseline of the race computes in float32."""
    return "bf16" not in name and "int8" not in name


def table(rows: Sequence[Row]) -> str:
    """Rows as text, the fastest of a network first."""
    lines = [
        "| network | contestant | ms | over the best float32 | error | agreement | in integers |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for row in sorted(rows, key=lambda one: (one.network, one.ms or float("inf"))):
        ms = f"{row.ms:.3g}" if row.ms is not None else row.reason[:60] or "–"
        ratio = f"{row.ratio_to_best_float:.2f}" if row.ratio_to_best_float is not None else "–"
        error = f"{row.error:.2g}" if row.error is not None else "–"
        agreement = "–" if row.agreement is None else f"{100 * row.agreement:.3g}% of {row.counted}"
        integers = f"{row.in_integers} of {row.products}" if row.in_integers is not None else "–"
        lines.append(f"| {row.network} | {row.contestant} | {ms} | {ratio} | {error} | {agreement} | {integers} |")
    return "\n".join(lines)


def summary(rows: Sequence[Row]) -> dict[str, float]:
    """The geometric mean of our best in bytes over the best float32, and over the fastest of the other tools' that is no less
    accurate."""
    over_float, over_peers = list[float](), list[float]()
    for name in dict.fromkeys(row.network for row in rows):
        own = [row for row in rows if row.network == name and row.ms is not None]
        ours = [row for row in own if row.contestant.startswith(("native int8", "ours"))]
        if not ours:
            continue
        best = min(ours, key=lambda row: row.ms or 0.0)
        over_float.append(best.ratio_to_best_float or 1.0)
        others = [row for row in own if " on " in row.contestant and not row.contestant.startswith("ours")]
        peers = [row for row in others if not row.contestant.endswith("native")]
        rivals = [row.ms for row in peers if row.ms and (row.error or 9.0) <= (best.error or 0.0)]
        if rivals and best.ms:
            over_peers.append(min(rivals) / best.ms)
    return {
        "over_best_float": geometric_mean(over_float) if over_float else 1.0,
        "over_peers_as_accurate": geometric_mean(over_peers) if over_peers else 1.0,
        "networks_with_such_peers": float(len(over_peers)),
    }


def main() -> None:
    """Prints a table, or rows as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default=",".join(QUANTISABLES), help=f"names, or {', '.join(GROUPS)}")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tools", default=",".join(_TOOLS), help="that run the files")
    parser.add_argument("--quantisers", default=",".join(_QUANTISERS))
    parser.add_argument("--errors", action="store_true", help="errors and agreement alone, nothing is timed")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows: list[Row] = []
    for name in (one for word in given.networks.split(",") for one in GROUPS.get(word, (word,))):
        with tempfile.TemporaryDirectory() as folder:
            try:
                found = compared(
                    QUANTISABLES[name],
                    given.threads,
                    Path(folder),
                    timed=not given.errors,
                    tools=given.tools.split(","),
                    quantisers=given.quantisers.split(","),
                )
            except (BricolageError, Unavailable) as error:
                print(f"{name}: {error}", file=sys.stderr)
                continue
        print(table(found), file=sys.stderr, flush=True)
        rows += found
    if given.json:
        facts = {"device": host().model, "threads": given.threads, "summary": summary(rows)}
        print(json.dumps({**facts, "rows": [asdict(row) for row in rows]}, indent=2))
    else:
        print(f"{host().model}, {given.threads} threads\n\n{table(rows)}\n\n{summary(rows)}")


if __name__ == "__main__":
    main()
