"""The networks of the comparison, and data of their kind: what calibration sees, and what it does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from benchmarks.real.catalogue import NETWORKS
from benchmarks.workloads import export, workloads

Arrays = Mapping[str, np.ndarray]
CALIBRATION = range(100, 116)
"""Seeds of the samples that calibration sees."""
HELD_BACK = range(200, 220)
"""Seeds of the samples that it does not see, which answers are compared on; the first is what is timed."""


@dataclass(frozen=True)
class Quantisable:
    """A network of the comparison."""

    name: str
    path: Callable[[], Path]
    """Its file in float32."""
    inputs: Callable[[int], Arrays]
    """From a seed."""
    products_only: bool = False
    """Whether the other tools are told to quantise matrix products alone, as they advise for transformers."""
    trained: bool = True
    """Whether its weights are trained: agreement of untrained ones says nothing."""

    @property
    def sizes(self) -> Mapping[str, tuple[int, ...]]:
        """Of the inputs, by name."""
        return {name: value.shape for name, value in self.inputs(HELD_BACK[0]).items()}

    def fixed(self, to: Path) -> Path:
        """Writes the network with the sizes of its inputs, in opset 17 at least, since other tools' quantisers ask for that; one
        model for all contestants."""
        proto = onnx.load(str(self.path()))
        if next(one.version for one in proto.opset_import if one.domain in ("", "ai.onnx")) < 17:
            proto = onnx.version_converter.convert_version(proto, 17)
        model = ir.from_proto(proto)
        for value in list(model.graph.inputs):
            if value.name not in self.sizes:  # a weight with a default, or what an exporter left behind
                model.graph.inputs.remove(value)
                continue
            value.shape = ir.Shape(self.sizes[value.name or ""])
        found = ir.to_proto(model)
        del found.graph.value_info[:]
        found = onnx.shape_inference.infer_shapes(found)
        onnx.save(found, str(to))
        return to


def _workload(name: str, *, products_only: bool = False, trained: bool = False) -> Quantisable:
    known = workloads()[name]
    return Quantisable(name, lambda: export(known), known.example_inputs, products_only, trained)


def _sentences(seed: int) -> Arrays:
    """Eight sentences of the demo, as long as its longest one. Calibration draws from 24 of them, all else from the other 16."""
    from benchmarks.workloads.minilm import tokenize
    from benchmarks.workloads.sentences import SENTENCES

    seen = seed in CALIBRATION
    rows = [number for number in range(len(SENTENCES)) if (number % 5 < 3) == seen]
    every = tokenize(SENTENCES)
    picked = np.random.default_rng(seed).permutation(rows)[:8]
    return {name: array[picked] for name, array in every.items()}


def _packaged(name: str) -> Quantisable:
    network = next(one for one in NETWORKS if one.name == name)
    return Quantisable(name, network.path, network.inputs)


QUANTISABLES: Mapping[str, Quantisable] = {
    one.name: one
    for one in (
        _workload("resnet-50"),
        _workload("mobilenet-v3"),
        _workload("bert-base", products_only=True),
        replace(_workload("minilm-l6", products_only=True, trained=True), inputs=_sentences),
        *map(_packaged, ("ocr-det", "ocr-rec", "ocr5-rec", "centerface", "opennsfw", "orientation", "nudenet")),
    )
}
