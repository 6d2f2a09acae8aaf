"""Products at float32's accuracy by a matrix unit: how fast, how near to what the unit could do, and how accurate.

    python -m benchmarks.matrix_unit [--threads 2] [--seconds 2] [--networks bert-base,minilm-l6] [--json]

Each row is a product [m, k] × [k, n] with constant weights, or a network, in one arithmetic of the native engine. All arithmetics
of a row are timed in turns in one run: *warm*, call after call, so that weights stay in the caches that hold them, and *cold*,
after all caches were filled with other data, so that weights come from memory. `gflops` counts a multiplication and an addition
for each product of float32; `share_of_roof` is the share of what the same number of products takes at the unit's peak, measured
on operands that stay in the first-level cache (int8 over 9 or 6, bfloat16 over 6 or 3). `error` is ‖y − y64‖/‖y64‖ to float64 and
`error_f32` that of the engine's float32 in the same run; `bits_equal` says whether a product of slices is, bit for bit, what
int64 gives.

Where there is no such unit, products of slices and parts run on an emulated one: errors and bits are the unit's, and there are no
times.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

import numpy as np
import onnx

from benchmarks.engine.slices_in_int64 import multiply_in_int64
from benchmarks.workloads import export, workloads
from bricolage.backends.interface import RegionModel, Resources
from bricolage.backends.native.engine import FORCED_ISA_VARIABLE, Native, instruction_set
from bricolage.device.host import host
from bricolage.errors import Refused
from bricolage.frontends import to_model
from bricolage.graph.prepare import prepare
from bricolage.graph.store import Store
from bricolage.native.cpu.arithmetic import Arithmetic
from bricolage.native.cpu.isa import SPLIT_AMX
from bricolage.native.cpu.peaks import measure
from bricolage.verify.compare import relative_error
from bricolage.verify.reference import evaluate
from bricolage.work.implementation import KernelConfig

SHAPES = ((512, 768, 768), (128, 768, 3072), (128, 3072, 768))
"""m, k, n."""
PRODUCTS = {"f32": 1, "bf16x3": 3, "bf16x6": 6, "int8x6": 6, "int8x9": 9}
"""Multiplications of the unit for one of float32, by arithmetic."""
_FLUSH_BYTES = 256 << 20
"""More than the caches of a processor hold."""
_EMULATED_ROWS = 48
"""Of a product on the emulated unit, which takes ten thousand times as long."""


@dataclass(frozen=True)
class Row:
    """A product or a network in one arithmetic. Times are medians; None where they were not tried."""

    shape: str
    arithmetic: str
    ms: float | None
    cold_ms: float | None
    gflops: float | None
    share_of_roof: float | None
    error: float
    error_f32: float
    bits_equal: bool | None
    """None of what is no product of slices."""
    weight_bytes: int
    """Packed."""


@dataclass(frozen=True)
class Contestant:
    """A library that is ready to run."""

    call: Callable[[], object]
    output: np.ndarray
    weight_bytes: int


def product_region(m: int, k: int, n: int, folder: Path) -> tuple[RegionModel, np.ndarray, np.ndarray]:
    """A product of normal numbers, its left side, and its weights."""
    draw = np.random.default_rng(m + k + n)
    x, w = (draw.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n)))
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 17]> test (float[{m}, {k}] x) => (float[{m}, {n}] y) {{ y = MatMul (x, w) }}'
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    path = folder / "product.onnx"
    onnx.save(model, path)
    return _region(path, folder), x, w


def _region(path: Path, folder: Path, inputs: Mapping[str, np.ndarray] = MappingProxyType({})) -> RegionModel:
    """All of a file, with open sizes as the inputs have them."""
    (folder / "store").mkdir()
    store, model = Store(folder / "store"), to_model(path)
    sizes = {
        str(size): inputs[str(value.name)].shape[axis]
        for value in model.graph.inputs
        for axis, size in enumerate(value.shape or ())
        if not isinstance(size, int)
    }
    graph = prepare(model, sizes)
    store.share([graph.model])
    return RegionModel(store.region(graph.everything, "all"))


def contestants(
    region: RegionModel, inputs: Sequence[np.ndarray], threads: int, folder: Path
) -> Iterator[tuple[str, Contestant]]:
    """The arithmetics that the region may have here, in libraries of their own."""
    unit = has_unit()
    for name in PRODUCTS:
        emulated = not unit and name != "f32"
        if emulated:
            os.environ[FORCED_ISA_VARIABLE] = SPLIT_AMX.name
        try:
            cache = folder / name
            kernel = Native().compile(region, KernelConfig(name), Resources(threads=threads, alone=True, cache=cache))
        except Refused as refusal:
            print(f"{name}: {refusal.sentence}")
            continue
        finally:
            os.environ.pop(FORCED_ISA_VARIABLE, None)
        outputs = [np.empty(info.sizes, info.numpy) for info in region.outputs]
        call = kernel.bind(list(inputs), outputs)
        call()
        yield name, Contestant(call, outputs[0], sum(path.stat().st_size for path in cache.rglob("weights.bin")))


def has_unit() -> bool:
    """Whether this processor multiplies bytes in tiles."""
    return instruction_set(host()).byte_dot == "tdpbusd"


@cache
def roofs(threads: int) -> dict[str, float]:
    """Peaks in 10⁹ operations a second, by arithmetic, of products of float32 made of the unit's."""
    isa = instruction_set(host())
    kinds = {"f32": Arithmetic()}
    if has_unit():
        kinds |= {"bf16": Arithmetic(parts=1), "int8": Arithmetic(in_bytes=True)}
    peaks = {name: measure(isa, arithmetic, threads) for name, arithmetic in kinds.items()}
    return {
        name: peak.gflops / products
        for name, products in PRODUCTS.items()
        if (peak := peaks.get(name.split("x")[0])) is not None
    }


def times(found: dict[str, Contestant], seconds: float, *, cold: bool) -> dict[str, float]:
    """Median milliseconds of each, in turns."""
    flush = np.ones(_FLUSH_BYTES // 8) if cold else None
    taken: dict[str, list[float]] = {name: [] for name in found}
    end = time.perf_counter() + seconds * len(found)
    while time.perf_counter() < end or min(map(len, taken.values())) < 5:
        for name, contestant in found.items():
            calls = 1 if cold else 5
            for _ in range(calls):
                if flush is not None:
                    flush.sum()
                start = time.perf_counter()
                contestant.call()
                taken[name].append(1e3 * (time.perf_counter() - start))
    return {name: float(np.median(each)) for name, each in taken.items()}


def rows_of(
    shape: str,
    region: RegionModel,
    inputs: Sequence[np.ndarray],
    flops: float | None,
    bits: Callable[[int], np.ndarray] | None,
    threads: int,
    seconds: float,
) -> list[Row]:
    """The rows of one region. `bits` gives what a number of products of slices must give."""
    names = [info.name for info in region.inputs]
    right = evaluate(region.model, dict(zip(names, inputs, strict=True)), dtype=np.float64)[region.outputs[0].name]
    with tempfile.TemporaryDirectory() as folder:
        found = dict(contestants(region, inputs, threads, Path(folder)))
        timed = {name: each for name, each in found.items() if has_unit() or name == "f32"}
        warm, cold = times(timed, seconds, cold=False), times(timed, seconds, cold=True)
        errors = {name: relative_error([each.output], [right]) for name, each in found.items()}
    roof = roofs(threads)
    rows = []
    for name, each in found.items():
        ms = warm.get(name)
        gflops = flops / ms / 1e6 if ms and flops else None
        equal = None
        if bits is not None and name.startswith("int8"):
            equal = bool(np.array_equal(each.output, bits(PRODUCTS[name])))
        share = gflops / roof[name] if gflops and name in roof else None
        rows.append(
            Row(shape, name, ms, cold.get(name), gflops, share, errors[name], errors["f32"], equal, each.weight_bytes)
        )
    return rows


def measured(names: Sequence[str], threads: int, seconds: float) -> Iterator[Row]:
    """The rows of all products, then of networks."""
    for m, k, n in SHAPES:
        rows = m if has_unit() else min(m, _EMULATED_ROWS)
        with tempfile.TemporaryDirectory() as folder:
            region, x, w = product_region(rows, k, n, Path(folder))

            def bits(products: int, x: np.ndarray = x, w: np.ndarray = w) -> np.ndarray:
                return multiply_in_int64(x, w, products)

            yield from rows_of(f"{rows}x{k}x{n}", region, [x], 2.0 * rows * k * n, bits, threads, seconds)
    for name in names:
        workload = workloads()[name]
        with tempfile.TemporaryDirectory() as folder:
            inputs = workload.example_inputs(0)
            region = _region(export(workload), Path(folder), inputs)
            yield from rows_of(
                name, region, [inputs[info.name] for info in region.inputs], None, None, threads, seconds
            )


def table(rows: Sequence[Row]) -> str:
    """Rows as text."""
    lines = [
        "| shape | arithmetic | warm, ms | cold, ms | GFLOP/s | of the roof | error | float32's | bits | weights, MB |",
        "|---|---|---:|---:|---:|---:|---:|---:|---|---:|",
    ]
    for row in rows:
        ms, cold = ("–" if each is None else f"{each:.3g}" for each in (row.ms, row.cold_ms))
        gflops = "–" if row.gflops is None else f"{row.gflops:.0f}"
        share = "–" if row.share_of_roof is None else f"{row.share_of_roof:.0%}"
        bits = "–" if row.bits_equal is None else "equal" if row.bits_equal else "DIFFER"
        lines.append(
            f"| {row.shape} | {row.arithmetic} | {ms} | {cold} | {gflops} | {share} | {row.error:.2g} | {row.error_f32:.2g} "
            f"| {bits} | {row.weight_bytes / 1e6:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Prints a table, or rows as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each arithmetic of a row, warm and cold")
    parser.add_argument("--networks", default="", type=lambda text: text.split(",") if text else [])
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = list(measured(given.networks, given.threads, given.seconds))
    instruction = instruction_set(host()).byte_dot if has_unit() else f"{SPLIT_AMX.name}, times not tried"
    if given.json:
        facts = {"device": host().model, "unit": instruction, "threads": given.threads}
        print(json.dumps({**facts, "rows": [asdict(row) for row in rows]}, indent=2))
    else:
        print(f"{host().model}, {given.threads} threads, {instruction}\n\n{table(rows)}")


if __name__ == "__main__":
    main()
