"""Artifacts: a zip with the plan, the graphs and the weights. No pickle, no code, nothing that runs by being loaded.

Members: `manifest.json` (format, and size and SHA-256 of every other member), `plan.json`, `model.onnx` (the whole model as
it came, symbolic dimensions kept), one `graph-DIGEST.onnx` for each shape bucket, and the data files
that they refer to, `weights.data` first of all. An artifact is unpacked once into the cache; afterwards loading it reads only
the manifest.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import zipfile
from pathlib import Path

from bricolage.cache import cache_directory
from bricolage.codec import DecodeError, decode, encode
from bricolage.errors import BadArtifact, MissingFile, NewerArtifact, NotWritable, OlderArtifact
from bricolage.graph.extract import data_files
from bricolage.plan.plan import FORMAT, Plan

SUFFIX = ".bricolage"
MODEL = "model.onnx"
_PLAN = "plan.json"
_MANIFEST = "manifest.json"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # equal contents make equal bytes


def save(plan: Plan, directory: Path, path: Path) -> None:
    """Writes the artifact of `plan`, whose graphs and weights lie in `directory`. Whole or not at all.

    Raises:
        NotWritable: the folder is not writable or the disk is full.
    """
    names = [MODEL, *dict.fromkeys(bucket.graph for bucket in plan.buckets)]
    names += sorted(set[str]().union(*(data_files(directory / name) for name in names)))
    text = json.dumps(encode(plan), indent=1).encode()
    manifest: dict[str, object] = {"format": FORMAT, "members": {}}
    members: dict[str, dict[str, object]] = {}
    members[_PLAN] = {"size": len(text), "sha256": hashlib.sha256(text).hexdigest()}
    for name in names:
        with (directory / name).open("rb") as file:
            members[name] = {
                "size": (directory / name).stat().st_size,
                "sha256": hashlib.file_digest(file, "sha256").hexdigest(),
            }
    manifest["members"] = members
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            archive.writestr(zipfile.ZipInfo(_MANIFEST, _EPOCH), json.dumps(manifest, indent=1))
            archive.writestr(zipfile.ZipInfo(_PLAN, _EPOCH), text, zipfile.ZIP_DEFLATED)
            for name in names:
                info = zipfile.ZipInfo(name, _EPOCH)
                info.file_size = (directory / name).stat().st_size
                with (directory / name).open("rb") as source, archive.open(info, "w") as target:
                    shutil.copyfileobj(source, target, 1 << 20)
        partial.replace(path)
    except OSError as error:
        raise NotWritable(path=path, reason=error.strerror or error) from error
    finally:
        partial.unlink(missing_ok=True)


def load(path: Path) -> tuple[Plan, Path]:
    """The plan of an artifact, and the folder that holds its graphs and weights.

    Raises:
        MissingFile, BadArtifact (truncated, edited, not an artifact), NewerArtifact, OlderArtifact.
    """
    if not path.is_file():
        raise MissingFile(path=path)
    try:
        with zipfile.ZipFile(path) as archive:
            raw = archive.read(_MANIFEST)
            members = _check_manifest(path, raw, archive)
            directory = cache_directory() / "artifacts" / hashlib.sha256(raw).hexdigest()[:32]
            if not directory.is_dir():
                _unpack(path, archive, members, directory)
    except (zipfile.BadZipFile, KeyError, OSError, ValueError, EOFError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise NotWritable(path=cache_directory(), reason=error.strerror) from error
        raise BadArtifact(path=path, reason=str(error) or type(error).__name__) from error
    return read_plan(directory / _PLAN, path), directory


def read_plan(file: Path, shown: Path) -> Plan:
    """A plan from its JSON. `shown` is the path that an error names.

    Raises:
        BadArtifact: it is not a plan.
    """
    try:
        return decode(Plan, json.loads(file.read_text()))
    except (DecodeError, ValueError) as error:
        raise BadArtifact(path=shown, reason=f"its plan is damaged ({error})") from error


def _check_manifest(path: Path, raw: bytes, archive: zipfile.ZipFile) -> dict[str, dict[str, object]]:
    manifest = json.loads(raw)
    if not isinstance(manifest, dict) or not isinstance(manifest.get("format"), int):
        raise ValueError("its manifest is damaged")
    if manifest["format"] > FORMAT:
        raise NewerArtifact(path=path, found=manifest["format"], known=FORMAT)
    if manifest["format"] < FORMAT:
        raise OlderArtifact(path=path, found=manifest["format"], known=FORMAT)
    members = manifest.get("members")
    if not isinstance(members, dict) or not {_PLAN, MODEL} <= set(members):
        raise ValueError("its manifest is damaged")
    for name, entry in members.items():
        if Path(name).name != name:
            raise ValueError(f"member '{name}' has a path")
        if archive.getinfo(name).file_size != entry["size"]:
            raise ValueError(f"member '{name}' has another size than the manifest says")
    return members


def _unpack(path: Path, archive: zipfile.ZipFile, members: dict[str, dict[str, object]], directory: Path) -> None:
    directory.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".unpack-", dir=directory.parent))
    try:
        for name, entry in members.items():
            digest = hashlib.sha256()
            with archive.open(name) as source, (staging / name).open("wb") as target:
                while block := source.read(1 << 20):
                    digest.update(block)
                    target.write(block)
            if digest.hexdigest() != entry["sha256"]:
                raise BadArtifact(path=path, reason=f"member '{name}' was changed after the artifact was made")
        try:
            staging.rename(directory)
        except OSError:
            if not directory.is_dir():  # another process may have been first; its copy is as good
                raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
