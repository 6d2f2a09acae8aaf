"""Sizes inside a region that come from data: how many elements are not zero, which rows are kept. They may be 0 in any call."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from bricolage.graph.graph import describe
from bricolage.graph.inference import infer
from bricolage.graph.region_model import RegionModel
from bricolage.lowering.common import is_static

_COUNTS = frozenset({"NonZero", "Compress", "Unique", "NonMaxSuppression"})
"""Operators that find a size in data, whatever else they are given."""
_SIZED_BY = {
    **dict.fromkeys(("Slice", "Resize"), (1, 2, 3, 4)),
    "Range": (0, 1, 2),
    **dict.fromkeys(("TopK", "Tile", "Expand", "Reshape", "Pad", "OneHot", "Upsample", "CenterCropPad"), (1,)),
    **dict.fromkeys(("ConstantOfShape", "Loop"), (0,)),
}
"""Operators that find one in these inputs, which may be data."""
_PLAIN = frozenset(
    {"Cast", "Identity", "Shape", "Size", "Transpose", "Unsqueeze", "Squeeze", "Reshape", "Gather", "Concat"}
)
"""Operators that only hand on what they read."""


def readers_of_data_sizes(region: RegionModel) -> Iterator[ir.Node]:
    """Operators, others than those that only move elements, that compute with tensors whose sizes come from data."""
    if not any(map(_finds_size, ir.traversal.RecursiveGraphIterator(region.model.graph))):
        return
    model = ir.load(region.path)
    infer(model)
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        computes = node.op_type not in _PLAIN and node.op_type not in _COUNTS
        if computes and any(_is_open(value) for value in node.inputs if value is not None):
            yield node


def _finds_size(node: ir.Node) -> bool:
    if node.domain not in ("", "ai.onnx"):
        return False
    given = [node.inputs[place] for place in _SIZED_BY.get(node.op_type, ()) if place < len(node.inputs)]
    return node.op_type in _COUNTS or not all(map(is_static, given))


def _is_open(value: ir.Value) -> bool:
    info = describe(value)
    return info.dtype is not None and not info.static
