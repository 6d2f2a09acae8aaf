"""Models that are already in memory: `onnx.ModelProto` and `onnx_ir.Model`."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from bricolage.errors import InvalidGraph, NotAModel, TooLarge
from bricolage.frontends import external, limits
from bricolage.frontends.checks import first_line, innermost
from bricolage.frontends.clean import clean

_LARGEST_DENSE = 1 << 30
"""Bytes of a sparse tensor with its zeros."""


def from_proto(proto: onnx.ModelProto, base_dir: Path | None = None) -> ir.Model:
    """A checked model from a proto, which is not changed. External data is looked for in `base_dir`.

    Raises:
        NotAModel, MissingExternalData, ExternalDataOutside, and what `clean` raises.
    """
    model = deserialise(proto, "ModelProto")
    external.adopt(model, (base_dir or Path.cwd(),))
    return clean(model)


def from_ir(model: ir.Model) -> ir.Model:
    """A checked copy of an `onnx_ir` model; tensors are shared, the model itself is not changed.

    Raises:
        MissingExternalData, ExternalDataOutside, and what `clean` raises.
    """
    copy = model.clone()
    external.adopt(copy, ())
    return clean(copy)


def deserialise(proto: onnx.ModelProto, source: str) -> ir.Model:
    """The proto as `onnx_ir`, unchecked. `source` is named in errors.

    Raises:
        NotAModel: the proto holds no graph.
        InvalidGraph: the graph is malformed: a value defined twice, a tensor whose data does not fit its shape.
    """
    if not proto.HasField("graph") or not (proto.graph.node or proto.graph.output):
        raise NotAModel(path=source, reason="it holds no graph; it may be cut short, or another kind of file")
    limits.check_operators(proto)
    external.check(proto)
    try:
        with _quiet():
            model: ir.Model = ir.from_proto(_without_sparse(proto))
        _check_tensors(model)
    except (InvalidGraph, TooLarge):
        raise
    except Exception as error:  # the parser assumes a valid proto, and meets an invalid one with whatever comes
        raise InvalidGraph(reason=first_line(innermost(error))) from error
    return model


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """onnx_ir warns of what `clean` refuses a moment later, by name."""
    logger = logging.getLogger("onnx_ir")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _check_tensors(model: ir.Model) -> None:
    """Data of tensors inside the proto fit their shapes (onnx_ir would notice only when they are read)."""
    for graph in model.graphs():
        for name, value in graph.initializers.items():
            _check_tensor(name, value.const_value)
        for node in graph:
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
                    _check_tensor(f"{node.name}.{attribute.name}", attribute.value)


def _check_tensor(name: str, tensor: ir.TensorProtocol | None) -> None:
    if tensor is None or isinstance(tensor, ir.ExternalTensor):
        return
    if tensor.dtype == ir.DataType.UNDEFINED:
        raise InvalidGraph(reason=f"tensor '{name}' has no element type")
    dims = tensor.shape.numpy()
    if any(dim < 0 for dim in dims):
        raise InvalidGraph(reason=f"tensor '{name}' has a negative dimension")
    try:
        found = tensor.numpy().shape
    except Exception as error:  # numpy's reshape, struct and ml_dtypes all fail in their own way on short data
        raise InvalidGraph(reason=f"the data of tensor '{name}' do not fit its shape {list(dims)}") from error
    if found != dims:
        raise InvalidGraph(reason=f"the data of tensor '{name}' do not fit its shape {list(dims)}")


def _without_sparse(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Sparse initializers and constants as dense ones: no runtime here keeps them sparse."""
    if not any(_has_sparse(graph) for graph in limits.graphs_of(proto)):
        return proto
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for graph in limits.graphs_of(copy):
        if isinstance(graph, onnx.GraphProto):
            graph.initializer.extend(_dense(sparse, sparse.values.name) for sparse in graph.sparse_initializer)
            del graph.sparse_initializer[:]
        for attribute in (one for node in graph.node for one in node.attribute):
            if attribute.type == onnx.AttributeProto.SPARSE_TENSOR:
                dense = onnx.helper.make_attribute("value", _dense(attribute.sparse_tensor, ""))
                attribute.CopyFrom(dense)
    return copy


def _has_sparse(graph: onnx.GraphProto | onnx.FunctionProto) -> bool:
    kinds = (attribute.type for node in graph.node if node.op_type == "Constant" for attribute in node.attribute)
    initializers = isinstance(graph, onnx.GraphProto) and len(graph.sparse_initializer) > 0
    return initializers or onnx.AttributeProto.SPARSE_TENSOR in kinds


def _dense(sparse: onnx.SparseTensorProto, name: str) -> onnx.TensorProto:
    """A sparse tensor with its zeros.

    Raises:
        InvalidGraph: an index lies outside its shape, or there are not as many as values.
        TooLarge: it would have too many elements.
    """
    values, indices = (onnx.numpy_helper.to_array(one) for one in (sparse.values, sparse.indices))
    dims, size = tuple(sparse.dims), values.dtype.itemsize
    if min(dims, default=0) < 0 or values.ndim != 1 or len(indices) != len(values):
        raise InvalidGraph(reason=f"sparse tensor '{name}' has no shape, or not as many indices as values")
    if math.prod(dims) * size > _LARGEST_DENSE:
        raise TooLarge(
            what=f"sparse tensor '{name}'",
            reason=f"with its zeros it takes {math.prod(dims) * size / 1e9:.3g} GB, and no runtime keeps it sparse",
            advice="Compute with the indices and values themselves: Gather and ScatterND take them",
        )
    flat = indices if indices.ndim == 1 else None
    if flat is None and indices.shape[1] != len(dims):
        raise InvalidGraph(reason=f"sparse tensor '{name}' has indices of another rank")
    columns = [(flat, math.prod(dims))] if flat is not None else list(zip(indices.T, dims, strict=True))
    if any(len(column) and not 0 <= column.min() <= column.max() < size for column, size in columns):
        raise InvalidGraph(reason=f"sparse tensor '{name}' has indices outside its shape")
    dense = np.zeros(dims, values.dtype)
    if flat is not None:
        dense.reshape(-1)[flat] = values
    else:
        dense[tuple(indices.T)] = values
    return onnx.numpy_helper.from_array(dense, name)
