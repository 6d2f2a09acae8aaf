"""A random region on the native engine beside the same region in float64."""

from __future__ import annotations

import onnx_ir as ir

from bricolage.backends.interface import Resources
from bricolage.backends.native.engine import Native
from bricolage.base.options import BOUNDS
from bricolage.conformance.regions import answers
from bricolage.graph.inference import infer
from bricolage.testing import SideBySide, Truth
from bricolage.testing.bfloat16_model import in_bfloat16
from bricolage.testing.random_graph import RandomGraph
from bricolage.testing.truth import BOUND
from bricolage.work.implementation import KernelConfig
from tests.backends import regions


def check(graph: RandomGraph | SideBySide, seed: int, threads: int = 2, config: KernelConfig = regions.F32) -> None:
    """All outputs of two calls are as near to float64 as the configuration's class asks, and integers and conditions are equal.

    The yardstick where steps (floor) or cancellation amplify rounding is what the configuration's own numbers make of the region,
    float32 or with the operands of products rounded to bfloat16.

    Raises:
        Refused: the region has no products, which configurations in bfloat16 are for.
    """
    proto = graph.proto()
    model: ir.Model = ir.from_proto(proto)
    infer(model)
    feeds = graph.feeds(seed)
    narrow = config.name == "bf16"
    truth = Truth(model, feeds, BOUNDS["medium"] if narrow else BOUND, in_bfloat16(proto) if narrow else None)
    for found in answers(Native(), model, feeds, config, Resources(threads=threads)):
        wrong = truth.wrong(found)
        assert not wrong, f"seed {seed}: {'; '.join(map(str, wrong))}"
