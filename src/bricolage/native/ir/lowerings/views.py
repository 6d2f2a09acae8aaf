"""Building blocks of lowerings: views, and element-wise functions on broadcast inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from bricolage.native.ir.index_expressions import Index, constant, flatten, unflatten
from bricolage.native.ir.lowerings.lowering_context import NoLowering
from bricolage.native.ir.tensors import (
    BlockConstant,
    ConcatBuffer,
    Constant,
    Coords,
    DequantisedConstant,
    Node,
    Pointwise,
    Shape,
    View,
    numpy_type,
)


def broadcast_shapes(*shapes: Shape) -> Shape:
    """What shapes broadcast to, as numpy does it.

    Raises:
        NoLowering: they do not.
    """
    try:
        return tuple(np.broadcast_shapes(*shapes))
    except ValueError:
        raise NoLowering(f"{' and '.join(str(list(shape)) for shape in shapes)} do not broadcast") from None


def scalar(value: float, dtype: str = "float32") -> Constant:
    """A constant of rank 0."""
    return Constant((), dtype, np.asarray(value, numpy_type(dtype)))


def empty(shape: Shape, dtype: str) -> Constant:
    """A tensor without elements."""
    return Constant(shape, dtype, np.zeros(shape, numpy_type(dtype)))


def pointwise(function: str, *inputs: Node, dtype: str | None = None, parameters: Sequence[float] = ()) -> Node:
    """An element-wise function on broadcast inputs. Where all that it reads but constants is one concatenation, or an operator's
    result that was split, it is done part by part, so that the kernels of the parts can absorb it."""
    shape = broadcast_shapes(*(node.shape for node in inputs))
    if 0 in shape:
        return empty(shape, dtype or inputs[-1].dtype)
    computed = [node for node in inputs if not isinstance(node, Constant)]
    whole = next(
        (
            node
            for node in computed
            if isinstance(node, ConcatBuffer) and node.shape == shape and (node.split or len(computed) == 1)
        ),
        None,
    )
    if whole is None:
        return Pointwise(shape, dtype or inputs[-1].dtype, function, inputs, tuple(parameters))
    parts = tuple(
        pointwise(function, *(_part(node, whole, i) for node in inputs), dtype=dtype, parameters=parameters)
        for i in range(len(whole.parts))
    )
    return ConcatBuffer(shape, parts[0].dtype, parts, whole.starts, whole.steps, whole.split)


def _part(node: Node, whole: ConcatBuffer, number: int) -> Node:
    """What of an input belongs to a part of `whole`."""
    if isinstance(node, ConcatBuffer) and (node.starts, node.steps, node.shape) == (
        whole.starts,
        whole.steps,
        whole.shape,
    ):
        return node.parts[number]
    missing = len(whole.shape) - len(node.shape)
    kept = [extent != 1 for extent in node.shape]
    start = [i * keep for i, keep in zip(whole.starts[number][missing:], kept, strict=True)]
    steps = [step if keep else 1 for step, keep in zip(whole.steps[missing:], kept, strict=True)]
    sizes = whole.parts[number].shape[missing:]
    return take(node, start, steps, tuple(size if keep else 1 for size, keep in zip(sizes, kept, strict=True)))


def reshape(source: Node, shape: Shape) -> Node:
    """The same elements in row-major order."""
    if shape == source.shape:
        return source
    if math.prod(shape) != source.elements:
        raise NoLowering(f"{source.elements} elements in the shape {list(shape)}")
    if isinstance(source, Constant):
        return Constant(shape, source.dtype, source.array.reshape(shape))
    if 0 in shape:
        return empty(shape, source.dtype)
    return View(
        shape,
        source.dtype,
        source,
        lambda coords: unflatten(flatten(coords, shape), source.shape),
        inverse=lambda coords: unflatten(flatten(coords, source.shape), shape),
    )


def transpose(source: Node, perm: Sequence[int]) -> Node:
    """With dimension `perm[i]` as the i-th; constants at once."""
    if tuple(perm) == tuple(range(len(source.shape))):
        return source
    if isinstance(source, DequantisedConstant):
        arrays = (source.array, source.integers, source.scales, source.zeros)
        array, *parts = (np.ascontiguousarray(component.transpose(perm)) for component in arrays)
        return DequantisedConstant(array.shape, source.dtype, array, *parts)
    if isinstance(source, BlockConstant):
        return source.transposed()
    if isinstance(source, Constant):
        array = np.ascontiguousarray(source.array.transpose(perm))
        return Constant(array.shape, source.dtype, array)
    shape = tuple(source.shape[axis] for axis in perm)
    if 0 in shape:
        return empty(shape, source.dtype)
    where = [list(perm).index(axis) for axis in range(len(perm))]
    return View(
        shape,
        source.dtype,
        source,
        lambda coords: tuple(coords[i] for i in where),
        inverse=lambda coords: tuple(coords[i] for i in perm),
    )


def broadcast_node(source: Node, shape: Shape) -> Node:
    """Broadcast to a shape, as numpy does."""
    if shape == source.shape:
        return source
    if 0 in shape:
        return empty(shape, source.dtype)
    missing = len(shape) - len(source.shape)
    if missing < 0 or any(
        source_size not in (1, size) for source_size, size in zip(source.shape, shape[missing:], strict=True)
    ):
        raise NoLowering(f"{list(source.shape)} does not broadcast to {list(shape)}")

    def mapping(coords: Coords) -> Coords:
        trailing_coords = coords[missing:]
        return tuple(constant(0) if extent == 1 else i for i, extent in zip(trailing_coords, source.shape, strict=True))

    return View(shape, source.dtype, source, mapping)


def take(source: Node, starts: Sequence[int], steps: Sequence[int], shape: Shape) -> Node:
    """Every `steps`-th element from `starts` on.

    Raises:
        NoLowering: some of them lie outside.
    """
    if 0 in shape:
        return empty(shape, source.dtype)
    for start, step, size, extent in zip(starts, steps, shape, source.shape, strict=True):
        if size < 1 or not 0 <= start < extent or not 0 <= start + (size - 1) * step < extent:
            raise NoLowering(f"{size} elements from {start} on, {step} apart, of {extent}")
    if shape == source.shape and not any(starts):
        return source
    if isinstance(source, Constant):
        spots = [np.arange(size) * step + start for start, step, size in zip(starts, steps, shape, strict=True)]
        return Constant(shape, source.dtype, np.ascontiguousarray(source.array.reshape(source.shape)[np.ix_(*spots)]))

    def mapping(coords: Coords) -> Coords:
        return tuple(i * step + start for i, start, step in zip(coords, starts, steps, strict=True))

    return View(shape, source.dtype, source, mapping)


def pad(source: Node, before: Sequence[int], shape: Shape, fill: float) -> Node:
    """`source` inside a larger tensor of `shape`, `before` elements from its start."""
    if shape == source.shape:
        return source
    if not source.elements:
        return broadcast_node(scalar(fill, source.dtype), shape)

    def mapping(coords: Coords) -> Coords:
        return tuple(i - start for i, start in zip(coords, before, strict=True))

    def guard(coords: Coords) -> list[tuple[Index, int]]:
        moved = mapping(coords)
        return [(i, extent) for i, extent, size in zip(moved, source.shape, shape, strict=True) if extent != size]

    return View(shape, source.dtype, source, mapping, guard, fill)
