"""The user's own file, as it comes: what tools that read files are measured on, and what an artifact hands through where that is
fastest. It lies with what is made of it, byte for byte; where its weights lie in other files, these too, under names of ours,
and the places in the file that name them are all that is changed."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path

import onnx

from bricolage.errors import CacheNotWritable, MissingExternalData
from bricolage.frontends.external import external_tensors, locate
from bricolage.plan import artifact
from bricolage.plan.program_step import USER_DATA, USER_FILE

_SUFFIX = ".onnx"
_LARGEST_PROTO = 2_000_000_000


def keep_file(source: object, directory: Path, constants: Mapping[str, onnx.TensorProto] | None = None) -> str:
    """Puts an ONNX file, or what a protobuf object would be as one, into a folder as `USER_FILE`; hash of all that it consists of.
    Empty where there is no such file: of a module, of an artifact that holds none, or of an object that is too large for one file.
    Inputs that never change become defaults in it, which a call leaves out; that is all that is changed then.

    Raises:
        ExternalDataOutside, MissingExternalData: its weights are not where they should be.
        CacheNotWritable: the disk is full.
    """
    target = directory / USER_FILE
    if isinstance(source, onnx.ModelProto):
        if source.ByteSize() > _LARGEST_PROTO or any(external_tensors(source)):
            return ""
        return _keep(_with_defaults(source, constants or {}).SerializeToString(), {}, target)
    if not isinstance(source, str | Path):
        return ""
    path = artifact.load_artifact(Path(source))[1] / USER_FILE if artifact.is_named(source) else Path(source)
    if path.suffix != _SUFFIX or not path.is_file():
        return ""
    model = onnx.load(str(path), load_external_data=False)
    if not constants and not any(external_tensors(model)):
        return _keep(path, {}, target)
    model = _with_defaults(model, constants or {})
    sources = _rename_data(model, path)
    return _keep(model.SerializeToString(), sources, target)


def _with_defaults(model: onnx.ModelProto, constants: Mapping[str, onnx.TensorProto]) -> onnx.ModelProto:
    """A model in which inputs have these defaults: a copy, unless there are none."""
    if not constants:
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    others = [tensor for tensor in copy.graph.initializer if tensor.name not in constants]
    del copy.graph.initializer[:]
    copy.graph.initializer.extend([*others, *constants.values()])
    return copy


def _keep(content: bytes | Path, sources: Mapping[str, Path], target: Path) -> str:
    """Writes `content`, or copies the file that it is, with the `sources` of its weights, by their new names. Hash of it all.

    Raises:
        CacheNotWritable: the disk is full.
    """
    try:
        for name, source in sources.items():
            shutil.copyfile(source, target.with_name(name))
        if isinstance(content, bytes):
            target.write_bytes(content)
        else:
            shutil.copyfile(content, target)
        digest = hashlib.sha256()
        for kept in (target, *(target.with_name(name) for name in sources)):
            with kept.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()
    except OSError as error:
        raise CacheNotWritable(path=target.parent, reason=error.strerror or error) from error


def _rename_data(model: onnx.ModelProto, path: Path) -> dict[str, Path]:
    """Gives the files of a model's weights names of ours, in place; by these, where they lie.

    Raises:
        ExternalDataOutside, MissingExternalData
    """
    names: dict[str, str] = {}
    sources: dict[str, Path] = {}
    for tensor in external_tensors(model):
        for entry in tensor.external_data:
            if entry.key != "location":
                continue
            if entry.value not in names:
                file, real = locate(tensor.name, entry.value, (path.parent, path.resolve().parent))
                if not real.is_file():
                    raise MissingExternalData(tensor=tensor.name, path=str(file))
                names[entry.value] = USER_DATA.replace("*", str(len(names)))
                sources[names[entry.value]] = real
            entry.value = names[entry.value]
    return sources
