"""Channels filled up with zeros to whole vectors (in the manner of PET, Wang et al., OSDI 2021: a little more arithmetic for a
layout that is fast).

Runtimes that keep blocks of channels together leave that layout where channels do not fill it: ONNX Runtime does for depthwise
convolutions of channels that are no multiple of 4, and for groups of channels that do not fill whole blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate

import numpy as np
import onnx_ir as ir

from bricolage.graph.constant_folding import constant_elements, is_known
from bricolage.rewrite.engine.matching import Match
from bricolage.rewrite.engine.subgraph import write_subgraph
from bricolage.rewrite.pattern import AnyValue, Op, Weight, op
from bricolage.rewrite.predicates import axes, integer, integers, normalised, rank, require, shape, sizes
from bricolage.rewrite.rule import Example, GraphRule, MatchFailure, Operators, Replacement, Result, Rule

VECTOR = 16
"""Elements of a whole vector: float32 in 512 bits, twice what 256 bits hold."""
_MOST = 1 / 3
"""Part of the channels that may be added."""
_MOST_WORK = 4
"""Times the products that filling groups may cost."""
_UNARY = (
    "Abs",
    "Celu",
    "Clip",
    "Elu",
    "Gelu",
    "HardSigmoid",
    "HardSwish",
    "LeakyRelu",
    "Mish",
    "Neg",
    "Relu",
    "Selu",
    "Sigmoid",
    "Softplus",
    "Softsign",
    "Swish",
    "Tanh",
    "ThresholdedRelu",
)
"""Element-wise, and finite for whatever is finite: what is in added channels meets weights of zero, and must not be NaN there."""
_BINARY = ("Add", "Max", "Min", "Mul", "Sub")
_POOLS = ("AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool")


class FillGroups(Rule):
    """Conv(x, w, b, k·g groups) = Conv(x, w', b, g groups), with w' the weights of k groups side by side and zeros between

    for a constant weight, the least k with which the channels of a group, in and out, are whole vectors of 16, and k at most 4.
    """

    family = "channel_padding"
    cost_based = True
    examples = (
        Example("float[1,64,4,3] x", "y = Conv<group=8, pads=[1,1,1,1]>(x, w, b)", {"w": (64, 8, 3, 3), "b": (64,)}),
        Example("float[N,32,5] x", "y = Conv<group=4, strides=[2]>(x, w)", {"w": (64, 8, 2)}),
    )
    counterexamples = (
        Example("float[1,32,5] x", "y = Conv<group=2>(x, w)", {"w": (32, 16, 3)}, why="are whole vectors"),
        Example("float[1,24,5] x", "y = Conv<group=3>(x, w)", {"w": (24, 8, 3)}, why="do not make"),
        Example("float[1,32,5] x", "y = Conv<group=16>(x, w)", {"w": (32, 2, 3)}, why="do not make"),
        Example("float[1,64,5] x, float[64,8,2] w", "y = Conv<group=8>(x, w)", why="not a constant"),
    )

    def patterns(self) -> list[Op]:
        return [op.Conv(AnyValue("x"), Weight("w"), AnyValue("b", optional=True), name="conv")]

    def check(self, match: Match) -> None:
        self._count_joined_groups(match)

    def rewrite(self, op: Operators, match: Match) -> Result:
        joined = self._count_joined_groups(match)
        outputs, inputs, *kernel = sizes(match["w"])
        groups = integer(match.node("conv"), "group", 1)
        split = op.Reshape(match["w"], op.integers([groups // joined, joined, outputs // groups, inputs, *kernel]))
        group_weights = op.many("Split", joined, split, op.integers([1] * joined), axis=1)
        rest = [0] * len(kernel)
        wide = [
            op.Pad(part, op.integers([0, 0, 0, i * inputs, *rest, 0, 0, 0, (joined - 1 - i) * inputs, *rest]))
            for i, part in enumerate(group_weights)
        ]
        weight = op.Reshape(op.Concat(*wide, axis=1), op.integers([outputs, joined * inputs, *kernel]))
        return op.copy(match.node("conv"), match["x"], weight, match.get("b"), group=groups // joined)

    @staticmethod
    def _count_joined_groups(match: Match) -> int:
        """How many groups become one."""
        groups = integer(match.node("conv"), "group", 1)
        outputs, inputs, *_ = sizes(match["w"])
        group_outputs = outputs // groups
        require(inputs % VECTOR > 0 or group_outputs % VECTOR > 0, "the channels of a group are whole vectors")
        for count in range(2, _MOST_WORK + 1):
            if groups % count == 0 and inputs * count % VECTOR == 0 and group_outputs * count % VECTOR == 0:
                return count
        raise MatchFailure("few groups do not make whole vectors")


class PadChannels(GraphRule):
    """P(x₁, …, xₙ) = P'(x₁, …, xₙ), where the values inside of P have more channels, up to whole vectors of 16

    for a part P of a graph, of any size, of operators that treat each channel alone, with a depthwise convolution or before a
    Concat of channels. Convolutions of one group that write into it compute more channels, with weights of zero; those that read
    from it, also behind that Concat, have weights of zero for them; other values are padded before and sliced behind. The
    number of channels grows by a third at most.
    """

    family = "channel_padding"
    cost_based = True
    examples = (
        Example(
            "float[1,3,4,5] x",
            "t = Conv(x, u, b) r = Relu(t) d = Conv<group=12, pads=[1,1,1,1]>(r, v, b) e = Conv(d, w) s = Add(e, t)"
            " f = Conv<group=12>(s, v) y = Conv(f, q, p)",
            {"u": (12, 3, 1, 1), "b": (12,), "v": (12, 1, 3, 3), "w": (12, 12, 1, 1), "q": (2, 12, 1, 1), "p": (2,)},
        ),
        Example(
            "float[N,13,4] x, float[N,2,4] z",
            "d = Conv<group=13>(x, v) c = Concat<axis=1>(z, d, z) r = Relu(c) y = Conv(r, w, p) u = Conv(c, w)",
            {"v": (13, 1, 1), "w": (3, 17, 2), "p": (3,)},
            outputs="y, u",
        ),
        Example(
            "float[1,14,M,6] x",
            "m = Mul(x, c) d = Conv<group=14>(m, v) g = GlobalAveragePool(d) h = Sigmoid(g) t = Mul(d, h)"
            " a = AveragePool<kernel_shape=[1,2]>(t) p = Pad(a, i) k = Slice(p, l, e, n, l) y = Softmax<axis=1>(k)",
            {"v": (14, 1, 1, 2), "c": (14, 1, 1), "i": [0, 0, 1, 0, 0, 0, 0, 0], "l": [1], "e": [9], "n": [2]},
            outputs="y, t",
        ),
    )
    counterexamples = (
        Example("float[1,16,5] x", "y = Conv<group=16>(x, v)", {"v": (16, 1, 3)}),
        Example("float[1,12,5] x", "y = Conv(x, v)", {"v": (12, 12, 3)}),
        Example("float[1,12,5] x", "y = Conv<group=12>(x, v)", {"v": (24, 1, 3)}),
        Example("float[1,8,5] x", "y = Conv<group=8>(x, v)", {"v": (8, 1, 3)}),
        Example("float[1,12,5] x, float[12,1,3] v", "y = Conv<group=12>(x, v)"),
    )

    def find_sites(self, graph: ir.Graph) -> Iterator[tuple[ir.Node, Replacement]]:
        seen: set[ir.Value] = set()
        for node in graph:
            if node.outputs[0] not in seen and _narrow(node):
                part = _ChannelSubgraph.around(node)
                seen |= part.values
                if any(map(_wants_vectors, part.readers())):
                    yield node, partial(_widen_channels, node)


def _narrow(node: ir.Node) -> bool:
    """Whether it is a convolution whose results could become whole vectors."""
    if not _is_depthwise(node) and not _is_dense(node):
        return False
    count = _channels(node.outputs[0])
    return 0 < -count % VECTOR <= count * _MOST


def _wants_vectors(node: ir.Node) -> bool:
    """Whether channels that are not whole vectors may slow an operator down."""
    return _is_depthwise(node) or _joins_channels(node)


def _widen_channels(node: ir.Node, op: Operators) -> Mapping[ir.Value, ir.Value]:
    require(node.graph is not None, "the part has changed")
    assert isinstance(node.graph, ir.Graph)
    return write_subgraph(list(node.graph), op, _PaddedWriter(op, _ChannelSubgraph.around(node), node.graph))


@dataclass
class _ChannelSubgraph:
    """Values with the channels of a convolution's result, that operators hand on which treat each channel alone."""

    count: int
    values: set[ir.Value] = field(default_factory=set)

    def readers(self) -> list[ir.Node]:
        """What reads its values, inside and outside."""
        return [usage.node for value in self.values for usage in value.uses()]

    @staticmethod
    def around(node: ir.Node) -> _ChannelSubgraph:
        """The largest part with this convolution."""
        part = _ChannelSubgraph(_channels(node.outputs[0]))
        worklist = [node.outputs[0]]
        while worklist:
            value = worklist.pop()
            if value in part.values:
                continue
            part.values.add(value)
            around = [value.producer(), *(usage.node for usage in value.uses())]
            for other in around:
                if other is not None and other.graph is node.graph and _keeps_channels(other, part.count):
                    worklist += [*_list_carried_inputs(other, part.count), other.outputs[0]]
        return part


def _joins_channels(node: ir.Node) -> bool:
    return node.op_type == "Concat" and not node.domain and integer(node, "axis", 0) in (1, 1 - rank(node.outputs[0]))


def _channels(value: ir.Value) -> int:
    """Number of channels; 0 where it is not known or there are none."""
    try:
        value_shape = shape(value)
    except MatchFailure:
        return 0
    return value_shape[1] if len(value_shape) > 2 and isinstance(value_shape[1], int) else 0


def _is_convolution(node: ir.Node) -> bool:
    """With weights that can be changed."""
    return node.op_type == "Conv" and not node.domain and all(v is None or is_known(v) for v in node.inputs[1:])


def _is_depthwise(node: ir.Node) -> bool:
    if not _is_convolution(node) or node.inputs[0] is None:
        return False
    count = _channels(node.inputs[0])
    return 1 < count == integer(node, "group", 1) == _channels(node.outputs[0])


def _is_dense(node: ir.Node) -> bool:
    """A convolution of one group."""
    return _is_convolution(node) and integer(node, "group", 1) == 1


def _keeps_channels(node: ir.Node, count: int) -> bool:
    """Whether an operator treats each of `count` channels alone, all alike but for constants."""
    if node.domain or not node.inputs or node.inputs[0] is None or _channels(node.outputs[0]) != count:
        return False
    if node.op_type == "Conv":
        return _is_depthwise(node)
    try:
        return _passes(node) or (node.op_type in _BINARY and _meets(node, count))
    except MatchFailure:
        return False


def _passes(node: ir.Node) -> bool:
    """Whether an operator of one tensor treats each channel alone, all alike."""
    if node.op_type in _UNARY:
        return True
    if node.op_type in _POOLS:
        return all(not value.uses() and not value.is_graph_output() for value in node.outputs[1:])
    data = node.inputs[0]
    assert data is not None
    if node.op_type == "Pad" and len(node.inputs) < 4:
        pads = integers(node.inputs[1])
        return _pads_finite(node) and not any(pads[i + side] for i in (0, 1) for side in (0, len(pads) // 2))
    if node.op_type == "Slice" and len(node.inputs) > 3 and node.inputs[3] is not None:
        return not {0, 1} & set(normalised(axes(node, 3), rank(data)))
    return False


def _pads_finite(node: ir.Node) -> bool:
    """Whether a Pad brings in nothing that is NaN where it meets a weight of zero."""
    fill = node.inputs[2] if len(node.inputs) > 2 else None
    array = constant_elements(fill) if fill is not None else None
    return fill is None or (array is not None and bool(np.isfinite(array.astype(np.float64)).all()))


def _meets(node: ir.Node, count: int) -> bool:
    """Whether all inputs of an element-wise operator have the channels, or one element in their place."""
    outer = rank(node.outputs[0])
    for value in node.inputs:
        assert value is not None
        input_shape = shape(value)
        aligned = (*[1] * (outer - len(input_shape)), *input_shape)[1]
        if aligned != 1 and not (aligned == count and (len(input_shape) == outer or is_known(value))):
            return False
    return True


def _list_carried_inputs(node: ir.Node, count: int) -> list[ir.Value]:
    """The inputs of such an operator that have its channels and are computed."""
    given = node.inputs if node.op_type in _BINARY else node.inputs[:1]
    outer = rank(node.outputs[0])
    return [v for v in given if v is not None and not is_known(v) and rank(v) == outer and _channels(v) == count]


_Layout = tuple[tuple[int, int], ...]
"""Runs of channels, in their order: how many there were, and how many follow them now."""


class _PaddedWriter:
    """Writes what a part computes, and what reads from it, with more channels."""

    def __init__(self, op: Operators, part: _ChannelSubgraph, graph: ir.Graph) -> None:
        self._op, self._part, self._graph = op, part, graph
        self._own: _Layout = ((part.count, -part.count % VECTOR),)
        self._wide: dict[ir.Value, tuple[ir.Value, _Layout]] = {}
        self._padded: dict[ir.Value, ir.Value] = {}
        self._free: dict[ir.Value, bool] = {}
        self.pairs: dict[ir.Value, ir.Value] = {}
        """What is read outside, with what replaces it."""

    def write(self, node: ir.Node) -> None:
        """Writes an operator, if it is of the part or reads from it."""
        inside = node.outputs[0] in self._part.values
        read = any(value in self._wide for value in node.inputs)
        if _is_dense(node) and (inside or read):
            self._convolution(node, inside)
        elif inside and _keeps_channels(node, self._part.count):
            self._keep(node.outputs[0], self._widen_operator(node), self._own)
        elif read and self._carries(node):
            self._wide[node.outputs[0]] = self._carried(node)

    def _convolution(self, node: ir.Node, inside: bool) -> None:
        """One of a single group, with weights of zero for channels that it reads or computes."""
        data, weight, *bias = node.inputs
        assert data is not None and weight is not None
        read, runs = self._wide.get(data, (data, None))
        if runs is not None:
            ends = accumulate(count for count, _ in runs)
            parts = [self._slice_channels(weight, end - count, end) for (count, _), end in zip(runs, ends, strict=True)]
            filled = [self._pad_axis(part, 1, more) for part, (_, more) in zip(parts, runs, strict=True)]
            weight = filled[0] if len(filled) == 1 else self._op.Concat(*filled, axis=1)
        if not inside:
            self.pairs[node.outputs[0]] = self._op.copy(node, read, weight, *bias)
            return
        convolution = self._op.copy(node, read, *(v and self._pad_axis(v, 0, self._own[0][1]) for v in (weight, *bias)))
        self._keep(node.outputs[0], convolution, self._own)

    def _carried(self, node: ir.Node) -> tuple[ir.Value, _Layout]:
        """An operator that hands wide values on."""
        wide = [value and self._wide.get(value, (value, ((_channels(value), 0),))) for value in node.inputs]
        layouts = [entry[1] for entry in wide if entry]
        layout = tuple(run for runs in layouts for run in runs) if node.op_type == "Concat" else layouts[0]
        return self._op.copy(node, *(entry and entry[0] for entry in wide)), layout

    def _widen_operator(self, node: ir.Node) -> ir.Value:
        """An operator of the part on more channels."""
        carried, outer = _list_carried_inputs(node, self._part.count), rank(node.outputs[0])
        given = list(node.inputs)
        for index, value in enumerate(given):
            if value is None:
                continue
            axis = 0 if node.op_type == "Conv" else rank(value) - outer + 1
            if value in carried:
                given[index] = self._wide[value][0] if value in self._wide else self._pad(value)
            elif node.op_type in ("Conv", *_BINARY) and axis >= 0 and shape(value)[axis] == self._part.count:
                given[index] = self._pad_axis(value, axis, self._own[0][1])
        groups = {"group": sum(self._own[0])} if node.op_type == "Conv" else {}
        return self._op.copy(node, *given, **groups)

    def _pad(self, value: ir.Value) -> ir.Value:
        """A value that comes from outside."""
        if value not in self._padded:
            self._padded[value] = self._pad_axis(value, 1, self._own[0][1])
        return self._padded[value]

    def _pad_axis(self, value: ir.Value, axis: int, more: int) -> ir.Value:
        pads = [0] * (2 * rank(value))
        pads[rank(value) + axis] = more
        return self._op.Pad(value, self._op.integers(pads)) if more else value

    def _slice_channels(self, value: ir.Value, start: int, end: int) -> ir.Value:
        if (start, end) == (0, shape(value)[1]):
            return value
        return self._op.Slice(value, *(self._op.integers([number]) for number in (start, end, 1)))

    def _keep(self, value: ir.Value, wide: ir.Value, layout: _Layout) -> None:
        """Remembers the wide form of a value of the part; what cannot read it gets the channels that were there."""
        self._wide[value] = wide, layout
        if value.is_graph_output() or not all(self._reads(usage.node) for usage in value.uses()):
            self.pairs[value] = self._slice_channels(wide, 0, self._part.count)

    def _reads(self, node: ir.Node) -> bool:
        """Whether an operator can read the wide form of a value."""
        if node.graph is not self._graph:
            return False
        inside = node.outputs[0] in self._part.values and _keeps_channels(node, self._part.count)
        return inside or _is_dense(node) or self._carries(node)

    def _carries(self, node: ir.Node) -> bool:
        """Whether an operator that is not of the part hands wide values on, to convolutions in the end."""
        result = node.outputs[0]
        if node.domain or node.graph is not self._graph or result in self._part.values:
            return False
        if result not in self._free:
            joins = _joins_channels(node)
            channels_known = all(value is not None and _channels(value) for value in node.inputs)
            able = (joins and channels_known) or (node.op_type != "Concat" and _passes(node))
            readers = [usage.node for usage in result.uses()]
            self._free[result] = able and not result.is_graph_output() and all(map(self._reads, readers))
        return self._free[result]
