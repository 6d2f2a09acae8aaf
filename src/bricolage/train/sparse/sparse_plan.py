"""A division of a sparse network between processes: what it sends, by which other divisions send what, and its file.

A folder holds `sparse.json`, which says everything but numbers, and `network.npz` with weights and owners.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from bricolage.base import scratch
from bricolage.base.codec import DecodeError, Within, decode, encode, read_file
from bricolage.errors import BadOption, BadSparseNetwork, MissingFile, NotWritable
from bricolage.search.sharding.layer_exchange import LayerExchange, exchange_layers, plan_exchanges
from bricolage.search.sharding.row_partition import (
    Parts,
    alternate_partitions,
    imbalance,
    partition_evenly,
    partition_layers,
    partition_randomly,
    residues,
)
from bricolage.train.sparse.weighted_layers import Activation, WeightedLayer, check_layers

FORMAT = 1
"""Version of the format. Readers refuse another one."""
HEADER, ARRAYS = "sparse.json", "network.npz"
RowMethod: TypeAlias = Literal["hypergraph", "alternate", "blocks", "residues", "random"]
METHODS: tuple[RowMethod, ...] = get_args(RowMethod)
InputMethod: TypeAlias = Literal["blocks", "residues"]


@dataclass(frozen=True)
class SparseOptions:
    """How rows are divided."""

    processes: Annotated[int, Within(2, 4096)] = 2
    method: RowMethod = "hypergraph"
    inputs: InputMethod = "blocks"
    """Who has the network's inputs."""
    depth: Annotated[int, Within(1, 64)] = 2
    """Layers that may follow one exchange, at most."""
    ahead: Annotated[int, Within(0, 64)] = 0
    """Layers that the hypergraph has beyond the one that it divides."""
    epsilon: Annotated[float, Within(0.0, 1.0)] = 0.03
    """Part by which the heaviest process may have more than an even share of the non-zeros, by hypergraph."""
    seed: int = 0


@dataclass(frozen=True)
class LayerTraffic:
    """What a layer sends forward for one sample; as much comes back."""

    words: int
    messages: int
    imbalance: float
    """Non-zeros of the heaviest process over those of an even share, less one."""


@dataclass(frozen=True)
class PartitionTraffic:
    """Of one partition."""

    method: RowMethod
    layers: tuple[LayerTraffic, ...]

    @property
    def words(self) -> int:
        """Of all layers."""
        return sum(layer.words for layer in self.layers)

    @property
    def messages(self) -> int:
        """Of all layers."""
        return sum(layer.messages for layer in self.layers)

    @property
    def imbalance(self) -> float:
        """Of the layer where it is largest."""
        return max(layer.imbalance for layer in self.layers)


@dataclass(frozen=True)
class SparseHeader:
    """What `sparse.json` holds."""

    format: int
    options: SparseOptions
    names: tuple[str, ...]
    """Of the layers."""
    matrices: tuple[int, ...]
    """By layer the number of its matrix: those that stand twice are stored once."""
    activations: tuple[Activation, ...]
    ends: tuple[int, ...]
    """Behind which layers the exchanges of `depth` layers end."""
    partitions: tuple[PartitionTraffic, ...]
    """The one that was chosen first, then those that it is compared with."""


@dataclass(frozen=True, eq=False)
class SparsePlan:
    """A network and who computes what."""

    header: SparseHeader
    layers: tuple[WeightedLayer, ...]
    owned: tuple[Parts, ...]
    """The process of each input of the network, then of each row of each layer."""

    @property
    def processes(self) -> int:
        """That divide it."""
        return self.header.options.processes

    def exchanges(self, ends: Sequence[int] | None = None) -> tuple[LayerExchange, ...]:
        """Before each layer, or those that end behind `ends`."""
        stops = range(1, len(self.layers) + 1) if ends is None else ends
        patterns = [layer.layer for layer in self.layers]
        return tuple(
            exchange_layers(patterns, self.owned, self.processes, begin, end)
            for begin, end in zip((0, *stops), stops, strict=False)
        )

    def write(self, folder: Path) -> None:
        """Writes its two files into a folder that is there.

        Raises:
            NotWritable: the disk is full, or the folder takes no files.
        """
        arrays: dict[str, npt.NDArray[np.generic]] = {
            f"owned{number}": parts for number, parts in enumerate(self.owned)
        }
        for number, layer in zip(self.header.matrices, self.layers, strict=True):
            for name in ("data", "indices", "indptr"):
                arrays[f"{name}{number}"] = getattr(layer.weights, name)
            arrays[f"shape{number}"] = np.array(layer.weights.shape)
            if layer.bias is not None:
                arrays[f"bias{number}"] = layer.bias
        try:
            with scratch.write_whole(folder / ARRAYS) as partial, partial.open("wb") as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]
            with scratch.write_whole(folder / HEADER) as partial:
                partial.write_text(json.dumps(encode(self.header), indent=1), encoding="utf-8")
        except OSError as error:
            raise NotWritable(path=folder, reason=error.strerror or error) from error


def plan_sparse_network(layers: Sequence[WeightedLayer], options: SparseOptions) -> SparsePlan:
    """Divides rows by the method that is asked for, and counts what others would send.

    Raises:
        MissingLibrary: mtkahypar is not installed, and hypergraphs are asked for.
        BadOption: there are more processes than rows or inputs.
    """
    sizes = [layers[0].weights.shape[1], *(layer.weights.shape[0] for layer in layers)]
    if options.processes > min(sizes):
        what = "inputs" if sizes.index(min(sizes)) == 0 else f"rows of '{layers[sizes.index(min(sizes)) - 1].name}'"
        advice = f"Give at most {min(sizes)}: each process needs one of the {min(sizes)} {what}"
        raise BadOption(option="--processes", value=options.processes, advice=advice)
    patterns = [layer.layer for layer in layers]
    owners = (partition_evenly if options.inputs == "blocks" else residues)(sizes[0], options.processes)
    shown = dict.fromkeys((options.method, *METHODS[1:]))
    partitions = {method: divide_rows(layers, owners, options, method) for method in shown}
    owned = (owners, *partitions[options.method])
    exchanges = plan_exchanges(patterns, owned, options.processes, options.depth)
    numbers = {id(layer): number for number, layer in enumerate({id(layer): layer for layer in layers}.values())}
    header = SparseHeader(
        FORMAT,
        options,
        names=tuple(layer.name for layer in layers),
        matrices=tuple(numbers[id(layer)] for layer in layers),
        activations=tuple(layer.activation for layer in layers),
        ends=tuple(exchange.end for exchange in exchanges),
        partitions=tuple(
            count_traffic(layers, owners, rows, options.processes, method) for method, rows in partitions.items()
        ),
    )
    return SparsePlan(header, tuple(layers), owned)


def divide_rows(
    layers: Sequence[WeightedLayer], owners: Parts, options: SparseOptions, method: RowMethod
) -> list[Parts]:
    """By layer the process of each row."""
    patterns, parts = [layer.layer for layer in layers], options.processes
    if method == "hypergraph":
        return partition_layers(
            patterns, parts, owners, ahead=options.ahead, epsilon=options.epsilon, seed=options.seed
        )
    if method == "alternate":
        return alternate_partitions(patterns, parts, owners)
    if method == "random":
        return [
            partition_randomly(layer.rows, parts, options.seed + number) for number, layer in enumerate(patterns, 1)
        ]
    divide = partition_evenly if method == "blocks" else residues
    return [divide(layer.rows, parts) for layer in patterns]


def count_traffic(
    layers: Sequence[WeightedLayer], owners: Parts, rows: Sequence[Parts], processes: int, method: RowMethod
) -> PartitionTraffic:
    """What a partition sends, with an exchange before each layer."""
    patterns, owned = [layer.layer for layer in layers], [owners, *rows]
    traffic = []
    for number, (pattern, layer_rows) in enumerate(zip(patterns, rows, strict=True)):
        exchange = exchange_layers(patterns, owned, processes, number, number + 1)
        traffic.append(LayerTraffic(exchange.words, exchange.messages, imbalance(pattern, layer_rows, processes)))
    return PartitionTraffic(method, tuple(traffic))


def read_sparse_plan(folder: Path) -> SparsePlan:
    """The plan in a folder, checked.

    Raises:
        MissingFile, BadSparseNetwork: there is none, or it is damaged or of another version.
    """
    from scipy.sparse import csr_array

    for name in (HEADER, ARRAYS):
        if not (folder / name).is_file():
            raise MissingFile(path=folder / name)
    try:
        header = decode(SparseHeader, read_file(folder / HEADER), HEADER)
        if header.format != FORMAT:
            raise DecodeError(f"its format is {header.format}; this version reads {FORMAT}")
        with np.load(folder / ARRAYS) as arrays:
            stored: dict[int, WeightedLayer] = {}
            for name, number, activation in zip(header.names, header.matrices, header.activations, strict=True):
                if number not in stored:
                    parts = tuple(arrays[f"{part}{number}"] for part in ("data", "indices", "indptr"))
                    weights = csr_array(parts, shape=tuple(arrays[f"shape{number}"].tolist()))
                    weights.check_format()
                    bias = arrays.get(f"bias{number}")
                    stored[number] = WeightedLayer(name, weights, bias, activation)
            layers = [stored[number] for number in header.matrices]
            owned = tuple(arrays[f"owned{number}"] for number in range(len(layers) + 1))
        _check_owners(header, layers, owned)
    except (DecodeError, OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise BadSparseNetwork(path=folder, reason=f"its plan is damaged ({error})") from error
    check_layers(layers, folder)
    return SparsePlan(header, tuple(layers), owned)


def _check_owners(header: SparseHeader, layers: Sequence[WeightedLayer], owned: Sequence[Parts]) -> None:
    """Raises ValueError where a row has no process, or the exchanges do not cover the layers."""
    sizes = [layers[0].weights.shape[1], *(layer.weights.shape[0] for layer in layers)]
    for parts, size in zip(owned, sizes, strict=True):
        if parts.shape != (size,) or parts.min() < 0 or parts.max() >= header.options.processes:
            raise ValueError("owners do not fit the layers")
    if list(header.ends) != sorted({*header.ends, len(layers)} - {0}):
        raise ValueError("exchanges do not cover the layers")
