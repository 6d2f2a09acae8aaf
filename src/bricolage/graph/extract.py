"""Regions as stand-alone models, and their weights in one shared file."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Sequence
from pathlib import Path

import onnx
import onnx_ir as ir

from bricolage.errors import NotWritable
from bricolage.graph.graph import Graph
from bricolage.graph.region import Region

WEIGHTS = "weights.data"
_INLINE_BYTES = 1024  # smaller constants (shapes, axes, scalars) stay inside the model, where passes can see them
_ALIGNMENT = 64
_PROTOBUF_BYTES = 2_000_000_000  # a little less than protobuf's limit, for everything but the weights


def extract(region: Region) -> ir.Model:
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
    """Writes a model whose large constants already lie in a weights file beside it (see `share_weights`).

    Raises:
        NotWritable: the disk is full or the folder is not writable.
    """
    try:
        partial = path.with_suffix(f".{os.getpid()}.partial")
        onnx.save(ir.to_proto(model), str(partial))
        partial.replace(path)
    except OSError as error:
        raise NotWritable(path=path, reason=error.strerror or error) from error


def share_weights(models: Sequence[ir.Model], directory: Path, name: str = WEIGHTS) -> None:
    """Moves the large constants of `models` into one file of `directory`, equal ones once, and makes the models refer to it.
    Region models made afterwards are then small files beside it, however large the weights are. What another file of
    `directory` holds stays there.

    Raises:
        NotWritable: the disk is full or the folder is not writable.
    """
    target = directory / name
    written: dict[bytes, tuple[int, int]] = {}
    partial = directory / f"{name}.{os.getpid()}.partial"
    moved: list[tuple[ir.Value, int, int]] = []
    try:
        with partial.open("wb") as file:
            for value in (
                value for model in models for graph in model.graphs() for value in graph.initializers.values()
            ):
                tensor = value.const_value
                if tensor is None or tensor.nbytes <= _INLINE_BYTES or tensor.dtype == ir.DataType.STRING:
                    continue
                if isinstance(tensor, ir.ExternalTensor) and _lies_in(tensor, directory, besides=name):
                    continue
                content = tensor.tobytes()
                digest = hashlib.sha256(content).digest()
                if digest not in written:
                    file.write(b"\0" * (-file.tell() % _ALIGNMENT))
                    written[digest] = (file.tell(), len(content))
                    file.write(content)
                moved.append((value, *written[digest]))
        partial.replace(target)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise NotWritable(path=target, reason=error.strerror or error) from error
    for value, offset, length in moved:
        tensor = value.const_value
        assert tensor is not None
        value.const_value = ir.ExternalTensor(
            name,
            offset,
            length,
            tensor.dtype,
            shape=ir.Shape(tensor.shape.numpy()),
            name=value.name or "",
            base_dir=directory,
        )


def _lies_in(tensor: ir.ExternalTensor, directory: Path, *, besides: str) -> bool:
    return Path(tensor.path).parent == directory and Path(tensor.path).name != besides


def region_path(region: Region, key: str, directory: Path) -> Path:
    """Where the model of a region with identity `key` lies. Equal regions differ in weights and tensor names, so the
    graph's name and the operators are part of the file's name."""
    origin = f"{region.graph.model.graph.name} {region.bits:x}"
    return directory / f"region-{key[:16]}-{zlib.crc32(origin.encode()):08x}.onnx"


def region_file(region: Region, key: str, directory: Path) -> Path:
    """Writes the region's model unless it is there, and returns its path."""
    path = region_path(region, key, directory)
    if not path.exists():
        write_model(extract(region), path)
    return path


def data_files(path: Path) -> set[str]:
    """Names of the files beside a model, written by `write_model`, that hold its weights."""
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
