"""Which images lie with their channels last.

By default all of the ranks that convolutions have in a region. DNNFusion (PLDI 2021, section 4.4.2) chooses a block's layout by
its dominant operator instead; both, and rows of ONNX's order everywhere, can be planned, so that the difference can be measured
(`python -m benchmarks.fusion.fusion_plans --layouts`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from bricolage.native.fuse.kernel_plan import FusionPlan
from bricolage.native.ir.tensors import ConcatBuffer, Conv, Gather, MatMul, Node, Pointwise, Shape, View

Layout = Literal["channels last", "dominant", "rows"]
"""Channels last for all images; for those whose dominant operator is a convolution; for none."""
LAYOUTS: tuple[Layout, ...] = ("channels last", "dominant", "rows")
_THROUGH = (Pointwise, View, Gather, ConcatBuffer)


def channels_last(nodes: Sequence[Node], users: Mapping[Node, Sequence[Node]], layout: Layout) -> set[Node]:
    """The images that lie with their channels last, of `nodes` (sources first) with their users."""
    ranks = {len(node.shape) for node in nodes if isinstance(node, Conv)}
    images = [node for node in nodes if len(node.shape) >= 3 and len(node.shape) in ranks]
    if layout == "rows":
        return set()
    if layout == "channels last":
        return set(images)
    above: dict[Node, Node | None] = {}
    for node in nodes:
        above[node] = node if node.starts_kernel else _heaviest(above.get(source) for source in _inside(node))
    below: dict[Node, Node | None] = {}
    for node in reversed(nodes):
        readers = users.get(node, ())
        below[node] = _heaviest(reader if reader.starts_kernel else below.get(reader) for reader in readers)
    return {node for node in images if isinstance(_heaviest((above[node], below[node])), Conv)}


def lie_otherwise(first: FusionPlan, second: FusionPlan) -> bool:
    """Whether any tensor of a plan lies otherwise in another plan of the same region."""
    return _strides(first) != _strides(second)


def _strides(plan: FusionPlan) -> Counter[tuple[Shape, Shape]]:
    return Counter((buffer.shape, buffer.strides) for buffer in plan.buffers.values())


def _inside(node: Node) -> Sequence[Node]:
    """What element-wise work, views and concatenations are made of; nothing for others."""
    return tuple(node.sources) if isinstance(node, _THROUGH) else ()


def _heaviest(found: Iterable[Node | None]) -> Node | None:
    return max((node for node in found if node is not None), key=_multiplications, default=None)


def _multiplications(root: Node) -> int:
    """Of a root; for those that multiply nothing, what they read."""
    if isinstance(root, (Conv, MatMul)):
        return root.elements * root.depth
    return max(source.elements for source in root.sources)
