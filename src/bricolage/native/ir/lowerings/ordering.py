"""Order: where the largest elements of a row are, and which they are. A NaN counts as larger than anything."""

from __future__ import annotations

from bricolage.lowering.arrays import Arrays
from bricolage.native.ir.lowerings.lowering_context import NoLowering
from bricolage.native.ir.lowerings.traced import TracedArray
from bricolage.native.ir.tensors import FLOATS

LONGEST_COUNTED = 1024
"""Elements up to which an order is found by comparing all with all."""


def largest_at(xp: Arrays, x: TracedArray, axis: int, keepdims: bool) -> TracedArray:
    """Positions of the first of the largest along `axis`."""
    extent = x.shape[axis]
    largest = x == xp.max(x, (axis,), True)
    largest = largest | xp.lib.isnan(x) if x.dtype in FLOATS else largest
    view = tuple(extent if i == axis else 1 for i in range(x.ndim))
    positions = xp.arange(0, extent, 1, "int64").reshape(view)
    first: TracedArray = xp.min(xp.where(largest, positions, extent), (axis,), keepdims)
    return first


def select_top_k(xp: Arrays, x: TracedArray, k: int, axis: int, largest: bool) -> tuple[TracedArray, TracedArray]:
    """The `k` largest or smallest along `axis` in order, and their positions, by counting what comes before each element.

    Raises:
        NoLowering: the axis is too long for that.
    """
    extent = x.shape[axis]
    if extent > LONGEST_COUNTED:
        raise NoLowering(f"an order of more than {LONGEST_COUNTED} elements")
    order = [i for i in range(x.ndim) if i != axis] + [axis]
    rows = xp.transpose(x, order)
    element, other = rows.reshape((*rows.shape, 1)), rows.reshape((*rows.shape[:-1], 1, extent))
    positions = xp.arange(0, extent, 1, "int64")
    earlier = positions < positions.reshape((extent, 1))
    ahead, equal = (other > element if largest else other < element), other == element
    if x.dtype in FLOATS:
        odd, other_odd = xp.lib.isnan(element), xp.lib.isnan(other)
        ahead, equal = ahead | ((other_odd & ~odd) if largest else (odd & ~other_odd)), equal | (odd & other_odd)
    before = ahead | (equal & earlier)
    rank = xp.sum(before.cast("int64"), (x.ndim,)).reshape((*rows.shape[:-1], 1, extent))
    chosen = rank == xp.arange(0, k, 1, "int64").reshape((k, 1))
    values = xp.max(xp.where(chosen, other, xp.lowest(x.dtype)), (x.ndim,))
    indices = xp.max(xp.where(chosen, positions, -1), (x.ndim,))
    back = [order.index(i) for i in range(x.ndim)]
    return xp.transpose(values, back), xp.transpose(indices, back)
