"""A sparse network whose rows are divided between processors, so that little has to be sent: as hypergraphs, layer by layer.

Demirci and Ferhatosmanoglu, "Partitioning sparse deep neural networks for scalable training and inference", ICS 2021. The owner
of row i of a layer computes x(i); what a column of the next layer reads goes from the owner of its input to each part that has a
non-zero in it. So the words sent forward are the sum over columns of (λ - 1), where λ counts the parts of the column's rows and
of its owner; as many partial sums come back. A layer is a hypergraph: a vertex for each row, weighted by its non-zeros, a net for
each column, and a fixed vertex for each owner. `mtkahypar` partitions it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from bricolage.errors import MissingLibrary

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Parts = npt.NDArray[np.int64]
"""For each row or input the part that owns it."""
_MACHINE = SimpleNamespace()
"""Mt-KaHyPar's threads, which are made once for a process."""
_UNIT = 100
"""Weight of a non-zero."""


@dataclass(frozen=True)
class SparseLayer:
    """Where a layer's weights are not zero. Raises ValueError where a column is none of its inputs."""

    inputs: int
    columns: tuple[tuple[int, ...], ...]
    """By row, ascending."""

    def __post_init__(self) -> None:
        if any(not 0 <= column < self.inputs for row in self.columns for column in row):
            raise ValueError(f"a row reads an input beyond the {self.inputs} that there are")

    @property
    def rows(self) -> int:
        """Outputs."""
        return len(self.columns)

    @cached_property
    def pattern(self) -> csr_array:
        """[rows, inputs], a number for each non-zero: how many stand before it, row by row."""
        from scipy.sparse import csr_array

        ends = np.cumsum([0, *map(len, self.columns)])
        indices = np.fromiter(itertools.chain.from_iterable(self.columns), np.int64, int(ends[-1]))
        return csr_array((np.arange(len(indices)), indices, ends), shape=(self.rows, self.inputs))

    def readers(self) -> list[list[int]]:
        """By column its rows."""
        column_rows: list[list[int]] = [[] for _ in range(self.inputs)]
        for row, row_columns in enumerate(self.columns):
            for column in row_columns:
                column_rows[column].append(row)
        return column_rows


def volume(layer: SparseLayer, rows: Parts, owners: Parts) -> int:
    """Words that are sent in a forward pass of one sample; as many in a backward pass.

    Args:
        layer: the layer.
        rows: parts of its rows.
        owners: parts of its inputs.
    """
    wanted = {(column, int(rows[row])) for row, row_columns in enumerate(layer.columns) for column in row_columns}
    return sum(part != int(owners[column]) for column, part in wanted)


def partition_evenly(rows: int, parts: int) -> Parts:
    """Rows one after another to the same part."""
    return np.arange(rows) * parts // rows


def residues(rows: int, parts: int) -> Parts:
    """Rows to parts in turn."""
    return np.arange(rows) % parts


def partition_randomly(rows: int, parts: int, seed: int) -> Parts:
    """Rows to parts by chance, each with an even number."""
    return np.random.default_rng(seed).permutation(partition_evenly(rows, parts))


def alternate_partitions(layers: Sequence[SparseLayer], parts: int, owners: Parts) -> list[Parts]:
    """By layer `partition_evenly` or `residues`, so that all layers together send fewest words.

    Args:
        layers: the network.
        parts: processors.
        owners: of the first layer's inputs.
    """
    ways = [(0, [owners])]
    for layer in layers:
        choices = (partition_evenly(layer.rows, parts), residues(layer.rows, parts))
        ways = [
            min(((words + volume(layer, rows, way[-1]), [*way, rows]) for words, way in ways), key=lambda way: way[0])
            for rows in choices
        ]
    return min(ways, key=lambda way: way[0])[1][1:]


def imbalance(layer: SparseLayer, rows: Parts, parts: int) -> float:
    """Non-zeros of the heaviest part over those of an even share, less one."""
    weights = np.bincount(rows, [len(column) for column in layer.columns], minlength=parts)
    return float(weights.max() * parts / max(1.0, weights.sum()) - 1.0)


def partition_layers(
    layers: Sequence[SparseLayer],
    parts: int,
    owners: Parts | None = None,
    *,
    ahead: int = 0,
    epsilon: float = 0.03,
    seed: int = 0,
    threads: int = 1,
) -> list[Parts]:
    """For each layer the parts of its rows, one layer after another, each given what owns its inputs.

    Args:
        layers: the network.
        parts: processors.
        owners: of the first layer's inputs; None: nothing has to be sent for them.
        ahead: further layers that are looked at while one is decided.
        epsilon: part by which the heaviest may have more than an even share of the non-zeros.
        seed: of chance.
        threads: of mtkahypar.

    Raises:
        MissingLibrary: mtkahypar is not installed.
    """
    partitions: list[Parts] = []
    for number in range(len(layers)):
        joint = _partition_hypergraph(layers[number : number + 1 + ahead], parts, owners, epsilon, seed, threads)
        owners = _rebalance_rows(layers[number], joint, parts, epsilon)
        partitions.append(owners)
    return partitions


def _partition_hypergraph(
    layers: Sequence[SparseLayer], parts: int, owners: Parts | None, epsilon: float, seed: int, threads: int
) -> Parts:
    """The parts of the first layer's rows, of several layers in one hypergraph: a row is the next layer's input."""
    try:
        import mtkahypar
    except ImportError as error:
        raise MissingLibrary(
            name="mtkahypar", purpose="to divide sparse networks", reason=error, extra="partition"
        ) from error
    nets, weights = _hypergraph(layers, owners)
    fixed = [-1] * len(weights) + (list(range(parts)) if owners is not None else [])
    # Mt-KaHyPar 1.7 dies of vertices without weight: fixed ones weigh a hundredth of a non-zero.
    weights = [_UNIT * weight for weight in weights] + [1] * (len(fixed) - len(weights))
    if not hasattr(_MACHINE, "made"):
        _MACHINE.made = mtkahypar.initialize(threads)
    machine = _MACHINE.made
    context = machine.context_from_preset(mtkahypar.PresetType.HIGHEST_QUALITY)
    context.set_partitioning_parameters(parts, epsilon, mtkahypar.Objective.KM1)
    context.logging = False
    mtkahypar.set_seed(seed)
    graph = machine.create_hypergraph(context, len(fixed), len(nets), nets, weights, [1] * len(nets))
    if owners is not None:
        graph.add_fixed_vertices(fixed, parts)
    divided = graph.partition(context)
    return np.array([divided.block_id(row) for row in range(layers[0].rows)])


def _hypergraph(layers: Sequence[SparseLayer], owners: Parts | None) -> tuple[list[list[int]], list[int]]:
    """Nets, and weights of rows; fixed vertices have the numbers behind them."""
    begins = np.cumsum([0, *(layer.rows for layer in layers)]).tolist()
    weights = [len(row_columns) for layer in layers for row_columns in layer.columns]
    nets: list[list[int]] = []
    for place, layer in enumerate(layers):
        for column, rows in enumerate(layer.readers()):
            net = [begins[place] + row for row in rows]
            if place:
                net.append(begins[place - 1] + column)
            elif owners is not None:
                net.append(begins[-1] + int(owners[column]))
            if len(net) > 1:
                nets.append(sorted(set(net)))
    return nets, weights


def _rebalance_rows(layer: SparseLayer, rows: Parts, parts: int, epsilon: float) -> Parts:
    """Rows of parts that are too heavy move to those that are light and read most of the same: where several layers were divided at
    once, only their sum is balanced."""
    sizes = np.array([len(column) for column in layer.columns])
    limit = (1.0 + epsilon) * sizes.sum() / parts
    limit = max(limit, float(np.ceil(sizes.sum() / parts / max(sizes.max(initial=1), 1)) * sizes.max(initial=1)))
    row_parts, weights = rows.copy(), np.bincount(rows, sizes, minlength=parts).astype(float)
    reads = np.zeros((parts, layer.inputs), np.int64)
    for row, row_columns in enumerate(layer.columns):
        reads[row_parts[row], list(row_columns)] += 1
    while weights.max() > limit:
        heavy = int(weights.argmax())
        free = weights + sizes.min() <= limit
        best: tuple[float, int, int] | None = None
        for row in np.flatnonzero(row_parts == heavy).tolist():
            columns = list(layer.columns[row])
            loss = (reads[heavy, columns] == 1).sum()
            gains = (reads[:, columns] == 0).sum(axis=1).astype(float)
            gains[~free | (weights + sizes[row] > limit)] = np.inf
            to = int(gains.argmin())
            if np.isfinite(gains[to]) and (best is None or gains[to] - loss < best[0]):
                best = float(gains[to] - loss), int(row), to
        if best is None:
            break
        _, moved, to = best
        columns = list(layer.columns[moved])
        reads[heavy, columns] -= 1
        reads[to, columns] += 1
        weights[heavy] -= sizes[moved]
        weights[to] += sizes[moved]
        row_parts[moved] = to
    return row_parts
