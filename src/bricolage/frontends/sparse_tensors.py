"""Sparse tensors of a file, as dense ones: no runtime here keeps them sparse, and `onnx_ir` does not read them."""

from __future__ import annotations

import math
import os

import numpy as np
import onnx

from bricolage.errors import InvalidGraph, TooLarge
from bricolage.frontends.model_limits import graphs_of


def dense(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with dense tensors in place of sparse initializers and sparse constants, bodies of control flow and functions
    included; itself where it has none.

    Raises:
        InvalidGraph: indices lie outside a tensor's shape, or do not fit its values.
        TooLarge: a tensor would not fit into this machine's memory.
    """
    if not any(_has_sparse(graph) for graph in graphs_of(proto)):
        return proto
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for graph in graphs_of(copy):
        if isinstance(graph, onnx.GraphProto):
            graph.initializer.extend(_dense(sparse, sparse.values.name) for sparse in graph.sparse_initializer)
            del graph.sparse_initializer[:]
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.SPARSE_TENSOR and node.op_type == "Constant":
                    name = node.output[0] if node.output else node.name
                    attribute.t.CopyFrom(_dense(attribute.sparse_tensor, name))
                    attribute.ClearField("sparse_tensor")
                    attribute.name, attribute.type = "value", onnx.AttributeProto.TENSOR
    return copy


def _has_sparse(graph: onnx.GraphProto | onnx.FunctionProto) -> bool:
    if isinstance(graph, onnx.GraphProto) and graph.sparse_initializer:
        return True
    return any(a.type == onnx.AttributeProto.SPARSE_TENSOR for node in graph.node for a in node.attribute)


def _dense(sparse: onnx.SparseTensorProto, name: str) -> onnx.TensorProto:
    dims = tuple(sparse.dims)
    if any(size < 0 for size in dims):
        raise InvalidGraph(reason=f"sparse tensor '{name}' has a negative dimension")
    try:
        values, indices = onnx.numpy_helper.to_array(sparse.values), onnx.numpy_helper.to_array(sparse.indices)
    except (KeyError, TypeError, ValueError, OSError, onnx.checker.ValidationError) as error:
        raise InvalidGraph(reason=f"the data of sparse tensor '{name}' do not fit their shape") from error
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    size = math.prod(dims) * values.itemsize
    if size > memory:
        reason = f"dense, its shape {list(dims)} takes {size / 1e9:.3g} GB, and this machine has {memory / 1e9:.3g}"
        raise TooLarge(what=f"sparse tensor '{name}'", reason=reason, advice="Export it in smaller parts")
    whole = np.zeros(dims, values.dtype)
    try:
        if indices.ndim == 1:
            whole.reshape(-1)[indices] = values
        else:
            whole[tuple(indices.T)] = values
    except (IndexError, ValueError) as error:
        raise InvalidGraph(reason=f"sparse tensor '{name}' has indices that do not fit its shape and values") from error
    return onnx.numpy_helper.from_array(whole, name)
