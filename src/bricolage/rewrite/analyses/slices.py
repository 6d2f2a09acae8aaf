"""What a Slice keeps, what a Pad puts around, and the patterns and operators of both."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from bricolage.rewrite.pattern import AnyValue, Op, ValuePattern, op
from bricolage.rewrite.predicates import integers, normalised, rank, require, shape
from bricolage.rewrite.rule import MatchFailure, Operators

Ranges = dict[int, tuple[int, int]]


def kept_ranges(node: ir.Node) -> Ranges:
    """What a Slice with step 1 keeps of each axis that it names, as (start, end) within the axis.

    Raises:
        MatchFailure: a start, end, axis or step is no constant; a step is not 1; or an axis has no fixed size.
    """
    axis_positions = kept_positions(node)
    require(all(positions.step == 1 for positions in axis_positions.values()), "a step is not 1")
    return {axis: (positions.start, positions.stop) for axis, positions in axis_positions.items()}


def kept_positions(node: ir.Node) -> dict[int, range]:
    """The same for any positive steps, as positions within the axis.

    Raises:
        MatchFailure: a start, end, axis or step is no constant; a step is negative; or an axis has no fixed size.
    """
    given = [*node.inputs, None, None]
    source = given[0]
    assert source is not None
    starts, ends = integers(given[1], "the start"), integers(given[2], "the end")
    axes = integers(given[3], "the axes") if given[3] is not None else tuple(range(len(starts)))
    steps = integers(given[4], "the steps") if given[4] is not None else (1,) * len(starts)
    require(min(steps, default=1) > 0, "a step is negative")
    source_shape, positions = shape(source), dict[int, range]()
    for axis, start, end, step in zip(normalised(axes, len(source_shape)), starts, ends, steps, strict=True):
        size = source_shape[axis]
        if not isinstance(size, int):
            raise MatchFailure("a sliced axis has no fixed size")
        first = min(max(start + size if start < 0 else start, 0), size)
        positions[axis] = range(first, max(min(end + size if end < 0 else end, size), first), step)
    return positions


def keep(op: Operators, value: ir.Value, positions: Mapping[int, range]) -> ir.Value:
    """The Slice of a value that keeps these positions of each axis; the value itself where these are all."""
    cut = {
        axis: kept
        for axis, kept in positions.items()
        if (kept.start, kept.stop, kept.step) != (0, shape(value)[axis], 1)
    }
    if not cut:
        return value
    starts, ends, steps = ([getattr(kept, name) for kept in cut.values()] for name in ("start", "stop", "step"))
    strided = [op.integers(steps)] if max(steps) > 1 else []
    return op.Slice(value, op.integers(starts), op.integers(ends), op.integers(list(cut)), *strided)


def slice_operands(prefix: str) -> list[AnyValue]:
    """Variables for everything but the source, named after `prefix`."""
    return [
        AnyValue(f"{prefix} {what}", optional=what in ("axes", "steps")) for what in ("starts", "ends", "axes", "steps")
    ]


def any_slice(source: ValuePattern, name: str) -> Op:
    """Any Slice of `source`."""
    return op.Slice(source, *slice_operands(name), name=name)


def split_at(positions: range, size: int) -> tuple[int, range, int]:
    """How many of these positions lie before an axis of that size, those within it, and how many lie behind."""
    before, upto = (sum(position < border for position in positions) for border in (0, size))
    return before, positions[before:upto], len(positions) - upto


def any_pad(source: ValuePattern, name: str) -> Op:
    """Any Pad of `source`; its filling is the variable `value`."""
    return op.Pad(
        source, AnyValue("pads"), AnyValue("value", optional=True), AnyValue("padded axes", optional=True), name=name
    )


def padding(node: ir.Node) -> tuple[list[int], list[int]]:
    """What a Pad puts before and after each axis of its source.

    Raises:
        MatchFailure: the pads or the axes are no constant, or the rank is not known.
    """
    source, pads, _, over = [*node.inputs, None, None][:4]
    assert source is not None
    whole, around = rank(source), integers(pads, "the pads")
    axes = normalised(integers(over, "the axes"), whole) if over is not None else range(whole)
    begin, end = [0] * whole, [0] * whole
    for i, axis in enumerate(axes):
        begin[axis], end[axis] = around[i], around[i + len(around) // 2]
    return begin, end
