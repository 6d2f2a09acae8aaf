"""The content of a region file: its protobuf with weights, and a key under which compiled code can be kept."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterator
from pathlib import Path

import onnx

from bricolage.backends.interface import RegionModel

_EXTERNAL = onnx.TensorProto.EXTERNAL


def load_proto(region: RegionModel) -> onnx.ModelProto:
    """The region as protobuf with all weights inside, shapes inferred (before the weights are read: that copies)."""
    proto = onnx.load(str(region.path), load_external_data=False)
    inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    onnx.load_external_data_for_model(inferred, str(region.path.parent))
    return inferred


def content_key(region: RegionModel, *context: str) -> str:
    """Hash of the region (operators and the bytes of its weights) and of whatever else decides the compiled code.

    Regions share one weights file, so only the parts that this region refers to are read.
    """
    digest = hashlib.sha256("\0".join(context).encode())
    proto = onnx.load(str(region.path), load_external_data=False)
    mapped: dict[Path, mmap.mmap] = {}
    for tensor in tensors(proto.graph):
        if tensor.data_location != _EXTERNAL:
            continue
        where = {entry.key: entry.value for entry in tensor.external_data}
        path = region.path.parent / where["location"]
        if path not in mapped:
            with path.open("rb") as file:
                mapped[path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        offset = int(where.get("offset", 0))
        end = offset + int(where["length"]) if "length" in where else len(mapped[path])
        with memoryview(mapped[path]) as view, view[offset:end] as part:
            digest.update(part)
        del tensor.external_data[:]  # the place in the file is no part of the content
    for file_map in mapped.values():
        file_map.close()
    digest.update(proto.SerializeToString(deterministic=True))
    return digest.hexdigest()[:32]


def tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Tensors of a graph and of the bodies of its control flow."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            if attribute.HasField("g"):
                yield from tensors(attribute.g)
            for body in attribute.graphs:
                yield from tensors(body)
