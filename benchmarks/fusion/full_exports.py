"""The fifteen networks of DNNFusion's table 5 at the size of the paper, exported as its tools did.

Niu et al. (PLDI 2021) published no ONNX files. These are the networks that the paper names, from the libraries that had them then
(`torchvision`, `transformers`), or from their own papers where neither has them; VGG-16 with batch normalisation, which gives its
51 layers. They are exported by tracing, opset 11, nothing folded: layer normalisation and GELU are written out, text has open
sizes whose shapes are computed. Counts do not depend on weights, which are random. What the paper does not state: 128 tokens;
U-Net as wide as its authors' (64 to 1024 channels) on 256 × 256; Faster and Mask R-CNN on 800 × 800.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.unseen.libraries import library

_OPSET = 11
_TOKENS = 128


@dataclass(frozen=True)
class FullExport:
    """A network, and what it is traced with."""

    build: Callable[[], Any]
    """A module in any mode."""
    shapes: Mapping[str, tuple[int, ...]]
    """Of its inputs."""
    text: bool = False
    """Whether inputs are token numbers and a mask, with open sizes."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Of the open dimensions."""


def write_full_export(export: FullExport, path: Path) -> None:
    """Traces a network into a file, weights included.

    Raises:
        MissingLibrary: torchvision or transformers is not installed.
    """
    import torch

    inputs = tuple(
        torch.ones(shape, dtype=torch.int64) if export.text else torch.rand(shape) for shape in export.shapes.values()
    )
    axes = {name: {0: "batch", 1: "tokens"} for name in export.shapes} if export.text else None
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            export.build().eval(),
            inputs,
            path,
            input_names=list(export.shapes),
            opset_version=_OPSET,
            dynamo=False,
            do_constant_folding=False,
            training=torch.onnx.TrainingMode.PRESERVE,
            dynamic_axes=axes,
            verbose=False,
        )


def _torchvision(name: str, *shape: int, under: str = "models") -> FullExport:
    def build() -> Any:
        library("torchvision")
        return getattr(import_module(f"torchvision.{under}"), name)(weights=None)

    return FullExport(build, {"image": shape})


def _detector(name: str) -> FullExport:
    def build() -> Any:
        from benchmarks.fusion.detectors import OneImage

        library("torchvision")
        models = import_module("torchvision.models.detection")
        return OneImage(getattr(models, name)(weights=None, weights_backbone=None, min_size=800, max_size=800))

    return FullExport(build, {"image": (3, 800, 800)})


def _workload(file: str, function: str, shape: tuple[int, ...], *arguments: int) -> FullExport:
    return FullExport(
        lambda: getattr(import_module(f"benchmarks.workloads.{file}"), function)(*arguments), {"image": shape}
    )


def _transformer(kind: str, inputs: tuple[str, ...] = ("input_ids", "attention_mask"), **size: int) -> FullExport:
    def build() -> Any:
        from benchmarks.unseen.packaged import text_encoder

        # written as two products and a softmax, as all were then
        return text_encoder(f"{kind}Config", f"{kind}Model", attn_implementation="eager", **size)

    shape = (1, _TOKENS)
    return FullExport(build, dict.fromkeys(inputs, shape), text=True, sizes={"batch": 1, "tokens": _TOKENS})


FULL_EXPORTS: Mapping[str, FullExport] = {
    "efficientnet-b0": _torchvision("efficientnet_b0", 1, 3, 224, 224),
    "vgg16": _torchvision("vgg16_bn", 1, 3, 224, 224),
    "mobilenet-ssd": _workload("published", "SingleShot", (1, 3, 300, 300)),
    "yolo-v4": _workload("published", "Yolo4", (1, 3, 416, 416)),
    "c3d": _workload("published", "_c3d", (1, 3, 16, 112, 112)),
    "s3d": _torchvision("s3d", 1, 3, 16, 224, 224, under="models.video"),
    "unet": _workload("dense", "UNet", (1, 3, 256, 256), 64),
    "faster-rcnn": _detector("fasterrcnn_resnet50_fpn"),
    "mask-rcnn": _detector("maskrcnn_resnet50_fpn"),
    "tinybert": _transformer(
        "Bert", hidden_size=312, num_hidden_layers=4, num_attention_heads=12, intermediate_size=1200
    ),
    "distilbert": _transformer("DistilBert"),
    "albert": _transformer("Albert", hidden_size=768, num_attention_heads=12, intermediate_size=3072),
    "bert-base": _transformer("Bert"),
    "mobilebert": _transformer("MobileBert"),
    "gpt2": _transformer("GPT2"),
}
"""By name; those that `benchmarks.workloads` has, too, have the same name there."""
