"""Random regions over the rest of what the native engine lowers: integers and conditions, choices and look-ups by computed places,
products of every form, attention, resizing, losses, operators with several outputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.compose

from bricolage.backends.interface import RegionModel
from tests.backends.native.random_elements import Elements
from tests.backends.native.random_kernels import Kernels
from tests.backends.native.random_regions import STEPS, grow
from tests.backends.native.random_types import MORE_TYPES, Types


class WideRegion(Elements, Kernels, Types):
    """Grows as `Region` does, from more operators and types."""


MORE_STEPS = (
    "quotient", "power", "parametric", "several", "condition", "choice", "choice", "count", "as_float", "as_float",
    "as_integer", "split", "expand", "ones", "tile", "blocks", "look_up", "reverse_sequence", "resize", "facts",
    "put_together", "order", "normalise_more", "pool_more", "loss", "made", "rotary", "gemm", "computed_product",
    "einsum", "attention", "wide_conv", "sampled", "states",
)  # fmt: skip


def grow_wide(seed: int) -> WideRegion:
    """A region of a few inputs and up to twelve operators of all kinds."""
    region = WideRegion(seed)
    for _ in range(region.random.randint(1, 3)):
        region.input(region.sized())
    if region.random.random() < 0.4:
        region.image()
    for _ in range(region.random.randint(2, 12)):
        getattr(region, region.random.choice(STEPS + MORE_STEPS + MORE_TYPES))()
    if not region.nodes:
        region.unary()
    return region


class SideBySide:
    """Regions that share nothing as one: most of the time that a small library takes to compile is spent once.

    Every tenth is one of `grow`, whose fewer operators fuse more deeply.
    """

    def __init__(self, seeds: range) -> None:
        self.parts = {f"s{seed}_": ((grow if seed % 10 == 9 else grow_wide)(seed), seed) for seed in seeds}

    def proto(self) -> onnx.ModelProto:
        alone = ((prefix, region.proto(opset=24)) for prefix, (region, _) in self.parts.items())
        first, *others = (onnx.compose.add_prefix(proto, prefix) for prefix, proto in alone)
        for other in others:
            for name in ("node", "input", "output", "initializer"):
                getattr(first.graph, name).extend(getattr(other.graph, name))
        return first

    def feeds(self, seed: int) -> dict[str, np.ndarray]:  # noqa: ARG002  # every region has its own
        return {
            prefix + name: value
            for prefix, (region, own) in self.parts.items()
            for name, value in region.feeds(own).items()
        }

    def write(self, folder: Path) -> RegionModel:
        return WideRegion.written(self.proto(), folder)
