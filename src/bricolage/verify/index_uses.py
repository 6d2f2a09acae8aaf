"""Where operators use data as indices, positions, lengths or counts, and which values they may take there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from bricolage.graph.graph import bodies, describe
from bricolage.verify.interval import ValueRange

Size = int | str
MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class IndexUse:
    """A value that an operator may take between limits only."""

    node: ir.Node
    value: ir.Value
    limits: tuple[tuple[float, float], ...]
    """The least and the largest, for each place along the value's last dimension, or one for all elements."""
    below: tuple[str, ...] = ()
    """For each of these a symbolic size that a value must be less than, where its limits do not say it; empty where they do."""
    except_for: int | None = None
    """A value that is taken all the same."""

    def holds(self, found: ValueRange) -> bool:
        """Whether values of a range are surely taken. Of a size that is not known, from 0 on only what is surely below it."""
        least, most = (np.asarray(ends, np.float64) for ends in zip(*self.limits, strict=True))
        inside = (found.low >= least) & (found.high <= most)
        if self.below:
            named = np.asarray([bool(name) and name in found.below for name in self.below])
            inside |= named & (found.low >= 0)
        return bool(inside.all())

    def offender(self, array: np.ndarray) -> tuple[int, float, float] | None:
        """An element that may not be taken, with its limits; None where all may."""
        values = np.asarray(array)
        least, most = (np.asarray(ends, np.float64) for ends in zip(*self.limits, strict=True))
        wrong = (values < least) | (values > most)
        if self.except_for is not None:
            wrong &= values != self.except_for
        if not wrong.any():
            return None
        place = tuple(int(i) for i in np.argwhere(wrong)[0])
        low, high = (np.broadcast_to(ends, values.shape)[place] for ends in (least, most))
        return int(values[place]), float(low), float(high)


def index_uses(graph: ir.Graph) -> tuple[list[IndexUse], list[IndexUse], dict[ir.Graph, ir.Node]]:
    """Those of the graph's own operators, those in the bodies of control flow, and the operators whose bodies these are."""
    top_uses = [use for node in graph for use in _of(node)]
    owners: dict[ir.Graph, ir.Node] = {}
    within: list[IndexUse] = []
    todo = list(graph)
    while todo:
        node = todo.pop()
        for body in bodies(node):
            owners[body] = node
            for inner in body:
                within += _of(inner)
                todo.append(inner)
    return top_uses, within, owners


def index_users(graph: ir.Graph) -> list[ir.Node]:
    """All such operators, whatever is known of what they index."""
    return [node for node in ir.traversal.RecursiveGraphIterator(graph) if (_domain(node), node.op_type) in _USES]


def _domain(node: ir.Node) -> str:
    return "" if node.domain == "ai.onnx" else node.domain


def _of(node: ir.Node) -> Iterator[IndexUse]:
    rule = _USES.get((_domain(node), node.op_type))
    if rule is not None:
        yield from rule(node)


def _input(node: ir.Node, place: int) -> ir.Value | None:
    return node.inputs[place] if place < len(node.inputs) else None


def _shape(node: ir.Node, place: int) -> Sequence[Size] | None:
    value = _input(node, place)
    return describe(value).shape if value is not None else None


def _size(node: ir.Node, place: int, axis: int) -> Size:
    """Of an input along an axis; "?" where it is not known."""
    shape = _shape(node, place)
    return shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else "?"


def _use(
    node: ir.Node,
    place: int,
    sizes: Sequence[Size],
    *,
    first: int | None = None,
    over: int = -1,
    spare: int | None = None,
) -> Iterator[IndexUse]:
    """Of an input: from `first`, or minus the size, up to the size plus `over`."""
    value = _input(node, place)
    if value is None or 0 in (_shape(node, place) or ()):
        return
    limits = tuple(
        (-size if first is None else first, size + over) if isinstance(size, int) else (0.0, -1.0) for size in sizes
    )
    named = tuple("" if isinstance(size, int) or size == "?" else size for size in sizes)
    yield IndexUse(node, value, limits, named if any(not isinstance(size, int) for size in sizes) else (), spare)


def _along(
    data: int, indices: int, default: int = 0, name: str = "axis", **how: int
) -> Callable[[ir.Node], Iterator[IndexUse]]:
    """Indices along an axis of the data."""

    def rule(node: ir.Node) -> Iterator[IndexUse]:
        yield from _use(node, indices, [_size(node, data, node.attributes.get_int(name, default))], **how)

    return rule


def _coordinates(node: ir.Node) -> Iterator[IndexUse]:
    """Of GatherND and ScatterND: a place along each of the first dimensions in the last one of the indices."""
    depth, skipped = _size(node, 1, -1), node.attributes.get_int("batch_dims", 0)
    if not isinstance(depth, int) or depth == 0:
        sizes: list[Size] = ["?"] if depth else []
    else:
        sizes = [_size(node, 0, skipped + axis) for axis in range(depth)]
    if sizes:
        yield from _use(node, 1, sizes)


def _written(node: ir.Node) -> Iterator[IndexUse]:
    """Of TensorScatter: where it begins to write."""
    axis = node.attributes.get_int("axis", -2)
    there, new = _size(node, 0, axis), _size(node, 1, axis)
    circular = "mode" in node.attributes and node.attributes.get_string("mode") == "circular"
    room = there - (1 if circular else new) if isinstance(there, int) and (circular or isinstance(new, int)) else "?"  # type: ignore[operator]
    yield from _use(node, 2, [room], first=0, over=0)


def _find_embedding_uses(node: ir.Node) -> Iterator[IndexUse]:
    """Of EmbedLayerNormalization: words, segments, positions."""
    for indices, table in ((0, 2), (1, 4), (8, 3)):
        yield from _use(node, indices, [_size(node, table, 0)], first=0)


def _make_rotary_rule(positions: int, table: int) -> Callable[[ir.Node], Iterator[IndexUse]]:
    """Of RotaryEmbedding: positions in its tables."""

    def rule(node: ir.Node) -> Iterator[IndexUse]:
        rows, shape, x = _size(node, table, 0), _shape(node, positions), _shape(node, 0)
        if shape is not None and len(shape) < 2 and isinstance(rows, int):  # the first of a sequence
            length = x[-2] if x is not None and len(x) > 2 else "?"
            rows = rows - length + 1 if isinstance(length, int) else "?"
        yield from _use(node, positions, [rows], first=0)

    return rule


def _find_unpooling_uses(node: ir.Node) -> Iterator[IndexUse]:
    """Of MaxUnpool: places in the whole result."""
    shape = describe(node.outputs[0]).shape
    is_static = shape is not None and all(isinstance(dimension, int) for dimension in shape)
    yield from _use(node, 1, [int(np.prod(shape)) if is_static else "?"], first=0)  # type: ignore[arg-type]


def _classes(node: ir.Node) -> Iterator[IndexUse]:
    spare = node.attributes.get_int("ignore_index", -1) if "ignore_index" in node.attributes else None
    yield from _use(node, 1, [_size(node, 0, 1)], first=0, spare=spare)


def _lengths(place: int, axis_name: str = "") -> Callable[[ir.Node], Iterator[IndexUse]]:
    """Lengths of sequences, at most the size of their axis."""

    def rule(node: ir.Node) -> Iterator[IndexUse]:
        axis = node.attributes.get_int(axis_name, 0) if axis_name else node.attributes.get_int("layout", 0)
        yield from _use(node, place, [_size(node, 0, axis)], first=0, over=0)

    return rule


_USES: Mapping[tuple[str, str], Callable[[ir.Node], Iterator[IndexUse]]] = {
    ("", "Gather"): _along(0, 1),
    ("", "GatherElements"): _along(0, 1),
    ("", "Scatter"): _along(0, 1),
    ("", "ScatterElements"): _along(0, 1),
    ("", "GatherND"): _coordinates,
    ("", "ScatterND"): _coordinates,
    ("", "TensorScatter"): _written,
    ("", "TopK"): _along(0, 1, -1, first=0, over=0),
    ("", "ReverseSequence"): _lengths(1, "time_axis"),
    **{("", name): _lengths(4) for name in ("RNN", "GRU", "LSTM")},
    ("", "RoiAlign"): lambda node: _use(node, 2, [_size(node, 0, 0)], first=0),
    ("", "MaxUnpool"): _find_unpooling_uses,
    ("", "RotaryEmbedding"): _make_rotary_rule(3, 1),
    ("", "NegativeLogLikelihoodLoss"): _classes,
    ("", "SoftmaxCrossEntropyLoss"): _classes,
    ("ai.onnx.ml", "ArrayFeatureExtractor"): lambda node: _use(node, 1, [_size(node, 0, -1)], first=0),
    (MICROSOFT, "EmbedLayerNormalization"): _find_embedding_uses,
    (MICROSOFT, "GatherND"): _coordinates,
    (MICROSOFT, "GatherBlockQuantized"): _along(0, 1, 0, "gather_axis"),
    (MICROSOFT, "RotaryEmbedding"): _make_rotary_rule(1, 2),
}
"""By domain and type. OneHot has none: it answers other indices with nothing but its off value."""
