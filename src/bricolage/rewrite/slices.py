"""What a Slice keeps, and its pattern."""

from __future__ import annotations

import onnx_ir as ir

from bricolage.rewrite.facts import integers, normalised, require, shape
from bricolage.rewrite.pattern import Any, Op, Pattern, op
from bricolage.rewrite.rule import Mismatch

Ranges = dict[int, tuple[int, int]]


def kept_ranges(node: ir.Node) -> Ranges:
    """What a Slice with step 1 keeps of each axis that it names, as (start, end) within the axis.

    Raises:
        Mismatch: a start, end, axis or step is no constant; a step is not 1; or an axis has no fixed size.
    """
    found = kept_places(node)
    require(all(places.step == 1 for places in found.values()), "a step is not 1")
    return {axis: (places.start, places.stop) for axis, places in found.items()}


def kept_places(node: ir.Node) -> dict[int, range]:
    """The same for any positive steps, as places within the axis.

    Raises:
        Mismatch: a start, end, axis or step is no constant; a step is negative; or an axis has no fixed size.
    """
    given = [*node.inputs, None, None]
    source = given[0]
    assert source is not None
    starts, ends = integers(given[1], "the start"), integers(given[2], "the end")
    axes = integers(given[3], "the axes") if given[3] is not None else tuple(range(len(starts)))
    steps = integers(given[4], "the steps") if given[4] is not None else (1,) * len(starts)
    require(min(steps, default=1) > 0, "a step is negative")
    own, found = shape(source), dict[int, range]()
    for axis, start, end, step in zip(normalised(axes, len(own)), starts, ends, steps, strict=True):
        size = own[axis]
        if not isinstance(size, int):
            raise Mismatch("a sliced axis has no fixed size")
        first = min(max(start + size if start < 0 else start, 0), size)
        found[axis] = range(first, max(min(end + size if end < 0 else end, size), first), step)
    return found


def slice_operands(prefix: str) -> list[Any]:
    """Variables for everything but the source, named after `prefix`."""
    return [Any(f"{prefix} {what}", optional=what in ("axes", "steps")) for what in ("starts", "ends", "axes", "steps")]


def any_slice(source: Pattern, name: str) -> Op:
    """Any Slice of `source`."""
    return op.Slice(source, *slice_operands(name), name=name)
