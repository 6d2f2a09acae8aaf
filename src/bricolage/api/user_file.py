"""The user's own file, as it comes: what tools that read files are measured on, and what an artifact hands through where that is
fastest. It lies with what is made of it, byte for byte; where its weights lie in other files, these too, under names of ours,
and the places in the file that name them are all that is changed."""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import onnx

from bricolage.errors import CacheNotWritable
from bricolage.plan import artifact
from bricolage.plan.step import USER_DATA, USER_FILE

_LOG = logging.getLogger(__name__)
_SUFFIX = ".onnx"
_LARGEST_PROTO = 2_000_000_000
_BLOCK = 1 << 20


def keep_file(source: object, directory: Path, constants: Mapping[str, onnx.TensorProto] | None = None) -> str:
    """Puts an ONNX file, or what a protobuf object would be as one, into a folder as `USER_FILE`; hash of all that it consists of.
    Empty where there is no such file: of a module, of an artifact that does not hold one, or where it cannot be kept as it is.
    Inputs that never change become defaults in it, which a call leaves out; that is all that is changed then.

    Raises:
        CacheNotWritable: the disk is full.
    """
    target = directory / USER_FILE
    try:
        if isinstance(source, onnx.ModelProto):
            return _keep_proto(source, target, constants or {})
        if not isinstance(source, str | Path):
            return ""
        path = Path(source)
        if artifact.is_named(path):
            path = artifact.load(path)[1] / USER_FILE
        if path.suffix != _SUFFIX or not path.is_file():
            return ""
        return _keep_path(path, target, constants or {})
    except OSError as error:
        raise CacheNotWritable(path=directory, reason=error.strerror or error) from error


def _keep_proto(model: onnx.ModelProto, target: Path, constants: Mapping[str, onnx.TensorProto]) -> str:
    if model.ByteSize() > _LARGEST_PROTO or any(_data_of(one) for one in _tensors(model)):
        return ""
    if constants:
        model = _with_defaults(model, constants)
    content = model.SerializeToString()
    target.write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def _with_defaults(model: onnx.ModelProto, constants: Mapping[str, onnx.TensorProto]) -> onnx.ModelProto:
    """A copy in which inputs have these defaults."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    others = [one for one in copy.graph.initializer if one.name not in constants]
    del copy.graph.initializer[:]
    copy.graph.initializer.extend([*others, *constants.values()])
    return copy


def _keep_path(path: Path, target: Path, constants: Mapping[str, onnx.TensorProto]) -> str:
    digest = hashlib.sha256()
    model = onnx.load(str(path), load_external_data=False)
    outside = [one for one in _tensors(model) if _data_of(one)]
    if constants:
        model = _with_defaults(model, constants)
        outside = [one for one in _tensors(model) if _data_of(one)]
    if not outside and not constants:
        shutil.copyfile(path, target)
        return _fed(digest, target)
    names: dict[str, str] = {}
    for tensor in outside:
        location = _data_of(tensor)
        if location not in names:
            names[location] = USER_DATA.replace("*", str(len(names)))
            shutil.copyfile(path.parent / location, target.with_name(names[location]))
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = names[location]
    target.write_bytes(model.SerializeToString())
    for name in names.values():
        _fed(digest, target.with_name(name))
    return _fed(digest, target)


def _fed(digest: hashlib._Hash, path: Path) -> str:
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _data_of(tensor: onnx.TensorProto) -> str:
    """Where the bytes of a tensor lie, if in another file."""
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return ""
    return next((entry.value for entry in tensor.external_data if entry.key == "location"), "")


def _tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Of a model, those in attributes and sub-graphs too."""
    yield from _of_graph(model.graph)
    for function in model.functions:
        yield from _of_nodes(function.node)


def _of_graph(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    yield from _of_nodes(graph.node)


def _of_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _of_graph(graph)
