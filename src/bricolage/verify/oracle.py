"""The oracle: for every region that is measured, real inputs and the float64 outputs that it must reproduce."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path

import numpy as np

from bricolage.graph.extract import extract
from bricolage.graph.graph import Graph, TensorInfo, describe
from bricolage.graph.region import Region
from bricolage.graph.store import Store
from bricolage.verify.compare import acceptance_bound, relative_error
from bricolage.verify.reference import evaluate
from bricolage.verify.tensors import save_tensors


class Oracle:
    """The reference values of one graph on one set of inputs, computed when they are first needed.

    Regions get the values that flow into them in the float64 run, rounded to the graph's own types, and must reproduce
    what float64 makes of exactly these. So a region is judged on realistic numbers, and by its own error alone. A rewritten
    graph as a whole is judged by what float64 makes of the `original`.
    """

    def __init__(
        self,
        graph: Graph,
        inputs: Mapping[str, np.ndarray],
        store: Store,
        bound: float,
        model: str,
        name: str = "original",
        original: Oracle | None = None,
    ) -> None:
        """`bound`: relative error that is accepted whatever the original's own. `model`: digest of the model with its weights.
        `name`: of the graph, in names of files."""
        self.graph = graph
        self.store = store
        self._name, self._model = name, model
        self._original = original
        self._inputs = dict(inputs)
        self._bound = bound
        self._values: dict[str, np.ndarray] = {}
        self._whole: tuple[float, dict[str, np.ndarray]] | None = None
        self._files: dict[int, tuple[Path, Path, float]] = {}

    def of(self, name: str, graph: Graph) -> Oracle:
        """The oracle of an equal graph, which is judged by this one's reference."""
        return Oracle(graph, self._inputs, self.store, self._bound, self._model, name, self)

    def compute(self) -> None:
        """Computes the whole model's reference now."""
        self._reference()

    @property
    def original_error(self) -> float:
        """Relative error of the original model, evaluated as it stands, against float64."""
        return self._reference()[0]

    @property
    def bound(self) -> float:
        """Relative error accepted for the whole model."""
        return acceptance_bound(self._bound, self.original_error)

    @cached_property
    def _data(self) -> str:
        digest = hashlib.sha256(self._model.encode())
        for name, array in sorted(self._inputs.items()):
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(
                np.ascontiguousarray(array).tobytes() if array.dtype != object else str(array.tolist()).encode()
            )
        return digest.hexdigest()[:24]

    def data(self, region: Region) -> str:
        """Digest of the values behind a region's reference: the model's weights, its inputs, and where in the model
        the region lies. The error of an answer holds for these only. Every variant of the graph as a whole has that
        of the original."""
        if region.bits == self.graph.everything.bits:
            return self._data
        return f"{self._data}-{self._name}-{hashlib.sha256(f'{region.bits:x}'.encode()).hexdigest()[:12]}"

    def remember(self, regions: Iterable[Region]) -> None:
        """Computes, in one run, the values that flow into these regions."""
        needed = {value.name or "" for region in regions for value in region.inputs}
        missing = needed - set(self._values) - set(self._inputs)
        if missing:
            found = evaluate(self.graph.model, self._inputs, dtype=np.float64, keep=missing)
            types = {info.name: info.numpy for info in self._infos(missing)}
            self._values.update({name: found[name].astype(types[name], copy=False) for name in missing})

    def entering(self, region: Region) -> dict[str, np.ndarray]:
        """The values that flow into a region, by name."""
        self.remember([region])
        names = [value.name or "" for value in region.inputs]
        return {name: self._inputs[name] if name in self._inputs else self._values[name] for name in names}

    def files(self, region: Region) -> tuple[Path, Path, float]:
        """Paths of the region's inputs and expected outputs (.npz), and the relative error accepted."""
        if region.bits not in self._files:
            if region.bits == self.graph.everything.bits and self._original is not None:
                self._files[region.bits] = self._original.files(self._original.graph.everything)
            elif region.bits == self.graph.everything.bits:
                _, expected = self._reference()
                self._files[region.bits] = (*self._write("whole", self._inputs, expected), self.bound)
            else:
                inputs = self.entering(region)
                model = extract(region)
                expected = evaluate(model, inputs, dtype=np.float64)
                own = evaluate(model, inputs, dtype=np.float32)
                outputs = [value.name or "" for value in region.outputs]
                error = relative_error([own[name] for name in outputs], [expected[name] for name in outputs])
                name = f"oracle-{self._name}-{len(self._files)}"
                self._files[region.bits] = (*self._write(name, inputs, expected), acceptance_bound(self._bound, error))
        return self._files[region.bits]

    def _reference(self) -> tuple[float, dict[str, np.ndarray]]:
        if self._original is not None:
            return self._original._reference()
        if self._whole is None:
            names = [info.name for info in self.graph.outputs]
            expected = evaluate(self.graph.model, self._inputs, dtype=np.float64)
            own = evaluate(self.graph.model, self._inputs, dtype=np.float32)
            error = relative_error([own[name] for name in names], [expected[name] for name in names])
            self._whole = (error, {name: expected[name] for name in names})
        return self._whole

    def _write(
        self, name: str, inputs: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]
    ) -> tuple[Path, Path]:
        paths = self.store.directory / f"{name}-inputs.npz", self.store.directory / f"{name}-expected.npz"
        for path, tensors in zip(paths, (inputs, expected), strict=True):
            save_tensors(path, tensors)
        return paths

    def _infos(self, names: set[str]) -> Iterable[TensorInfo]:
        for operator in self.graph.operators:
            for value in operator.outputs:
                if value.name in names:
                    yield describe(value)
