"""Convolutions whose data are laid out otherwise than they should be, and what comes out wrong computed again.

PET (Wang et al., OSDI 2021): a *mutant* is a program of the right shapes that is equal to the original in most places only;
where it is not is found by trying, and a *correction kernel*, the original on what those places read, puts it right. Mutations
know nothing of windows and borders: those that move parts of axes are enumerated (`rewrite.rules.mutants`), one that rearranges the
weights is written here. The places are found with
one channel, since all are treated alike: two polynomials of degree two in the inputs and weights differ at a place or nowhere
there (Schwartz and Zippel), so that a few random integers decide.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import onnx_ir as ir

from bricolage.rewrite.analyses.linear import Window
from bricolage.rewrite.builder import GraphBuilder, Names
from bricolage.rewrite.engine.matching import Match
from bricolage.rewrite.predicates import integer, require, sizes
from bricolage.rewrite.rule import Example, MatchFailure, Operators, Result
from bricolage.rewrite.rules.convolution import ConvolutionRule
from bricolage.verify.reference import evaluate

Sizes = tuple[int, ...]
Convolve = Callable[..., ir.Value]
"""The convolution on other data, with other weights and attributes where they are given, and with the groups and the bias `copies`
times over."""
Mutant = Callable[[Operators, ir.Value, ir.Value, Convolve, Sizes, Window], ir.Value]
"""A value of the sizes given that is the convolution of some data with some weights and a window in most places. Raises
MatchFailure where there is none."""
_DRAWS = 3
_LARGEST = 1000
"""Of the integers that are drawn: a place that differs passes with a chance of 1e-9 in three draws, and all arithmetic is exact."""
_WORTH = 0.5
"""The share of the result that is corrected at most; where more is wrong, little is left of the mutant."""


@dataclass(frozen=True)
class WrongBoxes:
    """What a mutant computes wrongly: everything in these half-open intervals of one axis of the result."""

    axis: int
    intervals: tuple[tuple[int, int], ...]


class CorrectedConvolution(ConvolutionRule):
    """Base of mutations of one convolution over two spatial axes, with sizes that are known."""

    family = "correction"

    @abstractmethod
    def mutant(
        self, op: Operators, data: ir.Value, weight: ir.Value, convolve: Convolve, to: Sizes, window: Window
    ) -> ir.Value:
        """See `Mutant`."""

    def check(self, match: Match) -> None:
        window = self.window(match)
        require(window.spatial_rank == 2, "it has not two spatial axes")
        require(min((*window.before, *window.after)) >= 0, "pads are negative")
        sizes(match["x"]), sizes(match.root)
        wrong_boxes(self.mutant, sizes(match["x"])[0], sizes(match["x"])[2:], sizes(match.root)[2:], window)

    def rewrite(self, op: Operators, match: Match) -> Result:
        window, data, to = self.window(match), match["x"], sizes(match.root)
        node, weight, bias = match.node("conv"), match["w"], match.get("b")

        def convolve(given: ir.Value, kernel: ir.Value = weight, copies: int = 1, **attributes: object) -> ir.Value:
            added = bias
            if copies > 1:
                attributes["group"] = copies * integer(node, "group", 1)
                added = None if bias is None else op.Concat(*[bias] * copies, axis=0)
            return op.copy(node, given, kernel, added, auto_pad=None, kernel_shape=None, **attributes)

        wrong = wrong_boxes(self.mutant, to[0], sizes(data)[2:], to[2:], window)
        mutant_output = self.mutant(op, data, weight, convolve, to, window)
        return mutant_output if wrong is None else _correct_boxes(op, mutant_output, data, convolve, to, window, wrong)


def _correct_boxes(
    op: Operators, made: ir.Value, data: ir.Value, convolve: Convolve, to: Sizes, window: Window, wrong: WrongBoxes
) -> ir.Value:
    """The mutant's result with the wrong boxes computed by the original."""
    parts: list[ir.Value] = []
    position = 0
    for start, end in wrong.intervals:
        if start > position:
            parts.append(_cut(op, made, wrong.axis, position, start))
        parts.append(_original(op, data, convolve, window, wrong.axis, start, end))
        position = end
    if position < to[wrong.axis]:
        parts.append(_cut(op, made, wrong.axis, position, to[wrong.axis]))
    return op.Concat(*parts, axis=wrong.axis)


def _original(
    op: Operators, data: ir.Value, convolve: Convolve, window: Window, axis: int, start: int, end: int
) -> ir.Value:
    """The original convolution for an interval of its result, of no more data than that reads."""
    if axis == 0:
        return convolve(_cut(op, data, 0, start, end))
    which = axis - 2
    size, stride, before = sizes(data)[axis], window.strides[which], window.before[which]
    first = start * stride - before
    last = (end - 1) * stride - before + (window.kernel[which] - 1) * window.dilations[which] + 1
    pads = [list(window.before), list(window.after)]
    pads[0][which], pads[1][which] = max(0, -first), max(0, last - size)
    return convolve(_cut(op, data, axis, max(first, 0), min(last, size)), pads=[*pads[0], *pads[1]])


def _cut(op: Operators, value: ir.Value, axis: int, start: int, end: int) -> ir.Value:
    return op.Slice(value, op.integers([start]), op.integers([end]), op.integers([axis]))


def wrong_boxes(mutant: Mutant, batch: int, image: Sizes, made: Sizes, window: Window) -> WrongBoxes | None:
    """Where a mutant differs from the convolution; None where it does nowhere. Computed once for equal arguments.

    Raises:
        MatchFailure: it has other sizes, or too much is wrong.
    """
    boxes = _find_wrong_boxes(mutant, batch, image, made, window)
    if isinstance(boxes, str):
        raise MatchFailure(boxes)
    return boxes


@cache
def _find_wrong_boxes(mutant: Mutant, batch: int, image: Sizes, made: Sizes, window: Window) -> WrongBoxes | str | None:
    """As `wrong_boxes`; the reason where there is no mutant, since a cache keeps no exceptions, and most mutants are none."""
    try:
        return compare_mutant(mutant, batch, image, made, window)
    except MatchFailure as failure:
        return str(failure)


def compare_mutant(mutant: Mutant, batch: int, image: Sizes, made: Sizes, window: Window) -> WrongBoxes | None:
    """As `wrong_boxes`, computed anew.

    Raises:
        MatchFailure: it has other sizes, or too much is wrong.
    """
    data = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([batch, 1, *image]))
    weight = ir.Value(name="w", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1, 1, *window.kernel]))
    model = ir.Model(ir.Graph([data, weight], [], nodes=[], opset_imports={"": 18}, name="mutant"), ir_version=10)
    op = GraphBuilder({"": 18}, Names(model), fold=False)
    window_attributes = {"strides": list(window.strides), "dilations": list(window.dilations)}
    window_attributes["pads"] = [*window.before, *window.after]

    def convolve(given: ir.Value, kernel: ir.Value = weight, copies: int = 1, **attributes: object) -> ir.Value:
        return op.Conv(given, kernel, **{**window_attributes, "group": copies, **attributes})

    right = convolve(data)
    made_otherwise = mutant(op, data, weight, convolve, (batch, 1, *made), window)
    require(sizes(made_otherwise) == sizes(right), "the mutant has other sizes")
    for constant in op.constants:
        model.graph.register_initializer(constant)
    model.graph.extend(op.nodes)
    model.graph.outputs.extend([right, made_otherwise])
    return _boxes(_differs(model, right, made_otherwise))


def _differs(model: ir.Model, right: ir.Value, mutant: ir.Value) -> np.ndarray:
    draw = np.random.default_rng(0)
    differs = np.zeros(sizes(right), bool)
    for _ in range(_DRAWS):
        inputs = {
            value.name or "": draw.integers(-_LARGEST, _LARGEST, sizes(value), endpoint=True).astype(np.float64)
            for value in model.graph.inputs
        }
        outputs = evaluate(model, inputs)
        differs |= np.asarray(outputs[right.name or ""]) != np.asarray(outputs[mutant.name or ""])
    return differs


def _boxes(differs: np.ndarray) -> WrongBoxes | None:
    """The axis along which the fewest have to be computed again, with their intervals.

    Raises:
        MatchFailure: they are too many.
    """
    if not differs.any():
        return None
    axes = range(differs.ndim)
    lines = {axis: differs.any(axis=tuple(other for other in axes if other != axis)) for axis in axes if axis != 1}
    axis = min(lines, key=lambda line: float(lines[line].mean()))
    require(float(lines[axis].mean()) <= _WORTH, "too much of the mutant is wrong")
    edges = np.flatnonzero(np.diff(np.concatenate([[False], lines[axis], [False]])))
    return WrongBoxes(axis, tuple(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)))


class CorrectedStrideInChannels(CorrectedConvolution):
    """Conv(x, w, b, strides s) = Conv(the phases of x as channels, the phases of w as channels, b), what is wrong computed again

    for one stride that divides the sizes, one group and no dilations. Windows are taken to be centred.
    """

    examples = (
        Example("float[1,3,8,8] x", "y = Conv<strides=[2,2], pads=[3,3,3,3]>(x, w)", {"w": (2, 3, 7, 7)}),
        Example("float[2,2,6,4] x", "y = Conv<strides=[2,2], pads=[1,1,1,1]>(x, w, b)", {"w": (3, 2, 3, 3), "b": (3,)}),
        Example("float[1,2,9,6] x", "y = Conv<strides=[3,3]>(x, w)", {"w": (2, 2, 2, 1)}),
    )
    counterexamples = (
        Example("float[1,3,8,8] x", "y = Conv<pads=[1,1,1,1]>(x, w)", {"w": (4, 3, 3, 3)}, why="no stride"),
        Example("float[1,3,9,9] x", "y = Conv<strides=[2,2], pads=[1,1,1,1]>(x, w)", {"w": (4, 3, 3, 3)}, why="divide"),
        Example(
            "float[1,4,8,8] x",
            "y = Conv<strides=[2,2], pads=[1,1,1,1], group=2>(x, w)",
            {"w": (4, 2, 3, 3)},
            why="group",
        ),
        examples[0].but("too much", "y = Conv<strides=[2,2], pads=[0,0,1,1]>(x, w)", w=(4, 3, 3, 3)),
    )

    def check(self, match: Match) -> None:
        require(integer(match.node("conv"), "group", 1) == 1, "there is more than one group")
        require(max(self.window(match).strides) > 1, "there is no stride")
        super().check(match)

    def mutant(
        self, op: Operators, data: ir.Value, weight: ir.Value, convolve: Convolve, to: Sizes, _window: Window
    ) -> ir.Value:
        (_, _, *image), (outputs, inputs, *kernel) = sizes(data), sizes(weight)
        stride = image[0] // to[2]
        require(
            stride > 1 and [stride * size for size in to[2:]] == list(image), "the stride does not divide the sizes"
        )
        ahead = [-((size - 1) // 2) % stride for size in kernel]
        steps = [-(-(more + size) // stride) for more, size in zip(ahead, kernel, strict=True)]
        behind = [stride * count - more - size for count, more, size in zip(steps, ahead, kernel, strict=True)]
        phases = op.Pad(weight, op.integers([0, 0, *ahead, 0, 0, *behind]))
        phases = op.Reshape(phases, op.integers([outputs, inputs, steps[0], stride, steps[1], stride]))
        phases = op.Transpose(phases, perm=[0, 3, 5, 1, 2, 4])
        phases = op.Reshape(phases, op.integers([outputs, stride * stride * inputs, *steps]))
        before = [((size - 1) // 2 + more) // stride for size, more in zip(kernel, ahead, strict=True)]
        after = [count - 1 - front for count, front in zip(steps, before, strict=True)]
        require(min(after) >= 0, "the mutant has other sizes")
        deep = op.SpaceToDepth(data, blocksize=stride)
        return convolve(deep, phases, strides=None, dilations=None, pads=[*before, *after])
