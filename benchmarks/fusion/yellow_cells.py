"""The ten yellow cells of DNNFusion's table, measured: `python -m benchmarks.fusion.yellow_cells`.

    python -m benchmarks.fusion.yellow_cells --rounds 200
    python -m benchmarks.fusion.yellow_cells --sizes 64,512 --rounds 20 --json

The paper decides these pairs of mapping types by a database of measured times (Niu et al., PLDI 2021, table 3). The engine's
planner decides them by its model of memory. For each cell, pairs of operators on square matrices of several sizes: the kernels
that the planner chooses, what the model says of its plan and of two separate kernels, and the medians of both libraries, which
take turns. `right` says whether the planner's choice is not slower than the other one by more than a twentieth. Where both plans
are the same, there are no times.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

import numpy as np
import onnx

from benchmarks.fusion.dnnfusion import Mapping, verdict
from benchmarks.fusion.fusion_plans import time_plans
from benchmarks.fusion.native_kernels import write_region
from bricolage.base.options import available_cores
from bricolage.device.caches import host_caches
from bricolage.frontends import to_model
from bricolage.graph.prepare import prepare
from bricolage.native.cpu.target import fusion_target
from bricolage.native.fuse.fusion import Blocks, plan
from bricolage.native.fuse.memory_cost import KernelCosts
from bricolage.native.ir.from_onnx import lower_region
from bricolage.native.ir.tensors import Node

SIZES = (64, 256, 512, 1024)
OPERATORS: dict[Mapping, dict[str, str]] = {
    "one-to-one": {"exp": "{out} = Exp ({x})"},
    "one-to-many": {
        "add a column": "{out} = Add ({x}, column)",
        "gather rows": "{out} = Gather <axis = 0> ({x}, rows)",
    },
    "many-to-many": {"product": "{out} = MatMul ({x}, weights)", "softmax": "{out} = Softmax <axis = -1> ({x})"},
    "reorganize": {"reshape": "{out}_wide = Reshape ({x}, wide) \n {out} = Reshape ({out}_wide, square)"},
    "shuffle": {"transpose": "{out} = Transpose <perm = [1, 0]> ({x})"},
}
"""Operators of each type, from and to a square matrix."""
_SLACK = 1.05


@dataclass(frozen=True)
class Cell:
    """A pair of operators of one size."""

    first: str
    second: str
    operators: str
    size: int
    kernels: int
    """Of the planner's choice."""
    model_ms: float
    model_apart_ms: float
    ms: float | None = None
    apart_ms: float | None = None

    @property
    def right(self) -> bool | None:
        """Whether the planner's choice is not slower than separate kernels; None without times."""
        return None if self.ms is None or self.apart_ms is None else self.ms <= _SLACK * self.apart_ms


def yellow_pairs() -> list[tuple[Mapping, Mapping]]:
    """The cells that the paper measures."""
    kinds: tuple[Mapping, ...] = get_args(Mapping)
    return [(first, second) for first in kinds for second in kinds if verdict(first, second) == "measure"]


def measure_cells(sizes: Sequence[int], rounds: int, threads: int) -> Iterator[Cell]:
    """Every pair of operators of every yellow cell, by size."""
    for first, second in yellow_pairs():
        for size in sizes:
            for before, first_text in OPERATORS[first].items():
                for after, second_text in OPERATORS[second].items():
                    body = f"{first_text.format(x='x', out='t')} \n {second_text.format(x='t', out='y')}"
                    yield _measure(f"{before}, {after}", (first, second), body, size, rounds, threads)


def _measure(names: str, cell: tuple[Mapping, Mapping], body: str, size: int, rounds: int, threads: int) -> Cell:
    graph = prepare(to_model(_model(body, size)), {})
    with tempfile.TemporaryDirectory() as folder:
        region = write_region(graph, Path(folder))
        for number, node in enumerate(region.model.graph):
            node.name = str(number)
        origins: dict[Node, str] = {}
        ends = lower_region(region.model, origins)
        apart = Blocks({node: int(name) for node, name in origins.items()})
        target, costs = fusion_target(host_caches()), KernelCosts(host_caches().l2_bytes)
        plans = {"chosen": plan(*ends, target), "apart": plan(*ends, target, strategy=apart)}
        spent = {kind: costs.plan(made) for kind, made in plans.items()}
        times = time_plans(region, plans, Path(folder), rounds, threads) if spent["apart"] != spent["chosen"] else None
    medians = {kind: None if times is None else float(np.median(times[kind])) for kind in plans}
    return Cell(
        *cell,
        names,
        size,
        len(plans["chosen"].kernels),
        spent["chosen"].nanoseconds / 1e6,
        spent["apart"].nanoseconds / 1e6,
        medians["chosen"],
        medians["apart"],
    )


def _model(body: str, size: int) -> onnx.ModelProto:
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 18]> cell (float[{size}, {size}] x) => (float[{size}, {size}] y) {{ {body} }}'
    )
    draw = np.random.default_rng(0)
    constants = {
        "column": draw.standard_normal((size, 1)).astype(np.float32),
        "weights": draw.standard_normal((size, size)).astype(np.float32),
        "rows": draw.permutation(size),
        "wide": np.array([size // 2, 2 * size]),
        "square": np.array([size, size]),
    }
    for name, array in constants.items():
        if name in body:
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def cell_table(cells: Sequence[Cell]) -> str:
    """Markdown."""
    heads = ["first, second", "operators", "size", "kernels", "model ms", "apart", "measured ms", "apart", "right"]
    lines = [f"| {' | '.join(heads)} |", "|---|---|---:|---:|---:|---:|---:|---:|---|"]
    for cell in cells:
        measured = ["" if ms is None else f"{ms:.4f}" for ms in (cell.ms, cell.apart_ms)]
        right = {None: "", True: "yes", False: "no"}[cell.right]
        model = f"{cell.model_ms:.4f} | {cell.model_apart_ms:.4f}"
        lines.append(
            f"| {cell.first}, {cell.second} | {cell.operators} | {cell.size} | {cell.kernels} | {model} "
            f"| {measured[0]} | {measured[1]} | {right} |"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="rows and columns, with commas between")
    parser.add_argument("--rounds", type=int, default=100, help="calls of each plan")
    parser.add_argument("--threads", type=int, default=available_cores())
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    sizes = [int(size) for size in given.sizes.split(",") if size.isdigit() and int(size) >= 2]
    if not sizes or len(sizes) < len(given.sizes.split(",")) or given.rounds < 1 or given.threads < 1:
        parser.error("give sizes of 2 at least with commas between, and 1 round and thread at least")
    cells: list[Cell] = []
    for cell in measure_cells(sizes, given.rounds, given.threads):
        cells.append(cell)
        print(cell_table(cells[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    if given.json:
        print(json.dumps([{**asdict(cell), "right": cell.right} for cell in cells], indent=1))
    else:
        judged = [cell.right for cell in cells if cell.right is not None]
        print(cell_table(cells))
        print(f"{sum(judged)} of {len(judged)} measured choices are not slower than separate kernels")
    return 0


if __name__ == "__main__":
    sys.exit(main())
