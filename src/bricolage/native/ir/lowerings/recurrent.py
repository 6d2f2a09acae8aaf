"""Recurrences, written out step by step; equal steps share their functions."""

from __future__ import annotations

import math

from bricolage.lowering.arrays import Step
from bricolage.lowering.common import Array
from bricolage.native.ir.index_expressions import ZERO
from bricolage.native.ir.lowerings.lowering_context import NoLowering
from bricolage.native.ir.lowerings.movement import join_parts
from bricolage.native.ir.lowerings.traced import TracedArray
from bricolage.native.ir.lowerings.views import reshape
from bricolage.native.ir.tensors import Constant, Node, View

LONGEST_SCAN = 1024
"""Steps up to which a recurrence is written out: beyond, planning and compiling take longer than some ten seconds."""


def written_out(step: Step, carry: Array, xs: Array, length: int) -> tuple[Array, Array]:
    """What is carried after the last step, and the results of all of them along a new first axis.

    Raises:
        NoLowering: there are too many.
    """
    if length > LONGEST_SCAN:
        raise NoLowering(f"recurrences over more than {LONGEST_SCAN} steps")
    rows: list[Node] = []
    shape: tuple[int, ...] = ()
    for time in range(length):
        carry, y = step(carry, tuple(_at(x, time) for x in xs))
        # In rows, so that a step's state lies together whatever layout images have in the region.
        shape = y.shape
        rows.append(reshape(y.node, (math.prod(shape[:-1]), shape[-1])))
    return carry, TracedArray(reshape(join_parts(rows, 0), (length, *shape)))


def _at(x: TracedArray, time: int) -> TracedArray:
    """A step's input. Constants are not cut: steps that read them in one place after another share their function."""
    if not isinstance(x.node, Constant) or x.ndim > 1:
        return x[time]
    whole = x.node
    return TracedArray(View((), x.dtype, whole, lambda coords: (*coords, ZERO + time)))
