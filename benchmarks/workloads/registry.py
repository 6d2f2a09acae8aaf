"""The table of workloads. Building one imports PyTorch; listing them does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from benchmarks.workloads import inputs

if TYPE_CHECKING:
    import torch

Family = Literal["six", "collage", "light", "demo", "rewriting", "recurrent", "wide", "published", "fragile"]
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Workload:
    """A network with seeded weights and seeded inputs, batch 1 unless its dimensions are symbolic.

    build           the network as a PyTorch module in eval mode; its positional arguments are `input_names`
    example_inputs  seed -> one set of inputs by name; equal seeds give equal arrays
    gflops          floating-point operations of one run on `example_inputs(0)`, in 10^9 (a multiply-add counts as two;
                    convolutions and matrix products only)
    write           how to write the ONNX file, where it is not exported from `build`
    symbolic        names of the leading dimensions of every input, where they are symbolic
    """

    name: str
    family: Family
    build: Callable[[], torch.nn.Module]
    example_inputs: Callable[[int], Arrays]
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    gflops: float
    write: Callable[[Path], None] | None = None
    symbolic: tuple[str, ...] = ()


@cache
def workloads() -> Mapping[str, Workload]:
    """Every workload by name: the six, the paper's five, the nine light networks, the demo, those of `rewriting`, the recurrent
    ones, ten for breadth, and ten whose kernels others counted."""
    table = [*_six(), *_collage(), *_light(), _demo(), *_rewriting(), *_recurrent(), *_wide(), *_published()]
    return MappingProxyType({workload.name: workload for workload in table})


def _built_by(module: str, function: str, *arguments: str) -> Callable[[], torch.nn.Module]:
    """A builder that imports its module, and with it PyTorch, when it is called."""
    return lambda: getattr(import_module(f"benchmarks.workloads.{module}"), function)(*arguments)


def _smooth(name: str, *shape: int) -> Callable[[int], Arrays]:
    return lambda seed: {name: inputs.smooth_noise(shape, seed)}


def _normal(name: str, *shape: int) -> Callable[[int], Arrays]:
    return lambda seed: {name: inputs.normal(shape, seed)}


def _sentence(seed: int) -> Arrays:
    """128 tokens with the last 28 masked out, as a padded sentence has."""
    mask = (np.arange(128) < 100).astype(np.int64)[None]
    return {"input_ids": inputs.tokens((1, 128), seed, vocabulary=30522), "attention_mask": mask}


def _six() -> list[Workload]:
    image, logits = ("image",), ("logits",)
    return [
        Workload(
            "bert-base",
            "six",
            _built_by("bert", "bert_base"),
            _sentence,
            ("input_ids", "attention_mask"),
            ("last_hidden_state", "pooler_output"),
            22.35,
        ),
        Workload(
            "dcgan", "six", _built_by("dcgan", "dcgan"), _normal("latent", 1, 100, 1, 1), ("latent",), image, 0.21
        ),
        Workload(
            "nasnet-a-large",
            "six",
            _built_by("nasnet", "nasnet_a_large"),
            _smooth("image", 1, 3, 331, 331),
            image,
            logits,
            47.57,
        ),
        Workload(
            "resnet3d-50",
            "six",
            _built_by("resnet", "resnet3d50"),
            _smooth("clip", 1, 3, 3, 224, 224),
            ("clip",),
            logits,
            30.06,
        ),
        Workload(
            "resnext-50",
            "six",
            _built_by("resnet", "resnext50"),
            _smooth("image", 1, 3, 224, 224),
            image,
            logits,
            8.46,
        ),
        Workload(
            "resnet-50",
            "six",
            _built_by("resnet", "resnet50"),
            _smooth("image", 1, 3, 224, 224),
            image,
            logits,
            8.18,
        ),
    ]


def _collage() -> list[Workload]:
    x, y = ("x",), ("y",)
    return [
        Workload("collage-bert", "collage", _built_by("collage", "bert"), _normal("x", 1, 64, 256), x, y, 0.84),
        Workload(
            "collage-dcgan",
            "collage",
            _built_by("collage", "dcgan"),
            _normal("latent", 1, 100),
            ("latent",),
            ("image", "validity"),
            14.95,
        ),
        Workload("collage-nasnet", "collage", _built_by("collage", "nasnet"), _smooth("x", 1, 64, 56, 56), x, y, 6.96),
        Workload(
            "collage-resnet3d",
            "collage",
            _built_by("collage", "resnet3d"),
            _smooth("x", 1, 64, 3, 56, 56),
            x,
            y,
            25.1,
        ),
        Workload(
            "collage-resnext", "collage", _built_by("collage", "resnext"), _smooth("x", 1, 64, 56, 56), x, y, 8.22
        ),
    ]


def _light() -> list[Workload]:
    def entry(short: str, input_name: str, output_name: str, gflops: float) -> Workload:
        def write(path: Path) -> None:
            from benchmarks.workloads.light import write_light

            write_light(short, path)

        return Workload(
            f"light-{short}",
            "light",
            _built_by("light", "light_module", short),
            _smooth(input_name, 1, 3, 224, 224),
            (input_name,),
            (output_name,),
            gflops,
            write=write,
        )

    return [
        entry("alexnet", "data_0", "prob_1", 1.31),
        entry("densenet121", "data_0", "fc6_1", 5.67),
        entry("inception-v1", "data_0", "prob_1", 2.86),
        entry("inception-v2", "data_0", "prob_1", 4.04),
        entry("resnet50", "gpu_0/data_0", "gpu_0/softmax_1", 8.18),
        entry("shufflenet", "gpu_0/data_0", "gpu_0/softmax_1", 0.249),
        entry("squeezenet", "data_0", "softmaxout_1", 0.698),
        entry("vgg19", "data_0", "prob_1", 39.26),
        entry("zfnet512", "gpu_0/data_0", "gpu_0/softmax_1", 2.96),
    ]


def _demo() -> Workload:
    def sentences(seed: int) -> Arrays:
        from benchmarks.workloads.minilm import tokenize
        from benchmarks.workloads.sentences import SENTENCES

        count = len(SENTENCES)
        return tokenize([SENTENCES[(seed * 8 + offset) % count] for offset in range(8)])

    def write(path: Path) -> None:
        from benchmarks.workloads.minilm import export_minilm

        export_minilm(path)

    return Workload(
        "minilm-l6",
        "demo",
        _built_by("minilm", "sentence_embedder"),
        sentences,
        ("input_ids", "attention_mask"),
        ("sentence_embedding",),
        2.91,
        write=write,
        symbolic=("batch", "sequence"),
    )


def _rewriting() -> list[Workload]:
    """What others measured rewriting on (TASO, Tensat), beside the six; and decoders."""
    image, logits, ids = ("image",), ("logits",), ("input_ids",)

    def steps(seed: int) -> Arrays:
        shapes = {"sequence": (5, 1, 512), "hidden": (1, 512), "memory": (1, 512)}
        return {name: inputs.normal(shape, 3 * seed + i) for i, (name, shape) in enumerate(shapes.items())}

    def text(length: int, vocabulary: int) -> Callable[[int], Arrays]:
        return lambda seed: {"input_ids": inputs.tokens((1, length), seed, vocabulary)}

    photo = _smooth("image", 1, 3, 224, 224)
    entries: list[tuple[str, str, str, Callable[[int], Arrays], tuple[str, ...], tuple[str, ...], float]] = [
        ("nasrnn", "nasrnn", "nasrnn", steps, ("sequence", "hidden", "memory"), ("last",), 0.0419),
        ("inception-v3", "inception", "inception_v3", _smooth("image", 1, 3, 299, 299), image, logits, 11.43),
        ("squeezenet", "mobile", "squeezenet", photo, image, logits, 0.698),
        ("mobilenet-v2", "mobile", "mobilenet_v2", photo, image, logits, 0.602),
        ("gpt2", "decoder", "gpt2", text(128, 50257), ids, logits, 32.23),
        ("rotary-decoder", "decoder", "rotary_decoder", text(64, 8000), ids, logits, 2.177),
    ]
    return [
        Workload(name, "rewriting", _built_by(module, function), sample, given, found, gflops)
        for name, module, function, sample, given, found, gflops in entries
    ]


def _recurrent() -> list[Workload]:
    """Translation with attention, in parts and as a loop, and speech."""

    def written(module: str, function: str) -> Callable[[Path], None]:
        return lambda path: getattr(import_module(f"benchmarks.workloads.{module}"), function)(path)

    def source(seed: int) -> Arrays:
        return {"source": inputs.tokens((1, 32), seed, 8000)}

    def step(seed: int) -> Arrays:
        return {
            "word": inputs.tokens((1, 1), seed, 8000),
            "state": 0.4 * inputs.normal((1, 1, 512), seed + 1),
            "states": 0.4 * inputs.normal((1, 32, 1024), seed + 2),
        }

    entries: list[tuple[str, str, str, Callable[[int], Arrays], tuple[str, ...], tuple[str, ...], float]] = [
        ("seq2seq-encoder", "seq2seq", "encoder", source, ("source",), ("states", "state"), 0.152),
        ("seq2seq-step", "seq2seq", "step", step, ("word", "state", "states"), ("scores", "next_state"), 0.069),
        ("seq2seq-loop", "seq2seq", "translator", source, ("source",), ("target",), 1.8),
        (
            "deep-speech",
            "speech",
            "speech",
            _smooth("spectrogram", 1, 1, 161, 200),
            ("spectrogram",),
            ("letters",),
            5.81,
        ),
    ]
    return [
        Workload(
            name,
            "recurrent",
            _built_by(module, function),
            sample,
            given,
            found,
            gflops,
            written(module, f"write_{function}"),
        )
        for name, module, function, sample, given, found, gflops in entries
    ]


def _wide() -> list[Workload]:
    """Ten networks of kinds that the six and the five have not: gates, windows, large and dilated kernels, answers as large as the
    image, lines of any width, speech."""
    image, logits, photo = ("image",), ("logits",), _smooth("image", 1, 3, 224, 224)

    def written(function: str) -> Callable[[Path], None]:
        return lambda path: getattr(import_module("benchmarks.workloads.sequences"), function)(path)

    def words(seed: int) -> Arrays:
        return {"words": inputs.tokens((1, 64), seed, 20000)}

    entries: list[tuple[str, str, str, Callable[[int], Arrays], tuple[str, ...], tuple[str, ...], float]] = [
        ("mobilenet-v3", "gated", "mobilenet_v3", photo, image, logits, 0.433),
        ("efficientnet-b0", "gated", "efficientnet_b0", photo, image, logits, 0.772),
        ("swin-tiny", "windowed", "swin_tiny", photo, image, logits, 8.98),
        ("convnext-tiny", "windowed", "convnext_tiny", photo, image, logits, 8.91),
        ("unet", "dense", "unet", _smooth("image", 1, 3, 256, 256), image, ("classes",), 24.15),
        ("deeplab", "dense", "deeplab", _smooth("image", 1, 3, 257, 257), image, ("classes",), 35.54),
        ("detector", "dense", "detector", _smooth("image", 1, 3, 320, 320), image, ("boxes",), 3.79),
        (
            "conformer",
            "sequences",
            "conformer",
            _smooth("spectrogram", 1, 1, 400, 80),
            ("spectrogram",),
            ("states",),
            1.46,
        ),
    ]
    line = _smooth("line", 1, 1, 32, 160)
    return [
        *(
            Workload(name, "wide", _built_by(module, function), sample, given, found, gflops)
            for name, module, function, sample, given, found, gflops in entries
        ),
        Workload(
            "tagger",
            "wide",
            _built_by("sequences", "tagger"),
            words,
            ("words",),
            ("tags",),
            0.337,
            written("write_tagger"),
        ),
        Workload(
            "crnn", "wide", _built_by("sequences", "crnn"), line, ("line",), ("letters",), 2.22, written("write_crnn")
        ),
    ]


def _published() -> list[Workload]:
    """Networks of DNNFusion's table of kernels, beside BERT-base, GPT-2, EfficientNet-B0 and U-Net."""
    image, video, words = ("image",), ("clip",), ("input_ids", "attention_mask")
    states = ("last_hidden_state", "pooler_output")

    def text(vocabulary: int) -> Callable[[int], Arrays]:
        return lambda seed: {**_sentence(seed), "input_ids": inputs.tokens((1, 128), seed, vocabulary)}

    def photo(side: int) -> Callable[[int], Arrays]:
        return _smooth("image", 1, 3, side, side)

    def clip(side: int) -> Callable[[int], Arrays]:
        return _smooth("clip", 1, 3, 16, side, side)

    entries: list[tuple[str, str, str, Callable[[int], Arrays], tuple[str, ...], tuple[str, ...], float]] = [
        ("vgg16", "published", "vgg16", photo(224), image, ("probabilities",), 30.94),
        ("mobilenet-ssd", "published", "mobilenet_ssd", photo(300), image, ("boxes", "scores"), 2.47),
        ("yolo-v4", "published", "yolo4", photo(416), image, ("boxes",), 60.1),
        ("proposals", "published", "proposals", photo(320), image, ("objects", "boxes"), 38.4),
        ("c3d", "published", "c3d", clip(112), video, ("logits",), 77.1),
        ("s3d", "published", "s3d", clip(224), video, ("logits",), 35.96),
        ("tinybert", "small_encoders", "tinybert", text(30522), words, states, 1.25),
        ("distilbert", "small_encoders", "distilbert", text(30522), words, states[:1], 11.17),
        ("albert", "small_encoders", "albert", text(30000), words, states, 22.37),
        ("mobilebert", "small_encoders", "mobilebert", text(30522), words, states[:1], 5.39),
    ]
    return [
        Workload(
            name,
            "published",
            _built_by(module, function),
            sample,
            given,
            found,
            gflops,
        )
        for name, module, function, sample, given, found, gflops in entries
    ]
