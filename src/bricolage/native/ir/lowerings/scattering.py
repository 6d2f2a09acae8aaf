"""Scattering: elements replaced, or put together with others, at places that are known only when it runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bricolage.lowering.arrays import Arrays
from bricolage.native.ir.lowerings.lowering_context import NoLowering
from bricolage.native.ir.lowerings.traced import TracedArray, apply
from bricolage.native.ir.tensors import FLOATS

MOST_COMPARED = 1 << 22
"""Places times updates up to which elements are scattered by comparing all with all."""
_REDUCED = {"add": ("sum", "add"), "mul": ("prod", "mul"), "max": ("max", "maximum"), "min": ("min", "minimum")}
"""How updates of one place are put together, and how with what was there."""


def scatter_updates(
    xp: Arrays, x: TracedArray, indices: Sequence[TracedArray], updates: TracedArray, reduction: str
) -> TracedArray:
    """By comparing every place with every index, so that no two threads write the same place. Of several updates of one place the
    last one counts, if they are not put together.

    Raises:
        NoLowering: there are too many, or they are put together in an unknown way.
    """
    leading, rest = x.shape[: len(indices)], x.shape[len(indices) :]
    flat = indices[0]
    for chosen, extent in zip(indices[1:], leading[1:], strict=True):
        flat = flat * extent + chosen
    places, count = math.prod(leading), math.prod(flat.shape)
    if count == 0:
        return x
    if places * count > MOST_COMPARED:
        raise NoLowering(f"updates of {count} among {places} places")
    rows = x.reshape((places, *rest))
    given = updates.broadcast((*flat.shape, *rest)).reshape((count, *rest))
    meets = flat.cast("int64").reshape((count,)) == xp.arange(0, places, 1, "int64").reshape((places, 1))
    if reduction == "none":
        last = xp.max(xp.where(meets, xp.arange(0, count, 1, "int64"), -1), (1,))
        column = last.reshape((places, *(1,) * len(rest)))
        replaced: TracedArray = xp.where(column >= 0, xp.take(given, xp.maximum(last, 0), 0), rows)
        return replaced.reshape(x.shape)
    if reduction not in _REDUCED:
        raise NoLowering(f"a scattering with {reduction}")
    highest = math.inf if x.dtype in FLOATS else xp.int_range(x.dtype)[1]
    neutral = {"add": 0, "mul": 1, "max": xp.lowest(x.dtype), "min": highest}[reduction]
    reduced, combine = _REDUCED[reduction]
    meeting = xp.where(meets.reshape((places, count, *(1,) * len(rest))), given, neutral)
    return apply(combine, rows, getattr(xp, reduced)(meeting, (1,))).reshape(x.shape)
