"""External data: weights in files of their own. Checked once when a model is loaded, then memory-mapped."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx_ir as ir

from bricolage.errors import BadExternalData, ExternalDataOutside, MissingExternalData
from bricolage.frontends.model_limits import graphs_of

_INLINE_BYTES = 1024  # smaller tensors (shapes, axes, scalars) are read at once, so that passes can see them


def check_external_data(proto: onnx.ModelProto) -> None:
    """What a model says of external data: where they lie, in whole bytes.

    Raises:
        BadExternalData: an offset or a length is no number, or negative, or so is a dimension; or there is no location.
    """
    for tensor in external_tensors(proto):
        _check_entries(tensor)


def external_tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Those whose bytes lie in other files: weights and attributes of the main graph, of functions and of bodies."""
    for graph in graphs_of(proto):
        attributes = [attribute for node in graph.node for attribute in node.attribute]
        tensors = [*graph.initializer] if isinstance(graph, onnx.GraphProto) else []
        tensors += [attribute.t for attribute in attributes if attribute.HasField("t")]
        tensors += [tensor for attribute in attributes for tensor in attribute.tensors]
        yield from (tensor for tensor in tensors if tensor.data_location == onnx.TensorProto.EXTERNAL)


def _check_entries(tensor: onnx.TensorProto) -> None:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if not entries.get("location"):
        raise BadExternalData(tensor=tensor.name, reason="there is no location")
    for key in ("offset", "length"):
        text = entries.get(key, "0")
        if not (text.isascii() and text.isdecimal()) or int(text) >= 1 << 63:
            raise BadExternalData(tensor=tensor.name, reason=f"the {key} is '{text[:40]}'")
    if any(size < 0 for size in tensor.dims):
        raise BadExternalData(tensor=tensor.name, reason=f"its shape is {list(tensor.dims)}")


def adopt(model: ir.Model, folders: tuple[Path, ...]) -> None:
    """Checks every external tensor of `model` and fixes where it is read from, in place. Nothing large is read.

    `folders` are the folders that data may come from: that of the model's path, and that of the file which the path
    links to (download caches keep a folder of links to a folder of data). Empty for a model made in memory: then the
    tensors' own base directories count.

    Raises:
        ExternalDataOutside: a location is absolute, or leads outside these folders, directly or by a link.
        MissingExternalData: a data file is missing or ends before the tensor does.
    """
    for graph in model.graphs():
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = _map_tensor(value.const_value, folders)
    for node, name, tensor in _attributes(model):
        node.attributes[name] = ir.AttrTensor(name, _map_tensor(tensor, folders))


def _attributes(model: ir.Model) -> Iterator[tuple[ir.Node, str, ir.ExternalTensor]]:
    for graph in model.graphs():
        for node in graph:
            for attribute in list(node.attributes.values()):
                if attribute.type == ir.AttributeType.TENSOR and isinstance(attribute.value, ir.ExternalTensor):
                    yield node, attribute.name, attribute.value


def locate(tensor: str, location: str, folders: tuple[Path, ...]) -> tuple[Path, Path]:
    """The file that a tensor's location names, and the same without links.

    Args:
        tensor: its name.
        location: as the model says it.
        folders: as of `adopt`; empty where any place will do.

    Raises:
        ExternalDataOutside: it leads out of them.
        BadExternalData: no file can have that name.
    """
    if folders and (os.path.isabs(location) or not location):
        raise ExternalDataOutside(tensor=tensor, path=location)
    file = Path(folders[0] if folders else "", location)
    try:
        real = file.resolve()
        real.exists()
    except (OSError, ValueError) as error:  # a name that is too long, or has a zero in it
        reason = f"the location is no file's name ({getattr(error, 'strerror', None) or error})"
        raise BadExternalData(tensor=tensor, reason=reason) from error
    if folders and not any(real.is_relative_to(folder.resolve()) for folder in folders):
        raise ExternalDataOutside(tensor=tensor, path=location)
    return file, real


def _map_tensor(tensor: ir.ExternalTensor, folders: tuple[Path, ...]) -> ir.TensorProtocol:
    name, location = tensor.name or "", os.fspath(tensor.location)
    bases = folders or ((Path(tensor.base_dir),) if os.fspath(tensor.base_dir) else ())
    file, real = locate(name, location, bases)
    begin, length = tensor.offset or 0, tensor.nbytes
    declared = length if tensor.length is None else tensor.length
    if not real.is_file() or begin < 0 or declared < length or real.stat().st_size < begin + length:
        raise MissingExternalData(tensor=name, path=str(file))
    # The real file is named, so that the tensor is read from what was checked. onnx_ir declines files with several hard
    # links (package managers make them) when it is given a base directory, so those are named by their full path.
    base, path = ("", str(real)) if real.stat().st_nlink > 1 else (str(real.parent), real.name)
    mapped = ir.ExternalTensor(path, begin, length, tensor.dtype, shape=tensor.shape, name=name, base_dir=base)
    if length > _INLINE_BYTES:
        return mapped
    return ir.Tensor(mapped.numpy().copy(), dtype=tensor.dtype, shape=tensor.shape, name=name)
