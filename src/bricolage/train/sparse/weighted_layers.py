"""The layers of a sparse network, from matrices or from a model, and what the reader of a network refuses."""

from __future__ import annotations

import itertools
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from bricolage.errors import BadSparseNetwork, MissingFile
from bricolage.search.sharding.row_partition import SparseLayer

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from bricolage.graph.graph import Operator

Reals: TypeAlias = npt.NDArray[np.floating]
Activation: TypeAlias = Literal["relu", "tanh", "sigmoid", "none"]
MATRICES = (".mtx", ".npz", ".gz")
"""Endings of matrices: MatrixMarket, also compressed, and scipy's."""
_MODELS = (".onnx", ".pt2", ".onnxtxt", ".textproto", ".json")
_ACTIVATIONS: dict[str, Activation] = {"Relu": "relu", "Tanh": "tanh", "Sigmoid": "sigmoid"}
_SAME_ORDER = ("Flatten", "Reshape", "Squeeze", "Unsqueeze")
"""Operators before the first product that leave a sample's numbers in their order."""


@dataclass(frozen=True, eq=False)
class WeightedLayer:
    """y = activation(weights @ x + bias)."""

    name: str
    weights: csr_array
    """[rows, inputs], float64; columns ascend in each row, no stored zeros."""
    bias: Reals | None
    """[rows]; None: none."""
    activation: Activation

    @cached_property
    def layer(self) -> SparseLayer:
        """Where its weights are not zero."""
        indices, ends = self.weights.indices.tolist(), self.weights.indptr.tolist()
        rows = tuple(tuple(indices[first:last]) for first, last in itertools.pairwise(ends))
        return SparseLayer(self.weights.shape[1], rows)


def read_sparse_network(
    paths: Sequence[Path], *, activation: Activation = "relu", repeat: int = 1
) -> tuple[WeightedLayer, ...]:
    """A sparse network, checked.

    Args:
        paths: one ONNX or `.pt2` model, or a matrix [rows, inputs] for each layer.
        activation: behind each matrix; a model has its own.
        repeat: how often the layers follow one another.

    Raises:
        MissingFile, NotAModel, BadSparseNetwork: what is there is no sparse network, or one that rows cannot divide.
    """
    for path in paths:
        if not path.exists():
            raise MissingFile(path=path)
    if len(paths) == 1 and paths[0].suffix in _MODELS:
        layers = _read_model(paths[0])
    else:
        layers = [_read_matrix(path, activation) for path in paths]
    layers = layers * repeat
    check_layers(layers, paths[0])
    return tuple(layers)


def check_layers(layers: Sequence[WeightedLayer], path: Path) -> None:
    """That rows can be divided.

    Raises:
        BadSparseNetwork: layers do not follow one another, a row or a column is empty, or no weight is zero.
    """
    for before, layer in itertools.pairwise(layers):
        inputs, rows = layer.weights.shape[1], before.weights.shape[0]
        if inputs != rows:
            reason = f"'{layer.name}' takes {inputs} inputs, and '{before.name}' before it has {rows} rows"
            raise BadSparseNetwork(path=path, reason=reason)
    for layer in layers:
        if not np.isfinite(layer.weights.data).all():
            raise BadSparseNetwork(path=path, reason=f"'{layer.name}' has a weight that is no finite number")
        reads = np.diff(layer.weights.indptr)
        readers = np.bincount(layer.weights.indices, minlength=layer.weights.shape[1])
        for kind, counts in (("row", reads), ("column", readers)):
            if len(empty := np.flatnonzero(counts == 0)):
                reason = (
                    f"{kind} {int(empty[0]) + 1} of '{layer.name}' has no non-zero weight; leave it out of the network"
                )
                raise BadSparseNetwork(path=path, reason=reason)
    if all(layer.weights.nnz == layer.weights.shape[0] * layer.weights.shape[1] for layer in layers):
        reason = "none of its weights is zero: every row reads every input, and each partition sends the same"
        raise BadSparseNetwork(path=path, reason=reason)


def _clean(matrix: csr_array) -> csr_array:
    """Float64, sorted, without stored zeros."""
    from scipy.sparse import csr_array

    weights = csr_array(matrix, dtype=np.float64)
    weights.sum_duplicates()
    weights.eliminate_zeros()
    weights.sort_indices()
    return weights


def _read_matrix(path: Path, activation: Activation) -> WeightedLayer:
    from scipy.io import mmread
    from scipy.sparse import load_npz

    if path.suffix not in MATRICES:
        reason = "it is neither a matrix (.mtx, .npz) nor a single model (.onnx, .pt2)"
        raise BadSparseNetwork(path=path, reason=reason)
    try:
        matrix = load_npz(path) if path.suffix == ".npz" else mmread(path)
    except (OSError, ValueError, KeyError, OverflowError, MemoryError, EOFError, zipfile.BadZipFile) as error:
        kind = "a sparse matrix as scipy writes it" if path.suffix == ".npz" else "a matrix in the MatrixMarket format"
        raise BadSparseNetwork(path=path, reason=f"it is not {kind} ({error})") from error
    if np.iscomplexobj(matrix):
        raise BadSparseNetwork(path=path, reason="its weights are complex numbers")
    if len(matrix.shape) != 2 or 0 in matrix.shape:
        raise BadSparseNetwork(path=path, reason=f"it is no matrix with rows and columns: its shape is {matrix.shape}")
    return WeightedLayer(path.stem, _clean(matrix), None, activation)


def _read_model(path: Path) -> list[WeightedLayer]:
    """The products of a chain."""
    from bricolage.frontends import to_model
    from bricolage.graph.prepare import prepare, symbolic_dimensions

    model = to_model(path)
    graph = prepare(model, dict.fromkeys(symbolic_dimensions(model), 1))
    layers: list[WeightedLayer] = []
    for operator in graph.operators:
        flowing = [value for value in operator.inputs if not graph.is_constant(value)]
        if len(flowing) != 1 or (operator.number and graph.producer(flowing[0]) != operator.number - 1):
            raise BadSparseNetwork(
                path=path, reason=f"its layers are no chain: '{operator.name}' ({operator.op_type}) joins branches"
            )
        _add_operator(layers, operator, path)
    if not layers:
        raise BadSparseNetwork(path=path, reason="it has no product with weights")
    return layers


def _add_operator(layers: list[WeightedLayer], operator: Operator, path: Path) -> None:
    """A product begins a layer; a bias or an activation belongs to the last one."""
    kind, inputs = operator.op_type, operator.node.inputs
    constants = [
        value.const_value.numpy() if value is not None and value.const_value is not None else None for value in inputs
    ]
    last = layers[-1] if layers else None
    if kind == "MatMul" and constants[1] is not None and constants[1].ndim == 2:
        layers.append(WeightedLayer(operator.name, _clean(constants[1].T), None, "none"))
    elif kind == "Gemm" and constants[1] is not None and not operator.attribute("transA", 0):
        layers.append(_read_gemm(operator, constants))
    elif kind == "Add" and last is not None and last.bias is None and last.activation == "none":
        (bias,) = [constant for constant in constants if constant is not None]
        layers[-1] = replace(last, bias=_spread_bias(bias, last.weights.shape[0]))
    elif kind in _ACTIVATIONS and last is not None and last.activation == "none":
        layers[-1] = replace(last, activation=_ACTIVATIONS[kind])
    elif not (last is None and kind in _SAME_ORDER):
        reason = f"'{operator.name}' ({kind}) is no product by a matrix of weights, and no bias, Relu, Tanh or Sigmoid behind one"
        raise BadSparseNetwork(path=path, reason=reason)


def _read_gemm(operator: Operator, constants: Sequence[Reals | None]) -> WeightedLayer:
    """alpha x W + beta c."""
    weights = constants[1]
    assert weights is not None
    turned = weights if operator.attribute("transB", 0) else weights.T
    scaled = np.asarray(turned, np.float64) * float(str(operator.attribute("alpha", 1.0)))
    bias = constants[2] if len(constants) > 2 else None
    if bias is not None:
        bias = _spread_bias(bias, scaled.shape[0]) * float(str(operator.attribute("beta", 1.0)))
    return WeightedLayer(operator.name, _clean(scaled), bias, "none")


def _spread_bias(bias: Reals, rows: int) -> Reals:
    """A number for each row."""
    return np.broadcast_to(np.asarray(bias, np.float64).reshape(-1), (rows,)).copy()
