"""Files that travel between machines, each under the SHA-256 digest of its contents: a machine that has it never gets it again,
and what arrives is checked.

The model of a region refers to its weights by place in a file that all regions share. On its way every tensor is a file of its
own, so that regions that overlap bring their weights once to a node.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import onnx

from bricolage.backends.content import tensors
from bricolage.base import scratch, sealed

_NAME = re.compile(r"[0-9a-f]{64}(\.onnx|\.npz)?")
_FOLDER = re.compile(r"\w[\w.-]{0,200}")


@dataclass(frozen=True)
class Parcel:
    """The model of a region, by its name on the way."""

    name: str
    needs: tuple[str, ...]
    """Names of all files, its own too."""


@dataclass(frozen=True)
class _Part:
    path: Path
    offset: int
    size: int


class Sender:
    """What can be sent, by name: files, parts of them, and models of regions. Every part is read through once, to name it."""

    def __init__(self) -> None:
        self._parts: dict[str, _Part | bytes] = {}
        self._names: dict[tuple[Path, int, int, int, int], str] = {}
        self._regions: dict[Path, Parcel] = {}

    def file(self, path: Path, suffix: str) -> str:
        """A whole file."""
        return self._name(path, 0, path.stat().st_size, suffix)

    def region(self, path: Path) -> Parcel:
        """The model of a region, whose name on disk says what is in it, with its weights."""
        if path not in self._regions:
            proto = onnx.load(str(path), load_external_data=False)
            needs: dict[str, None] = {}
            for tensor in tensors(proto.graph):
                if tensor.data_location != onnx.TensorProto.EXTERNAL:
                    continue
                where = {entry.key: entry.value for entry in tensor.external_data}
                file, offset = path.parent / where["location"], int(where.get("offset", 0))
                size = int(where["length"]) if "length" in where else file.stat().st_size - offset
                name = self._name(file, offset, size, "")
                needs[name] = None
                del tensor.external_data[:]
                for key, value in (("location", name), ("offset", "0"), ("length", str(size))):
                    tensor.external_data.add(key=key, value=value)
            content = proto.SerializeToString(deterministic=True)
            model = name_of(content, ".onnx")
            self._parts[model] = content
            self._regions[path] = Parcel(model, (model, *needs))
        return self._regions[path]

    def read(self, name: str) -> bytes:
        """What is sent under a name.

        Raises:
            OSError, ValueError: the file has gone, or holds something else by now.
        """
        part = self._parts[name]
        if isinstance(part, bytes):
            return part
        content = _read(part)
        if name_of(content, Path(name).suffix) != name:
            raise ValueError(f"'{part.path}' has changed")
        return content

    def _name(self, path: Path, offset: int, size: int, suffix: str) -> str:
        facts = path.stat()
        key = (path, facts.st_ino, facts.st_mtime_ns, offset, size)
        if key not in self._names:
            part = _Part(path, offset, size)
            self._names[key] = name_of(_read(part), suffix)
            self._parts[self._names[key]] = part
        return self._names[key]


class Received:
    """A folder with what has arrived."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, name: str, content: bytes) -> None:
        """Writes a file, whole or not at all.

        Raises:
            ValueError: these are not the contents of that name.
            OSError: the disk is full.
        """
        if not _NAME.fullmatch(name) or name_of(content, Path(name).suffix) != name:
            raise ValueError(f"what arrived as '{name[:80]}' is something else")
        if not self.path(name).exists():
            with scratch.write_whole(self.path(name)) as partial:
                partial.write_bytes(content)

    def path(self, name: str) -> Path:
        """Where a file lies once it has arrived."""
        return self._folder / name

    def read(self, name: str) -> bytes:
        """What has arrived under a name."""
        return self.path(name).read_bytes()


def name_of(content: bytes, suffix: str = "") -> str:
    """The name of contents on their way."""
    return hashlib.sha256(content).hexdigest() + suffix


def pack_folder(folder: Path) -> tuple[dict[str, str], dict[str, bytes]]:
    """A sealed folder as the names of its contents by relative path, and the contents by name."""
    files: dict[str, str] = {}
    contents: dict[str, bytes] = {}
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder).as_posix()
        if path.is_file() and not path.is_symlink() and relative != sealed.SEAL:
            content = path.read_bytes()
            files[relative] = name_of(content)
            contents[files[relative]] = content
    return files, contents


def install(parent: Path, folder: str, files: Mapping[str, str], read: Callable[[str], bytes]) -> bool:
    """Makes a sealed folder of what `pack_folder` gave, unless it is there; whether it was made.

    Raises:
        ValueError: a name leads elsewhere, or a file is not what its name says.
        OSError: the disk is full.
    """
    if not _FOLDER.fullmatch(folder) or not files:
        raise ValueError(f"'{folder[:80]}' is no folder of compiled code")
    for relative in files:
        parts = PurePosixPath(relative).parts
        if not parts or parts[0] == "/" or ".." in parts or "\0" in relative or relative == sealed.SEAL:
            raise ValueError(f"'{relative[:80]}' is no file of a folder")
    if sealed.intact(parent / folder):
        return False
    with sealed.making(parent / folder) as staging:
        for relative, name in files.items():
            content = read(name)
            if name_of(content) != name:
                raise ValueError(f"'{relative[:80]}' is not what was sent")
            (staging / relative).parent.mkdir(parents=True, exist_ok=True)
            (staging / relative).write_bytes(content)
            os.chmod(staging / relative, 0o700)  # libraries are mapped as programs
    return True


def _read(part: _Part) -> bytes:
    with part.path.open("rb") as file:
        file.seek(part.offset)
        return file.read(part.size)
