"""The networks of the comparison, data of their kind (what calibration sees, and what it does not), and what is counted of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from benchmarks.integers import images, measures
from benchmarks.real.catalogue import NETWORKS
from benchmarks.workloads import export, workloads

Arrays = Mapping[str, np.ndarray]
CALIBRATION = range(100, 116)
"""Seeds of the samples that calibration sees."""
HELD_BACK = range(200, 220)
"""Seeds of the samples that it does not see, which answers are compared on; the first is what is timed."""
JUDGING = range(1000, 1064)
"""Seeds of samples like those that calibration sees, on which it is found what stays float for a measure."""
_MANY = range(200, 300)
"""As many as a share of 99 % asks for."""


@dataclass(frozen=True)
class Measure:
    """What is counted of a network's answers, and how many have to be the same."""

    counts: str
    word: str
    """As `--accuracy` takes it."""


def _function(name: str, least: float) -> str:
    return f"{Path(measures.__file__)}:{name}>={least}"


TOP1 = Measure("largest outputs", "top1=0.99")
TEXT = Measure("lines with the same text", _function("same_text", 0.98))
REGIONS = Measure("text regions", _function("same_regions", 0.95))
FACES = Measure("faces", _function("same_faces", 0.95))
OBJECTS = Measure("boxes", _function("same_objects", 0.95))
NEIGHBOURS = Measure("nearest neighbours", _function("same_neighbours", 0.95))


@dataclass(frozen=True)
class Quantisable:
    """A network of the comparison."""

    name: str
    path: Callable[[], Path]
    """Its file in float32."""
    inputs: Callable[[int], Arrays]
    """From a seed."""
    measure: Measure = TOP1
    products_only: bool = False
    """Whether the other tools are told to quantise matrix products alone, as they advise for transformers."""
    trained: bool = True
    """Whether its weights are trained: agreement of untrained ones says nothing."""
    held_back: range = HELD_BACK
    """Seeds of the samples that answers are compared on."""

    @property
    def sizes(self) -> Mapping[str, tuple[int, ...]]:
        """Of the inputs, by name."""
        return {name: value.shape for name, value in self.inputs(self.held_back[0]).items()}

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
        for value in model.graph.outputs:
            value.shape = None  # what an exporter wrote holds for its own sizes
        found = ir.to_proto(model)
        del found.graph.value_info[:]
        found = onnx.shape_inference.infer_shapes(found)
        onnx.save(found, str(to))
        return to


def _workload(name: str, *, products_only: bool = False) -> Quantisable:
    known = workloads()[name]
    return Quantisable(name, lambda: export(known), known.example_inputs, products_only=products_only, trained=False)


def _sentences(seed: int) -> Arrays:
    """Eight sentences, as long as the longest one: those of the demo in turn, for calibration others."""
    from benchmarks.integers.sentences import CALIBRATING
    from benchmarks.workloads.minilm import tokenize
    from benchmarks.workloads.sentences import SENTENCES

    every = tokenize([*SENTENCES, *CALIBRATING])
    if seed in CALIBRATION:
        rows = len(SENTENCES) + np.random.default_rng(seed).permutation(len(CALIBRATING))[:8]
    else:
        rows = (np.arange(8) + 8 * seed) % len(SENTENCES)
    return {name: array[rows] for name, array in every.items()}


def _normalised(
    image: images.Image, mean: float | tuple[float, ...], deviation: float | tuple[float, ...]
) -> np.ndarray:
    """(1, 3, height, width)."""
    scaled = (image / 255.0 - np.asarray(mean)) / np.asarray(deviation)
    return np.ascontiguousarray(scaled.transpose(2, 0, 1)[None], np.float32)


_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def _drawn(name: str, draw: Callable[[np.random.Generator, bool], np.ndarray]) -> Callable[[int], Arrays]:
    """`draw`: from what calibration sees, or from what it does not."""
    return lambda seed: {name: draw(np.random.default_rng(seed), seed in CALIBRATION or seed in JUDGING)}


def _line(rng: np.random.Generator, seen: bool) -> np.ndarray:
    """(1, 3, 48, 320), right of the line zeros, as PaddleOCR has it."""
    found = _normalised(images.line(rng, 48, 320, seen=seen), 0.5, 0.5)
    return np.pad(found, ((0, 0), (0, 0), (0, 0), (0, 320 - found.shape[3])))


def _line_either_way(rng: np.random.Generator, seen: bool) -> np.ndarray:
    """(1, 3, 48, 192), upright or upside down."""
    found = _normalised(_turned(images.line(rng, 48, 192, seen=seen), 2 * int(rng.integers(2))), 0.5, 0.5)
    return np.pad(found, ((0, 0), (0, 0), (0, 0), (0, 192 - found.shape[3])))


def _stretched_line_either_way(rng: np.random.Generator, seen: bool) -> np.ndarray:
    """(1, 3, 80, 160), upright or upside down."""
    found = images.resized(images.line(rng, 48, 320, seen=seen), 80, 160)
    return _normalised(_turned(found, 2 * int(rng.integers(2))), *_IMAGENET)


def _turned(image: images.Image, quarters: int) -> images.Image:
    return np.rot90(image, quarters).copy()


def _page(rng: np.random.Generator, seen: bool) -> np.ndarray:
    return _normalised(images.page(rng, 320, 320, seen=seen), 0.5, 0.5)


def _page_any_way(rng: np.random.Generator, seen: bool) -> np.ndarray:
    return _normalised(_turned(images.page(rng, 224, 224, seen=seen), int(rng.integers(4))), *_IMAGENET)


def _people(height: int, width: int, scale: float) -> Callable[[np.random.Generator, bool], np.ndarray]:
    return lambda rng, seen: _normalised(images.people(rng, height, width, seen=seen), 0.0, scale)


def _channels_last(rng: np.random.Generator, seen: bool) -> np.ndarray:
    """(1, 224, 224, 3): blue first, less Caffe's means."""
    image = images.people(rng, 224, 224, seen=seen)[..., ::-1]
    found: np.ndarray = (image - np.asarray((104.0, 117.0, 123.0)))[None].astype(np.float32)
    return found


def _packaged(name: str, inputs: Callable[[int], Arrays], measure: Measure = TOP1) -> Quantisable:
    network = next(one for one in NETWORKS if one.name == name)
    return Quantisable(name, network.path, inputs, measure, held_back=_MANY)


QUANTISABLES: Mapping[str, Quantisable] = {
    one.name: one
    for one in (
        _workload("resnet-50"),
        _workload("mobilenet-v3"),
        _workload("bert-base", products_only=True),
        replace(
            _workload("minilm-l6", products_only=True),
            inputs=_sentences,
            measure=NEIGHBOURS,
            trained=True,
            held_back=range(200, 205),
        ),
        _packaged("ocr-det", _drawn("x", _page), REGIONS),
        _packaged("ocr-rec", _drawn("x", _line), TEXT),
        _packaged("ocr-cls", _drawn("x", _line_either_way)),
        _packaged("ocr5-rec", _drawn("x", _line), TEXT),
        _packaged("ocr5-cls", _drawn("x", _stretched_line_either_way)),
        _packaged("centerface", _drawn("input.1", _people(320, 320, 1 / 255)), FACES),
        _packaged("opennsfw", _drawn("input:0", _channels_last)),
        _packaged("orientation", _drawn("x", _page_any_way)),
        _packaged("nudenet", _drawn("images", _people(320, 320, 1.0)), OBJECTS),
    )
}
GROUPS: Mapping[str, tuple[str, ...]] = {
    "untrained": ("resnet-50", "mobilenet-v3"),
    "languages": ("minilm-l6", "bert-base"),
    "texts": ("ocr-rec", "ocr5-rec", "ocr-det"),
    "classifiers": ("ocr-cls", "ocr5-cls", "orientation", "opennsfw"),
    "detectors": ("centerface", "nudenet"),
}
"""Networks that are compared in one run of less than ten minutes."""
