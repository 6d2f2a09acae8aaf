"""The files of one run: weights once, graphs by digest, region models in the same folder. No other process writes models there."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir

from bricolage.base import scratch
from bricolage.errors import NotWritable
from bricolage.graph.extract import content, extract_region, write_content, write_model
from bricolage.graph.graph import Graph, Region
from bricolage.graph.region_model import REGION

WEIGHTS = "weights.data"
_INLINE_BYTES = 1024  # smaller constants (shapes, axes, scalars) stay inside the model, where passes can see them
_ALIGNMENT = 64


class Store:
    """A folder of models that share their weights. Objects of one folder in several processes do not disturb each
    other: what is written is renamed into place, and equal names mean equal contents."""

    def __init__(self, directory: Path) -> None:
        """`directory` exists."""
        self.directory = directory
        self._weights: dict[bytes, tuple[str, int, int]] = {}
        self._regions: dict[str, Path] | None = None
        self._digests: weakref.WeakKeyDictionary[Graph, str] = weakref.WeakKeyDictionary()

    def share(self, models: Sequence[ir.Model], name: str = WEIGHTS, *, temporary: bool = False) -> None:
        """Moves the large constants of `models` into the file `name`, equal ones once and none that the folder holds
        already, and makes the models refer to it; what an earlier call put into a file of that name is gone. Files of
        these models and of their regions are small then, however large the weights are. What is `temporary` is not
        referred to by models that are shared later, so it can be forgotten.

        Raises:
            NotWritable: the disk is full or the folder is not writable.
        """
        target = self.directory / name
        written: dict[bytes, tuple[str, int, int]] = {}
        moved: list[tuple[ir.Value, tuple[str, int, int]]] = []
        read: dict[int, tuple[str, int, int]] = {}
        """By tensor: copies of a model hold the same ones, and hundreds of megabytes are not hashed twice."""
        values = (value for model in models for graph in model.graphs() for value in graph.initializers.values())
        try:
            with scratch.write_whole(target) as partial:
                with partial.open("wb") as file:
                    for value in values:
                        tensor = value.const_value
                        if tensor is None or tensor.nbytes <= _INLINE_BYTES or tensor.dtype == ir.DataType.STRING:
                            continue
                        if isinstance(tensor, ir.ExternalTensor) and self._holds(tensor, other_than=name):
                            continue
                        if id(tensor) in read:
                            moved.append((value, read[id(tensor)]))
                            continue
                        weights = tensor.tobytes()
                        digest = hashlib.sha256(weights).digest()
                        place = written.get(digest) or self._weights.get(digest)
                        if place is None or (place[0] == name and digest not in written):
                            file.write(b"\0" * (-file.tell() % _ALIGNMENT))
                            place = written[digest] = (name, file.tell(), len(weights))
                            file.write(weights)
                        read[id(tensor)] = place
                        moved.append((value, place))
                if not written:
                    partial.unlink()
        except OSError as error:
            raise NotWritable(path=target, reason=error.strerror or error) from error
        if written:
            self._weights = {digest: place for digest, place in self._weights.items() if place[0] != name}
        if not temporary:
            self._weights.update(written)
        for value, (location, offset, length) in moved:
            tensor = value.const_value
            assert tensor is not None
            value.const_value = ir.ExternalTensor(
                location,
                offset,
                length,
                tensor.dtype,
                shape=ir.Shape(tensor.shape.numpy()),
                name=value.name or "",
                base_dir=self.directory,
            )

    def forget(self, name: str) -> None:
        """Removes a temporary weights file that no model needs any more."""
        (self.directory / name).unlink(missing_ok=True)

    def graph(self, graph: Graph) -> str:
        """Writes a graph whose weights are shared, unless it is there; the name of its file, which says what is in it.

        Raises:
            NotWritable: the disk is full or the folder is not writable.
        """
        name = f"graph-{self.digest(graph)}.onnx"
        if not (self.directory / name).exists():
            write_model(graph.model, self.directory / name)
        return name

    def region(self, region: Region, key: str) -> Path:
        """Writes the model of a region with identity `key`, unless it is there; its path. Equal regions differ in
        weights and names of tensors, so the path says which graph it is of, and what is in the file: one that was damaged
        since is written again.

        Raises:
            NotWritable: the disk is full or the folder is not writable.
        """
        origin = hashlib.sha256(f"{self.digest(region.graph)} {region.bits:x}".encode()).hexdigest()[:12]
        start = f"{REGION}{key[:16]}-{origin}"
        if self._regions is None:
            self._regions = {path.name.rpartition("-")[0]: path for path in self.directory.glob(f"{REGION}*.onnx")}
        existing = self._regions.get(start)
        if existing is not None and existing.name == f"{start}-{_digest_of(existing)}.onnx":
            return existing
        whole = content(extract_region(region))
        path = self.directory / f"{start}-{_digest(whole)}.onnx"
        write_content(whole, path)
        self._regions[start] = path
        return path

    def digest(self, graph: Graph) -> str:
        """Hash of a graph as it is written: operators, names, small constants, and where its weights lie."""
        graph_digest = self._digests.get(graph)
        if graph_digest is None:
            text = ir.to_proto(graph.model).SerializeToString(deterministic=True)
            graph_digest = self._digests[graph] = _digest(text)
        return graph_digest

    def _holds(self, tensor: ir.ExternalTensor, *, other_than: str) -> bool:
        return Path(tensor.path).parent == self.directory and Path(tensor.path).name != other_than


def _digest_of(path: Path) -> str:
    """Of a file's contents, as its name says it; empty where it cannot be read."""
    try:
        return _digest(path.read_bytes())
    except OSError:
        return ""


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
