"""How near products of bytes come to what the processor's instruction for them could do.

    python -m benchmarks.engine.integer_roof [--threads 2] [--json]

Rows are kernels: products of square matrices, each a region of its own, then what the native engine makes of ResNet-50, in the
configuration `int8` beside `f32`, and of the file that ONNX Runtime's static quantiser makes of it (QDQ); `f32 direct` is the same
with no convolution of bytes by Winograd's transformation, which goes beyond the roof, and no function of a byte looked up.
A kernel's time has packing its rows and its epilogue in it, taken inside the network with the caches as they are there. The roof
is the engine's own micro-kernel on operands that stay in the first-level cache: `of_roof` is the share of it, `of_roofline` the
least time that operations and bytes could take over the time taken. `error` is the relative error of the region's output to
float64, from the same library. `python -m benchmarks.engine.integer_layers` has the layers of the network one by one, with a floor
for each.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import geometric_mean

import numpy as np
import onnx
import onnx_ir as ir

from benchmarks.integers.networks import CALIBRATION, QUANTISABLES, Quantisable
from benchmarks.integers.peers import ort_static
from benchmarks.workloads import export, workloads
from bricolage.backends.interface import Anatomy, RegionModel, Resources
from bricolage.backends.kernel_trials import on_random_inputs
from bricolage.backends.native.engine import Native, instruction_set
from bricolage.device.host import host
from bricolage.errors import Refused
from bricolage.frontends import to_model
from bricolage.graph.prepare import prepare
from bricolage.graph.store import Store
from bricolage.verify.compare import relative_error
from bricolage.verify.reference import evaluate
from bricolage.work.implementation import KernelConfig, Scalar

_PRODUCTS = (128, 256, 512, 1024)
_CONFIGS = ("f32", "int8")
_DIRECT = "f32 direct"
_LEAST_FLOPS = 1e7
"""Of a kernel that is listed: smaller ones are not bound by products."""


@dataclass(frozen=True)
class Row:
    """A kernel in one configuration."""

    region: str
    kernel: str
    shape: tuple[int, ...]
    config: str
    ms: float
    gops: float
    """Multiplications and additions, 10⁹ a second."""
    of_roof: float
    of_roofline: float
    error: float


def square(size: int) -> ir.Model:
    """One product of two matrices, the second a constant."""
    draw = np.random.default_rng(size)
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 17]> test (float[{size}, {size}] x) => (float[{size}, {size}] y)'
        " { y = MatMul (x, w) }"
    )
    weights = draw.standard_normal((size, size)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    found: ir.Model = ir.from_proto(model)
    return found


def regions(names: Sequence[str]) -> Iterator[tuple[str, ir.Model]]:
    """Products of square matrices, then networks."""
    for size in _PRODUCTS:
        yield f"{size}x{size}x{size}", square(size)
    for name in names:
        yield name, to_model(export(workloads()[name]))
        if name in QUANTISABLES:
            yield f"{name} QDQ", quantised(QUANTISABLES[name])


def quantised(network: Quantisable) -> ir.Model:
    """What ONNX Runtime's static quantiser makes of a network."""
    with tempfile.TemporaryDirectory() as folder:
        float32, to = network.fixed(Path(folder) / "float32.onnx"), Path(folder) / "quantised.onnx"
        ort_static(float32, [network.inputs(seed) for seed in CALIBRATION], to, network.products_only)
        found: ir.Model = ir.from_proto(onnx.load(to))
    return found


def measured(name: str, model: ir.Model, threads: int, folder: Path) -> list[Row]:
    """The rows of one region, in all configurations."""
    store = Store(folder)
    graph = prepare(model, {})
    store.share([graph.model])
    region = RegionModel(store.region(graph.everything, "all"))
    resources = Resources(threads=threads, alone=True)
    found: list[Row] = []
    for config in map(KernelConfig, _CONFIGS):
        try:
            report = Native().kernel_report(region, config, resources)
        except Refused as refusal:
            print(f"{name} {config}: {refusal.sentence}")
            continue
        found += _rows(name, str(config), report, _error(region, config, resources))
        direct = _direct(config, report)
        if direct is not None and str(config) == "f32":
            report = Native().kernel_report(region, direct, resources)
            found += _rows(name, _DIRECT, report, _error(region, direct, resources))
    return found


def _direct(config: KernelConfig, report: Anatomy) -> KernelConfig | None:
    """The same with neither Winograd's transformation of bytes nor tables of their functions; None where there are no products of
    bytes."""
    kinds = {number: kernel.kind for number, kernel in enumerate(report.kernels) if kernel.kind.endswith("of bytes")}
    choices: dict[str, Scalar] = {f"{number}.look_up": False for number in kinds}
    choices |= {f"{number}.tile": 0 for number, kind in kinds.items() if kind.startswith("conv")}
    return config.tuned(choices) if choices else None


def _rows(name: str, config: str, report: Anatomy, error: float) -> Iterator[Row]:
    assert report.peaks is not None
    for kernel in report.kernels:
        if kernel.flops < _LEAST_FLOPS or not kernel.ms or kernel.kind.split()[0] not in ("matmul", "conv"):
            continue
        gops = kernel.flops / kernel.ms / 1e6
        yield Row(
            name,
            kernel.name,
            kernel.shape,
            config,
            kernel.ms,
            gops,
            gops / report.peaks.gflops,
            report.of_roofline(kernel) or 0.0,
            error,
        )


def _error(region: RegionModel, config: KernelConfig, resources: Resources) -> float:
    kernel = Native().compile(region, config, resources)
    _, outputs = on_random_inputs(kernel, region)
    draw = np.random.default_rng(0)  # as `on_random_inputs` draws
    inputs = {one.name: draw.standard_normal(one.sizes).astype(one.numpy) for one in region.inputs}
    right = evaluate(region.model, inputs)
    return relative_error(outputs, [right[one.name] for one in region.outputs])


def table(rows: Sequence[Row]) -> str:
    """Rows as text: each product, and of a network the sums over its kernels."""
    lines = [
        "| region | config | kernels | ms | GOP/s | of the roof | of the roofline | error |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, config in dict.fromkeys((row.region, row.config) for row in rows):
        own = [row for row in rows if (row.region, row.config) == (name, config)]
        ms = sum(row.ms for row in own)
        gops = sum(row.gops * row.ms for row in own) / ms
        roof = sum(row.of_roof * row.ms for row in own) / ms
        line = geometric_mean([row.of_roofline for row in own])
        lines.append(
            f"| {name} | {config} | {len(own)} | {ms:.3g} | {gops:.0f} | {roof:.0%} | {line:.0%} | {own[0].error:.2g} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Prints a table, or rows as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--networks", default="resnet-50", type=lambda text: text.split(",") if text else [])
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows: list[Row] = []
    for name, model in regions(given.networks):
        with tempfile.TemporaryDirectory() as folder:
            rows += measured(name, model, given.threads, Path(folder))
    if given.json:
        facts = {"device": host().model, "instruction": instruction_set(host()).byte_dot, "threads": given.threads}
        print(json.dumps({**facts, "rows": [asdict(row) for row in rows]}, indent=2))
    else:
        print(f"{host().model}, {given.threads} threads, {instruction_set(host()).byte_dot}\n\n{table(rows)}")


if __name__ == "__main__":
    main()
