"""Roots that are computed in the kernel of another one, some rows at a time: attention, and separable convolutions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

from bricolage.native.fuse.fusion_target import Target
from bricolage.native.fuse.kernel_plan import FusedProducer, FusionPlan
from bricolage.native.ir.tensors import STORED_BYTES, Conv, MatMul, Node, Softmax, View

Epilogues = Mapping[Node, tuple[Node, tuple[View, ...]]]
"""By the result of a kernel: its root, and the views between the two."""


@dataclass(frozen=True)
class RegionTensors:
    """The tensors of a region, as far as joining roots looks at them."""

    nodes: Sequence[Node]
    """Sources first."""
    users: Mapping[Node, Sequence[Node]]
    outputs: Sequence[Node]
    separated: Callable[[Node, Node], bool]
    """Whether two nodes must not share a kernel."""

    def only_read_once(self, node: Node) -> bool:
        """Whether one node reads it, and nothing outside the region."""
        return len(self.users[node]) == 1 and node not in self.outputs


def attentions(
    region: RegionTensors, epilogues: Epilogues, stored: Set[Node], target: Target
) -> dict[Node, FusedProducer]:
    """Products of a softmax of a product, by the second product, whose kernel computes what lies in between a few rows at a time.
    So it need not be `stored`."""
    producers: dict[Node, FusedProducer] = {}
    for second in region.nodes:
        if (
            second.dtype != "float32"
            or not isinstance(second, MatMul)
            or not isinstance(softmax := second.left, Softmax)
        ):
            continue
        scores = softmax.source
        first, path = epilogues.get(scores, (scores, ()))
        inside = (scores, softmax)
        if (
            isinstance(first, MatMul)
            and first.dtype == "float32"
            and first not in producers  # whose own kernel computes what it reads
            and not path
            and first.shape == softmax.shape
            and softmax.shape[:-1] == second.shape[:-1]
            and softmax.shape[-1] <= target.score_columns
            and epilogues.get(softmax, (softmax, ()))[0] is softmax
            and stored >= set(inside)
            and all(map(region.only_read_once, inside))
            and not region.separated(first, softmax)
            and not region.separated(softmax, second)
        ):
            producers[second] = first, softmax
    return producers


def separable_convolutions(
    region: RegionTensors, epilogues: Epilogues, plan: FusionPlan, target: Target
) -> dict[Node, FusedProducer]:
    """Grouped convolutions that nothing but a pointwise one reads, by the latter, whose kernel computes what it reads some rows at
    a time: where that is more than stays in a second-level cache from one kernel to the next."""
    producers: dict[Node, FusedProducer] = {}
    for second in region.nodes:
        if not isinstance(second, Conv) or not is_pointwise(second) or set(second.strides) != {1}:
            continue
        between = second.source
        first, path = epilogues.get(between, (between, ()))
        if (
            isinstance(first, Conv)
            and first.dtype == second.dtype == "float32"
            and goes_by_vectors(first, plan, target)
            and between.elements * STORED_BYTES[plan.buffers[between].dtype] > target.resident_bytes
            and not path
            and first.shape == between.shape
            and between.shape[2:] == second.shape[2:]
            and second.elements >= second.shape[1] ** 2  # otherwise threads share columns, and each needs all rows
            and region.only_read_once(between)
            and not region.separated(between, second)
        ):
            producers[second] = first, between
    return producers


def is_pointwise(conv: Conv) -> bool:
    """Whether a convolution has one tap (1×1) and no groups: it reads each element of its input once, as rows that it can pack."""
    return conv.groups == 1 and conv.weight.elements == conv.weight.shape[0] * conv.weight.shape[1]


def fits_vectors(conv: Conv, vector_lanes: tuple[int, int], most_taps: int) -> bool:
    """Whether vectors of channels, from the narrowest to the widest, hold whole groups of a convolution or are held by one, and its
    rows have `most_taps` at most."""
    inputs, outputs = conv.weight.shape[1], conv.shape[1] // conv.groups
    narrowest, widest = vector_lanes
    inside = inputs == outputs and narrowest % outputs == 0
    return (
        conv.groups > 1
        and (inside or outputs % widest == 0)
        and conv.shape[1] >= widest
        and conv.weight.shape[-1] <= most_taps
    )


def goes_by_vectors(conv: Conv, plan: FusionPlan, target: Target) -> bool:
    """Whether a grouped convolution goes by vectors of channels, whatever vectors it is compiled for: it fits them, and what it
    reads is stored with channels side by side."""
    buffer = plan.buffers.get(conv.source)
    return (
        fits_vectors(conv, target.vector_lanes, target.grouped_taps)
        and buffer is not None
        and buffer.dtype in target.vector_dtypes
        and buffer.strides[1] == 1
    )
