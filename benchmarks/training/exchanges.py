"""What divided sparse networks and stencils send, and how long they take: `python -m benchmarks.training.exchanges`.

    python -m benchmarks.training.exchanges radix --neurons 1024 --degree 32 --strides 1,32 --processes 16
    python -m benchmarks.training.exchanges stencil --grid 3x3 --side 32 --depths 1,2,4 --steps 8 --json

`radix` generates layers of RadiX-Net (Kepner and Robinett, 2019) as matrices, and divides their rows as `bricolage train sparse`
does: words forward for one sample (`words`), by layer, of each partition, with the expectation of rows and
inputs by chance (`expected`). With `--ahead N` the hypergraph looks at N further layers. With `--write DIR` the matrices lie there
for the command.

`stencil` runs a box of 3^2 points on a grid that is closed at its edges, a block of `--side` squared cells for each process.
A step is a layer, and a ghost zone of depth d an exchange before d steps. For each depth it runs three ways:

    packed       cells lie row by row of the grid; what goes to a process is copied into one message
    unpacked     the same; each run of consecutive cells is a message
    ordered      surface regions lie in the order of Zhao et al.; each run is a message, nothing is copied

`messages` and `bytes` are counted where they leave and equal those predicted, which are counted here from coordinates.
`exchange_ms` is the time in exchanges of a pass, the slowest process's, the median of `--repeats`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.io import mmwrite
from scipy.sparse import csr_array

from benchmarks.training.example_layers import messages, order_surface, radix_layer
from bricolage.train.sparse.sparse_plan import (
    METHODS,
    RowMethod,
    SparseOptions,
    SparsePlan,
    plan_sparse_network,
)
from bricolage.train.sparse.sparse_runs import ExchangeMode, ExchangeOutcome, run_sparse_plan
from bricolage.train.sparse.weighted_layers import WeightedLayer, read_sparse_network

Cells = npt.NDArray[np.int64]
_FLOAT = 4
"""Bytes."""


@dataclass(frozen=True)
class Stencil:
    """Blocks of a grid that is closed at its edges."""

    blocks: tuple[int, int]
    side: int
    """Of a block, in cells."""

    @property
    def shape(self) -> tuple[int, int]:
        """Of the grid, in cells."""
        return self.blocks[0] * self.side, self.blocks[1] * self.side

    @property
    def owners(self) -> Cells:
        """By cell, row by row, its process."""
        rows, columns = np.indices(self.shape) // self.side
        return np.asarray(rows * self.blocks[1] + columns).reshape(-1)

    def layer(self) -> WeightedLayer:
        """One step: the mean of a cell and its eight neighbours."""
        cells = np.arange(np.prod(self.shape)).reshape(self.shape)
        moves = list(itertools.product((-1, 0, 1), repeat=2))
        columns = np.concatenate([np.roll(cells, move, (0, 1)).reshape(-1) for move in moves])
        rows = np.tile(cells.reshape(-1), len(moves))
        weights = csr_array((np.full(len(rows), 1 / 9), (rows, columns)), shape=(cells.size, cells.size))
        weights.sort_indices()
        return WeightedLayer("step", weights, None, "none")

    def zones(self, depth: int) -> dict[tuple[int, int], set[int]]:
        """By the process that sends and the one that receives, the cells of a ghost zone: from coordinates."""
        owners, zones = self.owners, dict[tuple[int, int], set[int]]()
        height, width = self.shape
        for target in range(self.blocks[0] * self.blocks[1]):
            top, left = (self.side * place for place in divmod(target, self.blocks[1]))
            for row in range(top - depth, top + self.side + depth):
                for column in range(left - depth, left + self.side + depth):
                    cell = row % height * width + column % width
                    if (source := int(owners[cell])) != target:
                        zones.setdefault((source, target), set()).add(cell)
        return zones


def plan_stencil(stencil: Stencil, steps: int) -> SparsePlan:
    """Steps as layers, cells by blocks of the grid."""
    options = SparseOptions(stencil.blocks[0] * stencil.blocks[1], "blocks", depth=1)
    plan = plan_sparse_network([stencil.layer()] * steps, options)
    return SparsePlan(plan.header, plan.layers, (stencil.owners,) * (steps + 1))


def list_ways(depth: int, steps: int) -> tuple[ExchangeMode, ...]:
    """The three ways of a depth."""
    ends = (*range(depth, steps, depth), steps)
    return (
        ExchangeMode(f"depth {depth}, packed", ends, ordered=False),
        ExchangeMode(f"depth {depth}, unpacked", ends, ordered=False, packs=False),
        ExchangeMode(f"depth {depth}, ordered", ends, packs=False),
    )


def measure_stencil(
    stencil: Stencil, depths: Sequence[int], steps: int, samples: int, repeats: int
) -> list[dict[str, object]]:
    """A row for each way of each depth. Raises AssertionError where something else is sent than coordinates say."""
    plan = plan_stencil(stencil, steps)
    ways = [(depth, way) for depth in depths for way in list_ways(depth, steps)]
    outcome = run_sparse_plan(plan, None, [way for _, way in ways], samples=samples, threads=1, repeats=repeats)
    rows: list[dict[str, object]] = []
    for (depth, way), mode in zip(ways, outcome.modes, strict=True):
        zones, last = stencil.zones(depth), stencil.zones(steps % depth or depth)
        whole = mode.exchanges - 1
        size = _FLOAT * samples * (whole * _count_cells(zones) + _count_cells(last))
        assert mode.sent_bytes == size, (way.name, mode.sent_bytes, size)
        if way.packs:
            assert mode.messages == whole * len(zones) + len(last), (way.name, mode.messages)
        elif way.ordered and min(stencil.blocks) > 2 and stencil.side > 2 * depth:  # eight neighbours, all different
            runs = sum(map(len, messages(order_surface(2)).values()))
            assert mode.messages == mode.exchanges * runs * plan.processes, (way.name, mode.messages)
        rows.append(_describe(depth, way, mode))
    return rows


def _count_cells(zones: dict[tuple[int, int], set[int]]) -> int:
    return sum(map(len, zones.values()))


def _describe(depth: int, way: ExchangeMode, mode: ExchangeOutcome) -> dict[str, object]:
    return {
        "depth": depth,
        "way": way.name.partition(", ")[2],
        "exchanges": mode.exchanges,
        "messages": mode.messages,
        "bytes": mode.sent_bytes,
        "packed_bytes": mode.packed_bytes,
        "operations": mode.operations,
        "exchange_ms": mode.exchange_ms,
        "forward_ms": mode.forward_ms,
        "error": mode.error,
    }


def write_radix(folder: Path, neurons: int, degree: int, strides: Sequence[int]) -> list[Path]:
    """The matrices of a network, weights by chance."""
    draw, paths = np.random.default_rng(0), []
    for number, stride in enumerate(strides, 1):
        pattern = radix_layer(neurons, degree, stride).pattern
        weights = csr_array((draw.standard_normal(pattern.nnz), pattern.indices, pattern.indptr), shape=pattern.shape)
        paths.append(folder / f"radix{number}-{stride}.mtx")
        mmwrite(paths[-1], weights)
    return paths


def count_radix(
    layers: Sequence[WeightedLayer], options: SparseOptions, methods: Sequence[RowMethod]
) -> list[dict[str, object]]:
    """A row for each partition, and one for what chance is expected to send."""
    rows: list[dict[str, object]] = []
    expected = [expect_random(layer, options.processes) for layer in layers]
    rows.append({"rows_by": "random (expected)", "words": [round(words) for words in expected]})
    plan = plan_sparse_network(layers, options)
    for part in plan.header.partitions:
        if part.method in methods:
            row: dict[str, object] = {"rows_by": part.method, "words": [layer.words for layer in part.layers]}
            rows.append(row | {"messages": part.messages, "imbalance": part.imbalance})
    return rows


def expect_random(layer: WeightedLayer, processes: int) -> float:
    """Words where each row and each input is at a process by chance: a column of k rows misses one with (1 - 1 / P)^k."""
    readers = np.bincount(layer.weights.indices, minlength=layer.weights.shape[1])
    reached = processes * (1.0 - (1.0 - 1.0 / processes) ** readers)
    return float((reached * (1.0 - 1.0 / processes)).sum())


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    radix, stencil = kinds.add_parser("radix"), kinds.add_parser("stencil")
    radix.add_argument("--neurons", type=int, default=1024)
    radix.add_argument("--degree", type=int, default=32)
    radix.add_argument("--strides", default="1,32")
    radix.add_argument("--processes", type=int, default=16)
    radix.add_argument("--inputs", choices=("blocks", "residues"), default="residues")
    radix.add_argument("--ahead", type=int, default=0)
    radix.add_argument("--methods", default=",".join(METHODS))
    radix.add_argument("--write", type=Path, metavar="DIR")
    stencil.add_argument("--grid", default="3x3", help="Blocks, one for each process.")
    stencil.add_argument("--side", type=int, default=32)
    stencil.add_argument("--depths", default="1,2,4")
    stencil.add_argument("--steps", type=int, default=8)
    stencil.add_argument("--samples", type=int, default=16, help="Numbers in a cell.")
    stencil.add_argument("--repeats", type=int, default=5)
    for kind in (radix, stencil):
        kind.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the rows."""
    options = _parse(arguments)
    if options.kind == "stencil":
        blocks = tuple(map(int, options.grid.split("x")))
        depths = [int(word) for word in options.depths.split(",")]
        stencil = Stencil((blocks[0], blocks[1]), options.side)
        rows = measure_stencil(stencil, depths, options.steps, options.samples, options.repeats)
    else:
        strides = [int(word) for word in options.strides.split(",")]
        with tempfile.TemporaryDirectory() as temporary:
            paths = write_radix(options.write or Path(temporary), options.neurons, options.degree, strides)
            layers = read_sparse_network(paths)
        methods = [method for method in METHODS if method in options.methods.split(",")]
        chosen = SparseOptions(options.processes, methods[0], options.inputs, ahead=options.ahead)
        rows = count_radix(layers, chosen, methods)
    if options.json:
        print(json.dumps(rows, indent=1))
        return 0
    heads = list(rows[-1])
    print("\t".join(heads))
    for row in rows:
        print(
            "\t".join(f"{value:.4g}" if isinstance(value := row.get(head, ""), float) else str(value) for head in heads)
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
