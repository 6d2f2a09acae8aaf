"""Regions as stand-alone models, and models as files."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from bricolage.base import scratch
from bricolage.errors import NotWritable
from bricolage.graph.graph import Graph, Region

_PROTOBUF_BYTES = 2_000_000_000  # a little less than protobuf's limit, for everything but the weights


def extract_region(region: Region) -> ir.Model:
    """A model that computes just this region: inputs and outputs are the region's own, names are kept, and the
    constants share memory (or the file) with the whole model."""
    whole = region.graph.model
    view = ir.GraphView(
        region.inputs,
        region.outputs,
        nodes=[operator.node for operator in region.operators],
        initializers=region.constants,
        opset_imports=dict(whole.graph.opset_imports),
        name="region",
    )
    return ir.Model(view.clone(), ir_version=whole.ir_version)


def write_model(model: ir.Model, path: Path) -> None:
    """Writes a model whose large constants already lie in a weights file of the same folder (see `bricolage.graph.store`).

    Raises:
        NotWritable: the disk is full or the folder is not writable.
    """
    write_content(content(model), path)


def content(model: ir.Model) -> bytes:
    """What a file of this model holds."""
    return bytes(ir.to_proto(model).SerializeToString())


def write_content(content: bytes, path: Path) -> None:
    """Writes what a file of a model holds.

    Raises:
        NotWritable: the disk is full or the folder is not writable.
    """
    try:
        with scratch.write_whole(path) as partial:
            partial.write_bytes(content)
    except OSError as error:
        raise NotWritable(path=path, reason=error.strerror or error) from error


def data_files(path: Path) -> set[str]:
    """Names of the files in a model's folder, written by `write_model`, that hold its weights."""
    tensors = [value.const_value for graph in ir.load(path).graphs() for value in graph.initializers.values()]
    return {Path(tensor.path).name for tensor in tensors if isinstance(tensor, ir.ExternalTensor)}


def graph_of(path: Path) -> Graph:
    """Reads a prepared model written by `write_model` back as a graph."""
    return Graph(ir.load(path))


def write_whole(model: ir.Model, path: Path) -> None:
    """Writes a model as a user wants it: one file, or with its weights in `path`.data where protobuf's 2 GB are not enough.

    Raises:
        NotWritable: the disk is full or the folder is not writable.
    """
    weights = sum(v.const_value.nbytes for g in model.graphs() for v in g.initializers.values() if v.const_value)
    data = path.with_name(f"{path.name}.data")
    try:
        if weights >= _PROTOBUF_BYTES:
            ir.save(model, path, external_data=data.name)
        else:
            write_model(_with_weights(model), path)
    except OSError as error:
        raise NotWritable(path=path, reason=error.strerror or error) from error


def _with_weights(model: ir.Model) -> ir.Model:
    """A copy that holds its weights. Files stay open: results of folding may be views of what they hold."""
    whole = model.clone()
    for graph in whole.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if isinstance(tensor, ir.ExternalTensor):
                value.const_value = ir.Tensor(tensor.numpy().copy(), tensor.dtype, shape=tensor.shape, name=tensor.name)
    return whole
