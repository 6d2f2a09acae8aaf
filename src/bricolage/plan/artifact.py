"""Artifacts: a zip with the plan, the graphs and the weights. No pickle, no code, nothing that runs by being loaded.

Members: `manifest.json` (format, and size and SHA-256 of every other member), `plan.json`, `model.onnx` (the whole model as
it came, symbolic dimensions kept), one `graph-DIGEST.onnx` for each shape bucket, and the data files
that they refer to, `weights.data` first of all. A pack (`pack.py`) has further plans and an index of
them. All but the first plan are stored as they are, without compression.

An artifact may come from a stranger. It is unpacked once into the cache, and then looked at from top to bottom (`contents`);
afterwards loading it reads the manifest and checks that the unpacked folder is as it was.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import shutil
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeGuard

from bricolage.base import scratch, sealed
from bricolage.base.cache import cache_directory, discard
from bricolage.base.codec import DecodeError, Length, Matching, Within, decode, encode, parse
from bricolage.base.late_imports import require_dependency
from bricolage.errors import (
    BadArtifact,
    CacheNotWritable,
    MissingFile,
    NewerArtifact,
    NoTarget,
    NotPack,
    NotWritable,
    OlderArtifact,
    UnreadableArtifact,
)
from bricolage.graph.region_model import REGION
from bricolage.plan.pack import INDEX, Pack
from bricolage.plan.plan import FORMAT, Plan
from bricolage.plan.program_step import MODEL_FILE, USER_DATA, USER_FILE

_LOG = logging.getLogger(__name__)
SUFFIX = ".bricolage"
PACK_SUFFIX = ".pack"
MODEL = MODEL_FILE
PLAN = "plan.json"
_MANIFEST = "manifest.json"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # equal contents make equal bytes
_LARGEST_TEXT = 64 << 20
"""Bytes of a plan or a manifest: several times those of 10,000 regions."""
_MOST_EXPANDED = 100
"""Times that a plan may be larger than it is compressed; plans of thousands of regions are some 20 times."""
_MOST_MEMBERS = 100_000
_BLOCK = 1 << 20


@dataclass(frozen=True)
class _Member:
    size: Annotated[int, Within(0, 2**62)]
    sha256: Annotated[str, Matching(r"[0-9a-f]{64}", "SHA-256 digest")]


@dataclass(frozen=True)
class _Manifest:
    format: Annotated[int, Within(FORMAT, FORMAT)]
    members: Annotated[
        Mapping[Annotated[str, Matching(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}", "file's name")], _Member],
        Length(2, _MOST_MEMBERS),
    ]

    def __post_init__(self) -> None:
        for name in (PLAN, MODEL):
            if name not in self.members:
                raise ValueError(f"it has no {name}")


def save(plan: Plan, directory: Path, path: Path, pack: Pack | None = None, plans: Sequence[Plan] = ()) -> None:
    """Writes the artifact of `plan`, whose graphs and weights lie in `directory`: whole or not at all, and only what
    `load_artifact` would take. With a `pack` that of its `plans`, in the order of its entries, of which `plan` is the first.

    Raises:
        UnreadableArtifact: it would not take it.
        NotWritable: the folder is not writable or the disk is full.
    """
    from bricolage.graph.extract import data_files
    from bricolage.plan import contents

    every = plans or (plan,)
    names = [MODEL, *dict.fromkeys(bucket.program.graph for packed_plan in every for bucket in packed_plan.buckets)]
    if any(contents.hands_file_through(bucket) for packed_plan in every for bucket in packed_plan.buckets):
        names += [USER_FILE, *sorted(data_path.name for data_path in directory.glob(USER_DATA))]
    names += sorted(
        set[str]().union(*(data_files(directory / name) for name in names if name.endswith(".onnx"))) - {*names}
    )
    files = [PLAN] if pack is None else [entry.plan for entry in pack.entries]
    texts = {
        at: json.dumps(encode(packed_plan), indent=1).encode() for at, packed_plan in zip(files, every, strict=True)
    }
    if pack is not None:
        texts[INDEX] = json.dumps(encode(pack), indent=1).encode()
    members = {name: _Member(len(text), hashlib.sha256(text).hexdigest()) for name, text in texts.items()}
    try:
        for at in files:
            contents.check_contents(decode(Plan, parse(texts[at])), directory, names)
    except (DecodeError, contents.WrongContents) as error:
        raise UnreadableArtifact(path=path, reason=error) from error
    for name in names:
        with (directory / name).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            members[name] = _Member(os.fstat(file.fileno()).st_size, digest)
    try:
        with scratch.write_whole(path) as partial, partial.open("wb") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
                manifest = json.dumps(encode(_Manifest(FORMAT, members)), indent=1)
                archive.writestr(zipfile.ZipInfo(_MANIFEST, _EPOCH), manifest)
                for name, text in texts.items():
                    kind = zipfile.ZIP_DEFLATED if name == PLAN else zipfile.ZIP_STORED
                    archive.writestr(zipfile.ZipInfo(name, _EPOCH), text, kind)
                for name in names:
                    info = zipfile.ZipInfo(name, _EPOCH)
                    info.file_size = members[name].size
                    with (directory / name).open("rb") as source, archive.open(info, "w") as target:
                        shutil.copyfileobj(source, target, _BLOCK)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise NotWritable(path=path, reason=error.strerror or error) from error


def load_artifact(path: Path, *, elsewhere: bool = False) -> tuple[Plan, Path]:
    """The plan of an artifact, and the folder that holds its graphs and weights: in the cache, or a temporary one of this process
    where the cache cannot be written, and where it is to lie `elsewhere`.

    Raises:
        MissingFile, BadArtifact (truncated, edited, not an artifact), NewerArtifact, OlderArtifact.
        CacheNotWritable: neither the cache nor the folder for temporary files can hold it.
        UnsafeCache: the cache is not this user's alone.
    """
    if not path.is_file():
        raise MissingFile(path=path)
    cache = cache_directory()
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            entries = _entries(archive, os.fstat(file.fileno()).st_size)
            raw = _read(archive, entries, _MANIFEST)
            members = _manifest(path, raw).members
            _compare(entries, members)
            name = hashlib.sha256(raw).hexdigest()[:32]
            directory = cache / "artifacts" / name
            if elsewhere or not (is_unpacked(directory) and os.access(directory, os.W_OK)):
                directory = _unpack_members(archive, entries, members, directory, elsewhere)
    except (
        zipfile.BadZipFile,
        zlib.error,
        DecodeError,
        EOFError,
        NotImplementedError,
        RuntimeError,
        ValueError,
    ) as error:
        # Of damaged archives, zipfile makes all of these and OSError: a place in the file before its beginning, for one.
        raise BadArtifact(path=path, reason=str(error) or type(error).__name__) from error
    except OSError as error:
        raise BadArtifact(path=path, reason=f"it cannot be read ({error.strerror or error})") from error
    except MemoryError as error:
        raise BadArtifact(path=path, reason="it does not fit into memory") from error
    return read_plan(directory / PLAN, path), directory


def is_named(source: object) -> TypeGuard[str | Path]:
    """Whether something is the path of an artifact, or of a pack, rather than a model."""
    return isinstance(source, str | Path) and Path(source).suffix in (SUFFIX, PACK_SUFFIX)


def plans(path: Path, target: str = "") -> tuple[dict[str, Plan], Path]:
    """The plans of a pack by the names of their targets, that of `target` alone where it is named; of an artifact with one plan
    that one, under the empty name. And the folder as `load_artifact` has it.

    Raises:
        As `load_artifact`; NoTarget: the pack has none of this name; NotPack: a target is named, and there is one plan.
    """
    plan, directory = load_artifact(path)
    pack = read_pack(directory)
    if pack is None:
        if target:
            raise NotPack(path=path, option="target")
        return {"": plan}, directory
    entries = {entry.target.name: entry for entry in pack.entries if target in ("", entry.target.name)}
    if not entries:
        target_names = ", ".join(entry.target.name for entry in pack.entries)
        raise NoTarget(reason=f"it has no target '{target}', only {target_names}")
    return {name: read_plan(directory / pack_entry.plan, path) for name, pack_entry in entries.items()}, directory


def is_unpacked(directory: Path) -> bool:
    """Whether a folder is an unpacked artifact as it was when it was unpacked. Models of its regions may lie there, too: their
    names say what is in them."""
    return sealed.intact(directory, ignored=REGION)


def is_kept(directory: Path) -> bool:
    """Whether a folder is where `load_artifact` keeps an artifact in the cache: its name is a hash of what is in it."""
    return directory.parent == cache_directory() / "artifacts"


def read_plan(file: Path, shown: Path) -> Plan:
    """A plan from its JSON. `shown` is the path that an error names.

    Raises:
        BadArtifact: it is not a plan.
    """
    try:
        return decode(Plan, parse(file.read_bytes()))
    except DecodeError as error:
        raise BadArtifact(path=shown, reason=f"its plan is damaged ({error})") from error


def read_pack(directory: Path) -> Pack | None:
    """What is in the pack that is unpacked there; None of an artifact with one plan.

    Raises:
        BadArtifact: its index is damaged.
    """
    if not (directory / INDEX).is_file():
        return None
    try:
        return _index(directory)
    except DecodeError as error:
        raise BadArtifact(path=directory / INDEX, reason=str(error)) from error


def _index(directory: Path) -> Pack:
    return decode(Pack, parse((directory / INDEX).read_bytes()), "its index")


def _entries(archive: zipfile.ZipFile, size: int) -> dict[str, zipfile.ZipInfo]:
    """The members of an archive by name.

    Raises:
        BadZipFile: there are too many, or two of one name, or one is a link, is compressed, or is not in the file as it says.
    """
    entries: dict[str, zipfile.ZipInfo] = {}
    if len(archive.filelist) > _MOST_MEMBERS + 1:
        raise zipfile.BadZipFile(f"it has {len(archive.filelist)} members")
    for info in archive.filelist:
        if info.orig_filename in entries:
            raise zipfile.BadZipFile(f"it has two members '{info.orig_filename}'")
        compressed = info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size
        if compressed and not (info.orig_filename == PLAN and info.compress_type == zipfile.ZIP_DEFLATED):
            raise zipfile.BadZipFile(f"member '{info.orig_filename}' is compressed")
        if compressed and info.file_size > max(_MOST_EXPANDED * info.compress_size, _BLOCK):
            raise zipfile.BadZipFile(f"{PLAN} unpacks to {info.file_size} bytes from {info.compress_size}")
        if info.flag_bits & 0x1:
            raise zipfile.BadZipFile(f"member '{info.orig_filename}' is encrypted")
        if (info.external_attr >> 16) & 0o170000 not in (0, 0o100000):
            raise zipfile.BadZipFile(f"member '{info.orig_filename}' is no file")
        entries[info.orig_filename] = info
    # What is not compressed cannot be larger than the file; members that share its bytes could be.
    if sum(info.compress_size for info in entries.values()) > size:
        raise zipfile.BadZipFile("its members are larger than the file")
    return entries


def _read(archive: zipfile.ZipFile, entries: Mapping[str, zipfile.ZipInfo], name: str) -> bytes:
    info = entries.get(name)
    if info is None:
        raise zipfile.BadZipFile(f"it has no {name}")
    if info.file_size > _LARGEST_TEXT:
        raise zipfile.BadZipFile(f"{name} has {info.file_size} bytes")
    return archive.read(info)


def _manifest(path: Path, raw: bytes) -> _Manifest:
    manifest = parse(raw)
    written = manifest.get("format") if isinstance(manifest, dict) else None
    if type(written) is int and written > FORMAT:
        raise NewerArtifact(path=path, found=written, known=FORMAT)
    if type(written) is int and 0 < written < FORMAT:
        raise OlderArtifact(path=path, found=written, known=FORMAT)
    return decode(_Manifest, manifest, "its manifest")


def _compare(entries: Mapping[str, zipfile.ZipInfo], members: Mapping[str, _Member]) -> None:
    """Whether an archive holds what its manifest says, and nothing else."""
    for name in entries:
        if name != _MANIFEST and name not in members:
            raise zipfile.BadZipFile(f"member '{name}' is not in the manifest")
    for name, member in members.items():
        if name not in entries:
            raise zipfile.BadZipFile(f"member '{name}' is missing")
        if entries[name].file_size != member.size:
            raise zipfile.BadZipFile(f"member '{name}' has another size than the manifest says")
    for name, member in members.items():
        if name.endswith(".json") and member.size > _LARGEST_TEXT:
            raise zipfile.BadZipFile(f"{name} has {member.size} bytes")


def _unpack_members(
    archive: zipfile.ZipFile,
    entries: Mapping[str, zipfile.ZipInfo],
    members: Mapping[str, _Member],
    directory: Path,
    elsewhere: bool,
) -> Path:
    """The folder with the members, checked: `directory`, or one of the same name among temporary files."""
    if not elsewhere:
        try:
            _unpack(archive, entries, members, directory)
            return directory
        except _Unwritable as error:
            _LOG.warning("%s", CacheNotWritable(path=directory.parent.parent, reason=error.reason))
    try:
        temporary = _temporary(os.getpid()) / directory.name
        if not is_unpacked(temporary):
            _unpack(archive, entries, members, temporary)
    except _Unwritable as error:
        raise CacheNotWritable(path=directory.parent.parent, reason=error.reason) from error
    return temporary


class _Unwritable(Exception):
    """A folder cannot hold an artifact."""

    def __init__(self, error: OSError) -> None:
        self.reason = error.strerror or str(error)
        super().__init__(self.reason)


def _unpack(
    archive: zipfile.ZipFile, entries: Mapping[str, zipfile.ZipInfo], members: Mapping[str, _Member], directory: Path
) -> None:
    with require_dependency("to look at an artifact's graphs before its first run on a machine"):
        from bricolage.plan import contents  # here: what was unpacked is loaded without reading a graph

    discard(directory)
    try:
        with sealed.making(directory) as folder:
            for name, member in members.items():
                digest = hashlib.sha256()
                with (folder / name).open("xb") as target:
                    for block in _blocks(archive, entries[name]):
                        digest.update(block)
                        target.write(block)
                if digest.hexdigest() != member.sha256:
                    raise zipfile.BadZipFile(f"member '{name}' was changed after the artifact was made")
            index = _index(folder) if INDEX in members else None
            files = [PLAN] if index is None else [entry.plan for entry in index.entries]
            if not set(files) <= set(members) or PLAN not in files:
                raise zipfile.BadZipFile(f"{INDEX} names plans that are not there")
            for file in files:
                plan = decode(Plan, parse((folder / file).read_bytes()))
                contents.check_contents(plan, folder, frozenset(members) - {*files, INDEX})
    except contents.WrongContents as error:
        raise zipfile.BadZipFile(str(error)) from error
    except OSError as error:  # of writing: those of reading are told apart below
        raise _Unwritable(error) from error


def _blocks(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Iterator[bytes]:
    try:
        with archive.open(info) as source:
            while block := source.read(_BLOCK):
                yield block
    except OSError as error:
        raise zipfile.BadZipFile(f"member '{info.orig_filename}' cannot be read ({error.strerror or error})") from error


@functools.cache
def _temporary(process: int) -> Path:
    """The folder of a process for what the cache cannot hold. It goes with the process.

    Raises:
        _Unwritable: there is no place for temporary files.
    """
    del process
    try:
        return scratch.temporary()
    except OSError as error:
        raise _Unwritable(error) from error
