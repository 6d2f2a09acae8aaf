"""Detectors of torchvision without its compiled kernels: their two operators for tracing, and one image in the place of a list."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn


class OneImage(nn.Module):
    """A detector, called with one image (3, rows, columns): boxes, labels, scores and, if it has any, masks."""

    def __init__(self, detector: Any) -> None:
        super().__init__()
        _define_operators()
        self.detector = detector

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.detector([image])[0].values())


def has_operators() -> bool:
    """What torchvision asks before it calls one; scripted by it, so that it is no lambda."""
    return True


def _define_operators() -> None:
    """What tracing runs where torchvision's own are missing. The exporter writes NonMaxSuppression and RoiAlign for them."""
    for name, signature, function in (
        ("nms", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor", _keep_best),
        (
            "roi_align",
            "(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
            "int sampling_ratio, bool aligned) -> Tensor",
            _pool_boxes,
        ),
    ):
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", signature)
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"torchvision::{name}", "CPU"):
            torch.library.impl(f"torchvision::{name}", "cpu", function)
    for name in ("torchvision.extension", "torchvision.ops.roi_align"):
        import_module(name)
        vars(sys.modules[name])["_has_ops"] = has_operators


def _keep_best(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    """Non-maximum suppression: the numbers of the boxes that are kept, best first."""
    order = scores.argsort(descending=True)
    kept: list[Tensor] = []
    while len(order):
        best, order = order[0], order[1:]
        kept.append(best)
        corner = torch.maximum(boxes[best, :2], boxes[order, :2])
        far = torch.minimum(boxes[best, 2:], boxes[order, 2:])
        common = (far - corner).clamp(min=0).prod(1)
        area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
        order = order[common / (area[best] + area[order] - common) <= threshold]
    return torch.stack(kept) if kept else torch.empty(0, dtype=torch.int64)


def _pool_boxes(
    features: Tensor, boxes: Tensor, scale: float, rows: int, columns: int, samples: int, aligned: bool
) -> Tensor:
    """Of the right shape: only a trace is made of it."""
    del scale, samples, aligned
    return features.new_zeros((len(boxes), features.shape[1], rows, columns))
