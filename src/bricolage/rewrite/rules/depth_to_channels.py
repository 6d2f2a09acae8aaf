"""Parts of networks over three spatial axes, as video and volumes have them, computed over two: runtimes have their fast kernels
and layouts for those (in the manner of PET, Wang et al., OSDI 2021).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import onnx_ir as ir

from bricolage.graph.constant_folding import is_known
from bricolage.rewrite.analyses.elementwise import BINARY, UNARY
from bricolage.rewrite.analyses.linear import window
from bricolage.rewrite.engine.subgraph import Subgraph, connected_subgraphs, write_subgraph
from bricolage.rewrite.predicates import integer, listed, rank, require, shape, sizes
from bricolage.rewrite.rule import Example, GraphRule, MatchFailure, Operators, Replacement

_USEFUL = 1 / 2
"""Part of the products that must be with weights other than zeros that the rule adds, at least."""
_ELEMENTWISE = (*UNARY, "Clip")
_BROADCASTING = (*BINARY, "PRelu")
_POOLS = ("AveragePool", "MaxPool")
_GLOBAL_POOLS = ("GlobalAveragePool", "GlobalMaxPool")
_ZEROS = "there would be too many zeros"


class DepthIntoChannels(GraphRule):
    """D(x₁, …, xₙ) = View⁻¹(D'(View(x₁), …, View(xₙ))), the positions along the first of three or more spatial axes as channels

    for a part D of a graph, of any size, with a convolution: convolutions with explicit pads, element-wise operators (with
    constants, and tensors of as many channels and positions), BatchNormalization, and pooling that leaves the first spatial
    axis alone; all sizes but the batch are known. Convolutions get the weights w'((e, o), (d, c)) = w(o, c, the tap that
    carries position d to position e), or 0, in as many groups as blocks of positions can be told apart: one for each position
    where the kernel has one tap there and stride 1, so that no product is wasted; only such a convolution may have groups of
    its own. At most half of a convolution's products are with zeros, or, if it leads from the part back into it, of those of
    the whole part; where a convolution has more, all that has as many positions stays as it is. View is a Reshape, behind a
    Transpose of channels and positions where there are groups.
    """

    family = "depth_to_channels"
    cost_based = True
    examples = (
        Example(
            "float[1,2,2,3,2] x",
            "a = Conv(x, u, b) r = Relu(a) c = Conv<pads=[1,1,1,1,1,1]>(r, v) s = Relu(c) d = Conv(s, w, b) t = Add(d, x)"
            " y = Relu(t)",
            {"u": (2, 2, 1, 1, 1), "b": (2,), "v": (2, 2, 3, 3, 3), "w": (2, 2, 1, 1, 1)},
        ),
        Example("float[2,2,3,4,5] x", "y = Conv<pads=[1,1,1,1,1,1]>(x, w)", {"w": (3, 2, 3, 3, 3)}),
        Example(
            "float[N,2,2,4,3] x",
            "y = Conv<pads=[1,0,0,1,0,1], strides=[2,1,2]>(x, w, b)",
            {"w": (2, 2, 3, 2, 2), "b": (2,)},
        ),
        Example("float[1,2,3,4,2] x", "y = Conv<dilations=[2,1,1], pads=[1,1,0,0,1,0]>(x, w)", {"w": (2, 2, 2, 3, 1)}),
        Example(
            "float[N,2,3,4,2] x, float[N,4,3,1,1] z",
            "a = Conv<pads=[1,0,0,1,0,0]>(x, v) c = Conv<group=2>(a, w, b) d = Mul(c, z) e = Add(p, d) f = Sub(e, q)"
            " g = Max(f, m) h = BatchNormalization(g, b, b, b, b) i = AveragePool<kernel_shape=[1,2,1]>(h)"
            " y = Clip(i, l)",
            {
                "v": (4, 2, 3, 1, 1),
                "w": (4, 2, 1, 1, 1),
                "b": (4,),
                "p": (3, 1, 1),
                "q": (1, 4, 1, 1, 1),
                "m": (1,) * 5,
                "l": 0.1,
            },
            outputs="y, d",
        ),
        Example(
            "float[1,2,3,3,3] x",
            "a = Conv(x, u) c = Conv<strides=[2,2,2], pads=[1,1,1,1,1,1]>(a, v) d = Conv<strides=[2,2,2]>(a, w) e = Add(c, d)"
            " f = Conv(e, q) y = GlobalAveragePool(f)",
            {"u": (2, 2, 1, 1, 1), "v": (3, 2, 3, 3, 3), "w": (3, 2, 1, 1, 1), "q": (2, 3, 2, 1, 1)},
        ),
    )
    counterexamples = (
        Example("float[1,3,5,5] x", "y = Conv(x, w)", {"w": (4, 3, 3, 3)}),
        Example("float[1,3,2,5,5] x", "t = Relu(x) y = MaxPool<kernel_shape=[1,2,2]>(t)"),
        Example("float[1,4,3,5,2] x", "y = Conv<group=2>(x, w)", {"w": (4, 2, 3, 3, 2)}, why="group"),
        Example("float[1,3,9,9,2] x", "y = Conv(x, w)", {"w": (4, 3, 2, 2, 2)}, why="zeros"),
        Example(
            "float[1,2,9,2,2] x",
            "t = Conv(x, w) y = Conv(t, v)",
            {"w": (2, 2, 1, 1, 1), "v": (2, 2, 2, 1, 1)},
            why="as many positions",
        ),
        Example("float[1,3,N,5,2] x", "y = Conv(x, w)", {"w": (4, 3, 3, 3, 2)}, why="not known"),
        Example("float[1,3,3,5,2] x", 'y = Conv<auto_pad="SAME_UPPER">(x, w)', {"w": (4, 3, 3, 3, 2)}, why="explicit"),
    )

    def find_sites(self, graph: ir.Graph) -> Iterator[tuple[ir.Node, Replacement]]:
        if not any(map(_is_deep, graph)):
            return
        parts, refused = _parts(graph)
        for part in parts:
            yield part.nodes[0], partial(_flatten, part)
        for node, reason in refused.items():
            yield node, partial(_refuse, reason)


def _refuse(reason: str, _: Operators) -> Mapping[ir.Value, ir.Value]:
    raise MatchFailure(reason)


# --- which parts ----------------------------------------------------------------------------------------------------


def _parts(graph: ir.Graph) -> tuple[list[Subgraph], dict[ir.Node, str]]:
    """The parts with a convolution, and why other convolutions over three spatial axes belong to none."""
    touched: dict[ir.Node, Sequence[ir.Value]] = {}
    refused: dict[ir.Node, str] = {}
    for node in graph:
        try:
            touched[node] = _find_converted_values(node)
        except MatchFailure as reason:
            if _is_deep(node):
                refused[node] = str(reason)
    sparse = [node for node in touched if node.op_type == "Conv" and not _is_useful([node])]
    dense = touched.keys() - set(sparse)
    for part in connected_subgraphs(graph, lambda node: touched[node] if node in dense else ()):
        values = set(part.values)
        between = [node for node in sparse if values.issuperset(touched[node])]
        if _is_useful([*_convolutions(part), *between]):
            sparse = [node for node in sparse if node not in between]
    # What stands around such a convolution would be turned back and forth.
    many = {_extent(touched[node][0])[1] for node in sparse}
    between_parts = {node for node, values in touched.items() if any(_extent(value)[1] in many for value in values)}
    left = {
        node: "a convolution of as many positions has too many zeros"
        for node in touched
        if node in between_parts and _is_deep(node)
    }
    refused = left | refused | dict.fromkeys(sparse, _ZEROS)
    subgraphs = connected_subgraphs(
        graph, lambda node: () if node in between_parts or node in refused else touched.get(node, ())
    )
    return [part for part in subgraphs if _convolutions(part)], refused


def _convolutions(part: Subgraph) -> list[ir.Node]:
    return [node for node in part.nodes if node.op_type == "Conv"]


def _is_deep(node: ir.Node) -> bool:
    """Whether it is a convolution over at least three spatial axes."""
    try:
        return node.op_type == "Conv" and not node.domain and rank(node.outputs[0]) > 4
    except MatchFailure:
        return False


def _extent(value: ir.Value) -> tuple[int, ...]:
    """Channels, positions of the first spatial axis, and sizes of the other two or more.

    Raises:
        MatchFailure: they are fewer, or not known.
    """
    inner_shape = shape(value)[1:]
    require(len(inner_shape) > 3, "it has not three spatial axes")
    extent = tuple(size for size in inner_shape if isinstance(size, int) and size > 0)
    require(len(extent) == len(inner_shape), "a size is not known")
    return extent


def _find_converted_values(node: ir.Node) -> list[ir.Value]:
    """The inputs whose positions become channels, and the result, of an operator that may belong to a part.

    Raises:
        MatchFailure: it may not.
    """
    require(not node.domain and bool(node.inputs), "another domain")
    data, result = node.inputs[0], node.outputs[0]
    require(data is not None, "there is no data")
    assert data is not None
    require(not any(v.uses() or v.is_graph_output() for v in node.outputs[1:]), "another output is read")
    extent = _extent(result)
    if node.op_type in _BROADCASTING:
        given = [value for value in node.inputs if value is not None and not _is_repeated(value)]
        require(bool(given), "it is a constant")
        for value in given:
            require(rank(value) == rank(result) and _extent(value)[:2] == extent[:2], "it is repeated")
        return [*given, result]
    if node.op_type == "Conv":
        _Carrying.of(node)
    elif node.op_type == "BatchNormalization":
        require(not integer(node, "training_mode", 0), "it is trained")
    elif node.op_type in _POOLS:
        count = len(extent) - 1
        pads, strides = listed(node, "pads", [0] * (2 * count)), listed(node, "strides", [1] * count)
        kernel = listed(node, "kernel_shape", ())
        require(kernel[0] == strides[0] == 1 and pads[0] == pads[count] == 0, "it pools the first spatial axis")
    elif node.op_type in _GLOBAL_POOLS:
        require(_extent(data)[1] == 1, "it pools the first spatial axis")
    else:
        require(node.op_type in _ELEMENTWISE, "it is no operator that works on each position alone")
    _extent(data)
    return [data, result]


def _is_repeated(value: ir.Value) -> bool:
    """Whether an operand of an element-wise operator can be given for each position."""
    return is_known(value) or set(shape(value)) <= {1}


@dataclass(frozen=True)
class _Carrying:
    """What a convolution does to the positions of its first spatial axis."""

    before: int
    after: int
    """Numbers of positions."""
    taps: Mapping[tuple[int, int], int]
    """Which tap carries to a position after (first) from one before."""
    blocks: int
    """The most blocks of equally many positions that can be told apart: none of them carries to another."""

    @classmethod
    def of(cls, node: ir.Node) -> _Carrying:
        """That of a Conv.

        Raises:
            MatchFailure: it belongs to no part.
        """
        data, weight = node.inputs[:2]
        assert data is not None and weight is not None
        view = window(node, weight)
        (_, before, *_), (_, after, *_) = _extent(data), _extent(node.outputs[0])
        taps = {}
        for e in range(after):
            for tap in range(view.kernel[0]):
                d = e * view.strides[0] + tap * view.dilations[0] - view.before[0]
                if 0 <= d < before:
                    taps[e, d] = tap
        common = math.gcd(before, after)
        counts = [n for n in range(common, 0, -1) if common % n == 0]
        blocks = next(n for n in counts if all(e * n // after == d * n // before for e, d in taps))
        require(integer(node, "group", 1) == 1 or blocks == before == after, "there is more than one group")
        return cls(before, after, taps, blocks)

    @property
    def table(self) -> tuple[tuple[int, int, int], list[int | None]]:
        """For each block, position after and position before in it: the tap; and their numbers."""
        after, before = self.after // self.blocks, self.before // self.blocks
        taps = [
            self.taps.get((i * after + e, i * before + d))
            for i in range(self.blocks)
            for e in range(after)
            for d in range(before)
        ]
        return (self.blocks, after, before), taps


def _is_useful(convolutions: Collection[ir.Node]) -> bool:
    """Whether enough products of these convolutions would be with weights other than zeros."""
    useful = products = 0
    for node in convolutions:
        carrying, weight = _Carrying.of(node), node.inputs[1]
        assert weight is not None
        outputs, inputs, _, *kernel = sizes(weight)
        each = math.prod([outputs, inputs, *kernel, *_extent(node.outputs[0])[2:]])
        useful += each * len(carrying.taps)
        products += each * carrying.before * carrying.after // carrying.blocks
    return useful >= _USEFUL * products


# --- how they are written -------------------------------------------------------------------------------------------


def _flatten(part: Subgraph, op: Operators) -> Mapping[ir.Value, ir.Value]:
    require(_is_useful(_convolutions(part)), _ZEROS)
    return write_subgraph(part.nodes, op, _DepthToChannelsWriter(op, part))


class _DepthToChannelsWriter:
    """Writes a part anew."""

    def __init__(self, op: Operators, part: Subgraph) -> None:
        self._op, self._inside = op, set(part.nodes)
        # Groups want the channels of one position side by side; without them the order that is there will do.
        self._grouped = any(_Carrying.of(node).blocks > 1 for node in _convolutions(part))
        self._flat: dict[ir.Value, ir.Value] = {}
        self.pairs: dict[ir.Value, ir.Value] = {}
        """What is read outside, with what replaces it."""

    def write(self, node: ir.Node) -> None:
        """Writes one operator."""
        value = node.outputs[0]
        self._flat[value] = result = self._result(node)
        if value.is_graph_output() or any(usage.node not in self._inside for usage in value.uses()):
            self.pairs[value] = self._leave(result, value)

    def _result(self, node: ir.Node) -> ir.Value:
        data, *more = node.inputs
        assert data is not None
        if node.op_type in _BROADCASTING:
            touched = _find_converted_values(node)
            given = [
                v and (self._get(v) if v in touched else self._repeat_operand(v, node.outputs[0])) for v in node.inputs
            ]
            return self._op.copy(node, *given)
        if node.op_type == "Conv":
            return self._convolution(node)
        if node.op_type == "BatchNormalization":
            return self._op.copy(node, self._get(data), *(v and self._vector(v, _extent(data)[1]) for v in more))
        return self._op.copy(node, self._get(data), *more, **_less(node))

    def _convolution(self, node: ir.Node) -> ir.Value:
        data, weight, *bias = node.inputs
        assert data is not None and weight is not None
        view, carrying = window(node, weight), _Carrying.of(node)
        outputs, inputs, absent, *kernel = sizes(weight)
        counts, taps = carrying.table
        if None in taps:
            zeros = [0] * len(kernel)
            weight = self._op.Pad(weight, self._op.integers([0, 0, 0, *zeros, 0, 0, 1, *zeros]))
        chosen = self._op.integers([absent if tap is None else tap for tap in taps])
        weight = self._op.Gather(weight, self._op.Reshape(chosen, self._op.integers(counts)), axis=2)
        order = [2, 3, 0, 4, 1] if self._grouped else [0, 2, 3, 1, 4]
        weight = self._op.Transpose(weight, perm=[*order, *range(5, 5 + len(kernel))])
        weight = self._op.Reshape(weight, self._op.integers([outputs * carrying.after, inputs * counts[2], *kernel]))
        return self._op.copy(
            node,
            self._get(data),
            weight,
            *(value and self._vector(value, carrying.after) for value in bias),
            group=carrying.blocks * integer(node, "group", 1),
            kernel_shape=kernel,
            strides=view.strides[1:],
            dilations=view.dilations[1:],
            pads=[*view.before[1:], *view.after[1:]],
            auto_pad=None,
        )

    def _vector(self, value: ir.Value, positions: int) -> ir.Value:
        """A number for each channel, at each position."""
        (count,) = sizes(value)
        spread = self._op.Reshape(value, self._op.integers([1, count, 1]))
        spread = self._op.Expand(spread, self._op.integers([1, count, positions]))
        return self._op.Reshape(self._enter(spread), self._op.integers([-1]))

    def _repeat_operand(self, value: ir.Value, result: ir.Value) -> ir.Value:
        """An operand that is given for each channel and position of a result, or for all alike."""
        operand_sizes, (count, positions, *_) = sizes(value), _extent(result)
        batch, *inner = *[1] * (rank(result) - len(operand_sizes)), *operand_sizes
        if len(operand_sizes) < rank(result) - 2:
            return value
        if inner[0] == inner[1] == 1:
            return self._op.Reshape(value, self._op.integers([batch, 1, *inner[2:]]))
        return self._enter(self._op.Expand(value, self._op.integers([batch, count, positions, *inner[2:]])))

    def _get(self, value: ir.Value) -> ir.Value:
        if value not in self._flat:
            self._flat[value] = self._enter(value)
        return self._flat[value]

    def _enter(self, value: ir.Value) -> ir.Value:
        """Channels and positions as one axis."""
        count, positions, *rest = (int(size) for size in shape(value)[1:])
        if self._exchanges(count, positions):
            value = self._exchange_axes(value)
        return self._op.Reshape(value, self._op.integers([0, count * positions, *rest]))

    def _leave(self, flat: ir.Value, value: ir.Value) -> ir.Value:
        """The old shape of a value of the part."""
        count, positions, *rest = _extent(value)
        if self._exchanges(count, positions):
            return self._exchange_axes(self._op.Reshape(flat, self._op.integers([0, positions, count, *rest])))
        return self._op.Reshape(flat, self._op.integers([0, count, positions, *rest]))

    def _exchanges(self, count: int, positions: int) -> bool:
        """Whether channels and positions stand the other way round inside."""
        return self._grouped and count > 1 and positions > 1

    def _exchange_axes(self, value: ir.Value) -> ir.Value:
        return self._op.Transpose(value, perm=[0, 2, 1, *range(3, rank(value))])


def _less(node: ir.Node) -> dict[str, list[int]]:
    """The attributes of pooling, without the first spatial axis."""
    count, names = rank(node.outputs[0]) - 2, ("kernel_shape", "strides", "dilations", "pads")
    attributes = {name: node.attributes[name].as_ints() for name in names if name in node.attributes}
    return {name: [n for i, n in enumerate(numbers) if i % count] for name, numbers in attributes.items()}
